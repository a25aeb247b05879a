//! State machine replication: an existing Raft library, unmodified, over Dunlin's RPC.
//!
//! A [`Node`] is one replica. It joins TiKV's `raft` (which has no threads, clock, disk or network) with an endpoint of
//! [`dunlin_rpc`], a log ([`LogStore`]) and the user's [`StateMachine`]. It does its work in the endpoint's event loop,
//! in handlers and continuations; nothing polls a loop of its own. A [`Client`] finds the leader and has commands
//! executed, once each.
//!
//! - - All replicas execute committed commands in one order; acknowledged writes are never lost while a majority lives.
//! - - A command of a session is executed once, however often it is sent, even across changes of leader.
//! - Reads are linearizable, by read index or by lease.
//! - A process serves many groups on one endpoint ([`Host`]), which share links, heartbeats and one log; idle groups
//!   rest.
//! - Replicas join as learners, get votes, and leave, one at a time, under load.
//! - Every queue has a limit; at the limit there is an error.
//!
//! Start reading at [`Node::start`], then `node/core.rs`; `docs/replication.md` explains the protocol.
#![forbid(unsafe_code)]

pub mod backup;
pub mod client;
mod cluster_id;
pub mod config;
mod discard;
mod erased;
pub mod kv;
pub mod log;
pub mod machine;
#[cfg(feature = "mutations")]
pub mod mutation;
#[cfg(not(feature = "mutations"))]
mod mutation;
mod node;
mod probe;
mod sessions;
mod state;
pub mod wal;
pub mod wire;

pub use client::{Client, ClientConfig, ClientError, ReadFrom, Waited};
pub use cluster_id::{ClusterId, NoClusterId};
pub use config::{Batching, NodeConfig, NodeError, Reads};
pub use log::{DurableLog, LogStore, MemoryLog, Room};
pub use machine::StateMachine;
pub use node::{Beginning, Counters, Host, Node};
pub use probe::{Probe, Stage};
/// The library, for callers that implement their own log.
pub use raft;
pub use sessions::COMMANDS_PER_SESSION_MAX;
