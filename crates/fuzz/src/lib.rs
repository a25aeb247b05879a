//! What the fuzz targets do with their input, and the inputs that they begin with, in `seeds`.
//!
//! This crate's tests replay the inputs, and variants of them. `fuzz/run` lets libFuzzer choose inputs by coverage.
//!
//! | Module | What it feeds |
//! |---|---|
//! | [`packet`] | the parsers of headers and of control packets |
//! | [`endpoint`] | two live endpoints with sessions and calls in progress |
//! | [`snapshot`] | the reader and the loader of snapshots |
//! | [`log`] | the first segment of a replicated node's log |
//! | [`memcached`] | the memcached protocol of a server of one core |
//! | [`index`] | an ordered index, beside a map of the standard library |
//! | [`index_wire`] | the requests and answers of the index service |
//! | [`seq`] | the messages and datagrams of a sequencer: parsers, a live server and a live client |
//! | [`txn`] | the messages of transactions |
//! | [`seeds`] | the first packets: one of each kind |
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod index;
pub mod index_wire;
pub mod log;
pub mod memcached;
pub mod packet;
pub mod seeds;
pub mod seq;
pub mod snapshot;
pub mod txn;

/// Does a target's work with one input. It panics if what must hold does not.
pub type Check = fn(&[u8]);

/// All targets by their names, which are those of their folders in `seeds`.
pub const TARGETS: [(&str, Check); 9] = [
    ("endpoint", endpoint::check),
    ("index", index::check),
    ("index_wire", index_wire::check),
    ("log", log::check),
    ("memcached", memcached::check),
    ("packet", packet::check),
    ("seq", seq::check),
    ("snapshot", snapshot::check),
    ("txn", txn::check),
];

/// Inputs by their names.
pub type Inputs = Vec<(&'static str, Vec<u8>)>;

/// The first inputs that code writes, by target. Those of the other targets were written by hand.
pub fn first_inputs() -> [(&'static str, Inputs); 6] {
    [
        ("packet", seeds::all()),
        ("endpoint", seeds::attacks()),
        ("snapshot", snapshot::seeds()),
        ("log", log::seeds()),
        ("seq", seq::seeds()),
        ("txn", txn::seeds()),
    ]
}
