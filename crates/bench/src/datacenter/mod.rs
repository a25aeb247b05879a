//! Endpoints on the hosts of a simulated datacenter: what the experiments in virtual time are built from.
//!
//! The simulator knows packets only, and `rpc` knows nothing of simulators. Here they meet: a [`Cluster`] is a datacenter with members, each
//! a thread of a host that runs an endpoint of the very code that production runs. Members are given handlers and tasks, then time passes.
//! Nothing here reads a clock of the machine, so an experiment gives the same figures for the same seed everywhere.

mod calibrate;
mod cluster;
mod load;
mod member;

pub use calibrate::calibrate;
pub use cluster::Cluster;
pub use load::{BatchLoad, BatchTally};
pub use member::{Member, SINK};
