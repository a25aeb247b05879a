//! Whole servers, with threads, sockets and snapshots: what happens when something in them fails or runs out.

mod client;
mod fragile;
mod memory;
mod panics;
mod snapshots;
