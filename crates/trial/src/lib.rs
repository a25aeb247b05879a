//! Random work for endpoints, and the outside observer that judges its outcome.
//!
//! Shared by all tests that expose endpoints to faults from a seed: the protocol test of `dunlin-rpc` over loopback,
//! and the fault hunt in the simulated datacenter. Each has its own network, clock and faults; the endpoints' work, and
//! the conditions that must hold, are the same:
//!
//! - each call ends exactly once, and no handler runs twice for one request, nor for a request that "was not sent";
//! - payloads arrive as they were sent, and request buffers come back unchanged;
//! - in the end no call, credit, session, task or buffer is left over.
//!
//! A violation panics with a report of the run: this is code for tests.
//!
//! | File | What it holds |
//! |---|---|
//! | [`settings`] | random settings of endpoints |
//! | [`calls`] | the actions of endpoints: sessions, calls of every kind, cancellations |
//! | [`handlers`] | request handlers |
//! | [`messages`] | payloads that show where each byte came from |
//! | [`ledger`] | the outcome of every call |
//! | [`judge`] | conditions that must hold in the end |
#![forbid(unsafe_code)]

pub mod calls;
pub mod cancel;
pub mod handlers;
pub mod judge;
pub mod ledger;
pub mod messages;
pub mod random;
pub mod settings;

pub use handlers::Local;
pub use ledger::{Behaviour, Event, Ledger, Record, Roughness};
pub use random::Random;
