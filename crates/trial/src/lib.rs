//! Random work for endpoints, and the outside observer that judges what became of it.
//!
//! Shared by all that put endpoints into trouble from a seed: the protocol test of `dunlin-rpc` over loopback, and the fault hunt in the
//! simulated datacenter. Each has its own network, clock and faults; what endpoints do meanwhile, and what must hold, is the same:
//!
//! - each call ends exactly once, and no handler ran twice for one request, nor for a request that "was not sent";
//! - payloads arrive as they were sent, and request buffers come back as they were given;
//! - in the end no call, credit, session, task or buffer is left over.
//!
//! Whatever does not hold panics, with the story so far: this is code for tests.
//!
//! | File | What it holds |
//! |---|---|
//! | [`settings`] | random settings of endpoints |
//! | [`calls`] | what endpoints do: sessions, calls of every kind, cancellations |
//! | [`handlers`] | what answers requests |
//! | [`messages`] | payloads that show where each byte came from |
//! | [`ledger`] | what became of every call |
//! | [`judge`] | what must hold in the end |
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
