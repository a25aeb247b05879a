//! Replicas of a key-value machine and writing clients, over any transport, for the experiments on replication.
//!
//! The subject is a group of three, as in the paper (eRPC, section 7.1): keys of 16 B, values of 64 B, all keys present
//! initially.

mod group;
mod load;
mod stages;

pub use group::{Group, KEYS, Replica};
pub use load::Puts;
pub use stages::{Both, Charges, LeaderCommits, StageTimes, Stages};
