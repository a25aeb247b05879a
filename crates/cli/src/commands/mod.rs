//! The subcommands.

#[cfg(feature = "bench")]
pub mod bench;
pub mod completions;
pub mod coord;
#[cfg(feature = "bench")]
pub mod demo;
#[cfg(feature = "bench")]
pub mod echo;
pub mod index;
pub mod kv;
pub mod man;
pub mod raft;
pub mod seq;
#[cfg(feature = "bench")]
pub mod sim;
pub mod top;
pub mod txn;

/// Warns that anyone who reaches a place may use it.
pub fn warn_of_exposure(place: &str) {
    eprintln!(
        "dunlin: warning: traffic at {place} is neither encrypted nor authenticated: let only those reach it whom you trust"
    );
}
