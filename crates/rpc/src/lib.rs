//! Datagram RPC: sessions, message buffers, an event loop and asynchronous calls over unreliable packets.
//!
//! This is eRPC (Kalia et al., NSDI 2019) rebuilt for transports that every machine has. One thread owns one
//! [`Endpoint`]. It registers handlers by request type, opens [`Session`]s to other endpoints, and calls over them:
//!
//! - at most once: a handler never runs twice for one request, whatever the network loses, repeats or reorders;
//! - every call ends exactly once, with a response or a [`CallError`], and returns its request buffer;
//! - every queue, window and buffer has a limit; at the limit there is an error or back-pressure;
//! - a small call in steady state takes no lock, no allocation and no system call of its own.
//!
//! Start reading at [`Endpoint`]; then `core/` (the protocol without I/O) and `endpoint/event_loop.rs` (what drives
//! it). The wire format is specified in `docs/wire-protocol.md`.
#![deny(unsafe_code)]

pub mod config;
pub mod congestion;
mod context;
mod core;
mod endpoint;
pub mod error;
pub mod handler_stats;
#[allow(unsafe_code)]
pub mod msgbuf;
#[cfg(feature = "mutations")]
pub mod mutation;
#[cfg(not(feature = "mutations"))]
mod mutation;
pub mod observe;
mod payload;
pub mod stats;
pub mod timer;
pub mod wire;

use dunlin_net::prefetch;

pub use config::{EndpointConfig, Optimizations, PeerLimits, Recovery, Switch};
pub use congestion::{Allowance, CongestionControl};
pub use context::{Gone, RequestContext, SessionId};
pub use endpoint::Endpoint;
pub use endpoint::alarm::{Sleep, Timers};
pub use endpoint::event_loop::Turn;
pub use endpoint::handler::{DeferredReply, DeferredRequest, OwnedRequest, Request, RequestBurst, WorkerRequest};
pub use endpoint::panics::panic_message;
pub use endpoint::session::{
    Call, CallOptions, Closing, Completion, ConnectOptions, Connecting, ContinuationId, Reply, Session,
};
pub use endpoint::shutdown::{ShuttingDown, Unfinished};
pub use endpoint::worker::WorkerPool;
pub use error::{
    ApplicationError, CallError, CallFailure, CannotDefer, ConnectError, EndpointError, RegisterError, RespondError,
};
pub use handler_stats::{Durations, HandlerStats};
pub use msgbuf::MsgBuf;
pub use observe::{DropReason, Observed};
pub use payload::{HandlerError, IntoResponse, Payload, RequestBuffer};
pub use stats::{Counters, EndpointStats, SessionStats};

// What unit tests share with the tests in `tests/`, which refer to the crate by name.
#[cfg(test)]
extern crate self as dunlin_rpc;
#[cfg(test)]
#[path = "../tests/pair/mod.rs"]
mod pair;
#[cfg(test)]
#[path = "../tests/hostile/raw.rs"]
#[allow(dead_code, reason = "the hostile tests use all of it")]
mod raw;
