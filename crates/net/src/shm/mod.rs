//! Datagrams between processes of one host, through shared memory.

mod bytes;

pub use bytes::SharedBytes;
