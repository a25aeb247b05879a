//! Spec-S0: numbers by datagrams of four bytes of data each way, below RPC (thesis, section 4.7).
//!
//! The client guesses the upper half of its number. If the guess is right, the answer has the lower half; if not, all
//! eight bytes. The server keeps no state of a request and never retransmits. A client without a timely answer asks
//! again; a number that was lost with its answer, or that answers a repeated request, is a gap.
//!
//! | File | What it holds |
//! |---|---|
//! | [`packet`] | the format |
//! | `server` | the server, a burst at a time |
//! | `peers` | the clients whose routes a server knows |
//! | `client` | the client: its calls, their attempts, and the choice of the server |
//!
//! # Why the promises hold
//!
//! - Every call has a 64-bit tag that is unique for this client. Tags start at a random number, so two clients are very
//!   unlikely to share one. An answer counts only if its tag belongs to a call that waits now, so duplicate, late and
//!   foreign answers are dropped. A server draws for each request that arrives, so the number was drawn after the first
//!   attempt of the call was sent, and is above all that the client had then.
//! - All attempts under one tag have the same guess, with which the client joins the lower half, and name the same
//!   incarnation or epoch. An attempt that names another one gets another tag: answers to the earlier ones must not count
//!   any more.
//! - A request names the server's incarnation. A server draws only for its own; otherwise it answers with a hello and
//!   its next number. If the client already has higher numbers, it reports an error instead of taking duplicates.
//! - If the counter has terms of office ([`crate::reserve`]), the epoch stands in place of the incarnation, in the same
//!   four bytes. Epochs are ordered: a client that has learned of one names it in all requests, takes no number of an
//!   earlier one, and so fences a server that was replaced.

mod client;
pub mod packet;
mod peers;
mod server;

pub use client::{DirectClient, DirectConfig, DirectError, DirectStats, Stall};
pub use server::{BadServer, DirectServer, DirectServerConfig, DirectServerStats, QUEUES_MAX};
