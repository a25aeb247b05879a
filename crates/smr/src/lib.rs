//! State machine replication: an existing Raft library, unmodified, over Dunlin's RPC.
#![forbid(unsafe_code)]

pub use raft::eraftpb;

pub mod wal;
