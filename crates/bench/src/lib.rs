//! The experiments of the papers as commands. Each prints the performance of Dunlin, that of the bare transport in the
//! same run, and the paper's figure on its hardware.
//!
//! Each area has a folder with its experiments, their roles and the papers' figures; [`experiments`] lists them. With a
//! [`Lab`] an experiment starts a server and a client as separate processes, takes five runs of each case, and fills a
//! report. A program that links this crate must call
//! [`experiments::serve_peer`] if its first argument is [`dunlin_lab::peer::ARGUMENT`].
#![forbid(unsafe_code)]

mod coord;
pub mod datacenter;
mod demo;
pub mod echo;
mod error;
pub mod experiments;
mod index;
mod kv;
mod rein;
mod rpc;
mod seq;
mod sim;
mod smr;
mod store;
mod txn;
pub mod workload;

pub use error::BenchError;

/// The environment of one experiment.
pub type Lab = dunlin_lab::Lab<BenchError>;

/// One run of a case in virtual time.
pub type Trial<'a> = dunlin_lab::Trial<'a, BenchError>;

/// Length of the warm-up, which is not counted, as a share of the measured run.
const WARM_UP_SHARE: f64 = 0.2;
