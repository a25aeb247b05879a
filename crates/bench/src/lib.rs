//! The experiments of the papers as commands. Each prints what Dunlin does, what the bare transport does in the same run, and
//! what the paper reports on its hardware.
//!
//! An experiment is one file under [`experiments`]. It starts a server and a client as processes of their own ([`peer`]), takes
//! five runs of each case ([`lab`]), and fills a [`report::Report`], which shows itself as a table, a JSON file or a page.
//! The program that links this crate must hand over to [`experiments::serve_peer`] when its first argument is
//! [`peer::ARGUMENT`].
#![forbid(unsafe_code)]

pub mod datacenter;
pub mod echo;
mod error;
pub mod experiments;
pub mod hunt;
pub mod lab;
pub mod measure;
pub mod peer;
pub mod replication;
pub mod report;
mod roles;
pub mod workload;

pub use error::BenchError;
