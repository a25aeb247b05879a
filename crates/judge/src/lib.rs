//! Judges of recorded histories: were the clients' observations possible?
//!
//! Code for tests and fault hunts. A judge gets the clients' records and nothing else: no clock, no network, no store.
//! It uses no other crate of Dunlin, so the tests of every crate can use it.
//!
//! | Module | Histories | Verdict |
//! |---|---|---|
//! | [`append`] | transactions of appends to lists and reads of lists | strictly serializable, or anomalies and cycles |
//! | [`map`] | puts, deletes, gets and scans of an ordered map | linearizable points, and scans that miss nothing |
//!
//! Each module says what it promises and what it misses.
#![forbid(unsafe_code)]

pub mod append;
pub mod map;
mod micros;
