//! Endpoints on the hosts of a simulated datacenter: the basis of experiments in virtual time.
//!
//! The simulator knows only packets, and `rpc` knows nothing of simulators. Here they meet: a [`Cluster`] is a
//! datacenter with members, each a thread of a host that runs an endpoint with exactly the production code. Members get
//! handlers and tasks, then time advances. Nothing here reads a clock of the machine, so an experiment gives the same
//! figures for the same seed everywhere.

mod calibrate;
mod cluster;
mod load;
mod member;

pub use calibrate::calibrate;
pub use cluster::Cluster;
pub use load::{BatchLoad, BatchTally};
pub use member::{Member, SINK};
