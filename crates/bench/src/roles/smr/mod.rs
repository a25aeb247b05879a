//! Replicas of a key-value machine, and their writing clients.

mod group;
mod load;

pub use group::{ReplicaFigures, ReplicaGroup, Storage, Watch};
pub use load::{Poll, PutFigures, PutLoad};
