//! The experiments of the papers as commands. Each prints the performance of Dunlin, that of the bare transport in the
//! same run, and the paper's figure on its hardware.
//!
//! An experiment is one file under [`experiments`]. With a [`Lab`] it starts a server and a client as separate
//! processes, takes five runs of each case, and fills a report. A program that links this crate must call
//! [`experiments::serve_peer`] if its first argument is [`dunlin_lab::peer::ARGUMENT`].
#![forbid(unsafe_code)]

pub mod datacenter;
pub mod echo;
mod error;
pub mod experiments;
pub mod replication;
mod roles;
pub mod workload;

pub use error::BenchError;

/// The environment of one experiment.
pub type Lab = dunlin_lab::Lab<BenchError>;

/// One run of a case in virtual time.
pub type Trial<'a> = dunlin_lab::Trial<'a, BenchError>;
