//! The back end that brings its own replicas: the [machine](crate::model::Machine) on [`dunlin_smr`], on three nodes,
//! or on one.
//!
//! A node runs [`dunlin_smr::Node::start`] with a [`Machine`](crate::model::Machine), and beside it a [`Watchman`].
//! Clients, on the same endpoint or remote, use an [`Embedded`].

mod client;
mod watchman;

pub use client::Embedded;
pub use watchman::Watchman;
