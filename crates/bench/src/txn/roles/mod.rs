//! Nodes that run transactions, and check at the end that all is well.

mod cluster;
mod echo;
mod node;
mod stage;

pub(super) use cluster::configuration;
pub use cluster::{ClusterFigures, Shape, TxnCluster};
pub(super) use node::{INCARNATION, name};
