//! Multiget scheduling: a multiget is as late as its slowest part, so a server should first serve operations that delay
//! their multiget.
//!
//! Implements Rein (Reda, "Accelerating Distributed Storage in Heterogeneous Settings", 2022, chapter 3) and the policy
//! that Dunlin ships instead. The crate uses no network and reads no clock.
//!
//! - **The requester** splits a multiget into [`Opsets`], one per data partition, with the help of a [`CostEstimate`],
//!   and a [`Policy`] gives each opset a rank. The rank travels with every operation.
//! - **The server** keeps the operations that cannot run at once in a [`RequestQueue`], which decides what runs next:
//!   in order of arrival, by exact rank, or by levels. The queue is bounded, and nothing in it starves. A client that
//!   marks everything as urgent is served first only for its fair share, plus a bounded lead.
//! - **The replica** that a client reads is a [`ChooseReplica`]: in turn, least outstanding, or C3's ranking.
//! - **The simulator** ([`simulator`]) runs both in virtual time, for the figures of the thesis.
//!
//! Start reading at `policy.rs`, then `queue/mod.rs`.
#![forbid(unsafe_code)]

mod cost;
mod levels;
mod opset;
mod policy;
mod queue;
mod replica;
pub mod simulator;

pub use cost::{CostEstimate, Residence};
pub use levels::{LEVELS_MAX, Levels, LevelsError, Overflow};
pub use opset::{Opset, Opsets};
pub use policy::{Policy, SlackReading};
pub use queue::{
    Ageing, CLIENTS_MAX, ConfigError, DEMOTED_ONE_IN, Damping, Full, Order, QueueConfig, RequestQueue, Tag,
};
pub use replica::{C3Ranking, ChooseReplica, LeastOutstanding, RoundRobin, Told};
