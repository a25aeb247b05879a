//! Replicas of a key-value machine and their writing clients, a log on disk, and bare flushes.

mod flushes;
mod group;
mod load;
mod log_flush;
mod replica;

pub use flushes::{BareFlushes, MajorityFlushes};
pub use group::{ReplicaFigures, ReplicaGroup, Storage, Watch};
pub use load::{Poll, PutFigures, PutLoad};
pub use log_flush::{ENTRY_BYTES as LOG_ENTRY_BYTES, LogFlush};
pub use replica::KvReplica;
