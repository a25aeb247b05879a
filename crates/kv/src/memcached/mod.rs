//! memcached's text protocol and meta commands, for existing memcached clients.
//!
//! Bytes are parsed where they were read ([`parse`]), up to 32 operations at a time run as a burst on the partition of
//! the core (`execute`), and the answers to everything that was read leave with one write. Commands for keys of other
//! cores are sent to them in a [`Batch`]. The protocol is a state machine without I/O ([`Session`]); the trait
//! [`Backend`] is what it needs from its thread.
//!
//! | To serve | Use |
//! |---|---|
//! | listen, assign connections to cores | [`Acceptor`], which gives each [`Socket`] to a core's [`Service::adopt`] |
//! | a core | a [`Backend`] in a [`Service`], on a tokio current-thread runtime with a `LocalSet` |
//! | commands forwarded by another core | [`Batch::run`] on the partition until it is [`Ran::Over`], with other tasks or a turn of the core in between; then return the batch |
//! | a cluster instead of a partition | a [`Forwarder`] |
//! | statistics | [`CoreState::report`] |
//!
//! Answers are those of memcached 1.6.45, byte for byte, unless `execute` says otherwise. Commands for features that
//! this server lacks (slabs, an LRU crawler, watchers, changing the memory) are rejected in memcached's words.
//! [`limits`] has the limits.

mod backend;
mod batch;
mod budget;
mod buffers;
mod client;
mod connection;
mod connections;
mod counters;
mod dump;
mod execute;
mod forward;
mod hosts;
pub mod limits;
mod lookout;
mod number;
mod output;
pub mod parse;
mod room;
mod service;
mod session;
mod single;
mod socket;
mod stats;
mod talk;
mod turn;

pub use backend::{Backend, CoreState, FlushTime, Inquiry, Report, Unavailable};
pub(crate) use backend::{STALL_WAIT, wait_for_turn};
pub use batch::{Batch, Ran};
pub(crate) use budget::{Account, Held, Pool as MemoryPool};
pub use budget::{CONNECTION_BYTES_DEFAULT, CORE_BYTES_MIN, HOLD_SECONDS_MAX};
pub use connections::{Activity, ConnectionReport, Connections};
pub use counters::{COUNTS, Count, Counters, Counts};
pub use dump::{DumpPart, DumpRest};
pub use forward::{FORWARD_BYTES_DEFAULT, Forwarder, KEYS_AT_ONCE};
pub(crate) use hosts::HostName;
pub use lookout::LOOK_DEFAULT;
pub use service::{Service, Settings};
pub use session::{Progress, Session};
pub use single::{Conversation, Single};
pub use socket::{Acceptor, ConnectionLimit, Listen, ListenError, Socket};

/// The answer to `version`: the memcached version whose protocol is implemented, and this implementation.
pub const VERSION: &str = concat!("1.6.45-dunlin-", env!("CARGO_PKG_VERSION"));
