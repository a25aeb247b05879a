//! The experiments of the papers as commands. Each prints the performance of Dunlin, that of the bare transport in the
//! same run, and the paper's figure on its hardware.
//!
//! An experiment is one file under [`experiments`]. It starts a server and a client as separate processes ([`peer`]),
//! takes five runs of each case ([`lab`]), and fills a [`report::Report`], which is shown as a table, a JSON file or a
//! page. A program that links this crate must call [`experiments::serve_peer`] if its first argument is
//! [`peer::ARGUMENT`].
#![forbid(unsafe_code)]

pub mod datacenter;
pub mod echo;
mod error;
pub mod experiments;
pub mod lab;
pub mod measure;
pub mod peer;
pub mod replication;
pub mod report;
mod roles;
pub mod workload;

pub use error::BenchError;
