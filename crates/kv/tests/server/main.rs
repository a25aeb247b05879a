//! Whole servers, with threads, sockets and snapshots: the effects of failures and of exhausted resources.

mod client;
mod fragile;
mod memory;
mod panics;
mod replicas;
mod snapshots;
mod tier;
