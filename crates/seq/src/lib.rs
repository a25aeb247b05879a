//! A sequencer: increasing 64-bit numbers from one counter, for clients that need an order or a timestamp (Kalia's
//! thesis, section 4.7; Kalia et al., USENIX ATC 2016).
//!
//! Guarantees:
//! - **Unique.** No number is handed out twice.
//! - **Increasing in real time.** If one call begins after another has ended, it gets the higher number, whichever
//!   clients made them. A number is drawn after its call began, never taken from a client's stock.
//! - **Gaps are allowed.** A number that was lost with its answer is never handed out again.
//!
//! Two interfaces:
//! - by RPC ([`SeqService`], [`Client`]): runs of numbers, one addition to the counter for all requests that arrive
//!   together, and a client whose concurrent callers share a request;
//! - by *Spec-S0* ([`direct`]): datagrams with four bytes of data each way, below RPC, one number each.
//!
//! Numbers are below [`NUMBERS_END`]. A restarted sequencer must begin above all numbers that it handed out before: its
//! operator supplies the first number, or it reserves ranges of numbers ahead of their use ([`reserve`]).
//!
//! `docs/sequencer.md` has the formats and the limits. Start reading at [`counter`], which argues why the guarantees
//! hold.
#![forbid(unsafe_code)]

pub mod client;
pub mod counter;
pub mod direct;
pub mod error;
#[cfg(feature = "mutations")]
pub mod mutation;
#[cfg(not(feature = "mutations"))]
mod mutation;
pub mod reserve;
pub mod service;
pub mod wire;

pub use client::{Client, ClientConfig, ClientStats};
pub use counter::{Counter, NUMBERS_END, RUN_MAX, Unavailable};
pub use error::{SeqError, Setback};
pub use service::{Batching, SeqService, ServiceStats};
