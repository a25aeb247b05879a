//! What the fuzz targets do with their input.
//!
//! | Module | What it feeds |
//! |---|---|
//! | [`packet`] | the parsers of headers and of control packets |
//! | [`endpoint`] | two live endpoints with sessions and calls in progress |
//! | [`snapshot`] | the reader and the loader of snapshots |
//! | [`log`] | the first segment of a replicated node's log |
//! | [`memcached`] | the memcached protocol of a server of one core |
//! | [`index`] | an ordered index, beside a map of the standard library |
//! | [`index_wire`] | the requests and answers of the index service |
//! | [`seq`] | the messages and datagrams of a sequencer: parsers, a live server and a live client |
//! | [`txn`] | the messages of transactions |
//! | [`seeds`] | the first corpus: one packet of each kind |

pub mod endpoint;
pub mod index;
pub mod index_wire;
pub mod log;
pub mod memcached;
pub mod packet;
pub mod seeds;
pub mod seq;
pub mod snapshot;
pub mod txn;
