//! memcached's text protocol and meta commands, for clients that know no other.
//!
//! Bytes are parsed where they were read ([`parse`]), up to 32 operations at a time run as a burst on the partition of the core
//! (`execute`), and the answers of everything that was read leave with one write. Keys that other cores own travel to them in a [`Batch`].
//! The protocol is a state machine without I/O ([`Session`]); what it asks of the thread it runs on is the trait [`Backend`].
//!
//! | To serve | Use |
//! |---|---|
//! | listen, and deal connections to cores | [`Acceptor`], which gives each [`Socket`] to a core's [`Service::adopt`] |
//! | a core | a [`Backend`] in a [`Service`], on a tokio current-thread runtime with a `LocalSet` |
//! | what another core forwarded | [`Batch::run`] on the partition until it is [`Ran::Over`], with other tasks in between; then give the batch back |
//! | numbers | [`CoreState::report`] |
//!
//! Answers are those of memcached 1.6.45, byte for byte, but where `execute` says otherwise; of what it has and this has not (slabs, an LRU
//! crawler, watchers, changing the memory) the commands are refused in its words. Limits stand in [`limits`].

mod backend;
mod batch;
mod budget;
mod buffers;
mod connection;
mod connections;
mod counters;
mod dump;
mod execute;
mod hosts;
pub mod limits;
mod lookout;
mod number;
pub mod parse;
mod service;
mod session;
mod single;
mod socket;
mod stats;
mod turn;

pub use backend::{Backend, CoreState, FlushTime, Inquiry, Report, Unavailable};
pub(crate) use backend::{has_stalled, wait_for_turn};
pub use batch::{Batch, Ran};
pub use budget::{CONNECTION_BYTES_DEFAULT, CORE_BYTES_MIN, HOLD_SECONDS_MAX};
pub use connections::{Activity, ConnectionReport, Connections};
pub use counters::{COUNTS, Count, Counters, Counts};
pub use dump::{DumpPart, DumpRest};
pub use lookout::LOOK_DEFAULT;
pub use service::{Service, Settings};
pub use session::{Progress, Session};
pub use single::{Conversation, Single};
pub use socket::{Acceptor, ConnectionLimit, Listen, ListenError, Socket};

/// What `version` answers: the memcached whose protocol is spoken, and who speaks.
pub const VERSION: &str = concat!("1.6.45-dunlin-", env!("CARGO_PKG_VERSION"));
