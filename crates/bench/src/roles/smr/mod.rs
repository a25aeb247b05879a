//! Replicas of a key-value machine, and who writes to it.

mod group;
mod load;

pub use group::{ReplicaFigures, ReplicaGroup, Storage, Watch};
pub use load::{Poll, PutFigures, PutLoad};
