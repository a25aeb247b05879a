//! Distributed transactions: FaSST's protocol (Kalia et al., OSDI 2016; thesis, chapter 5) over Dunlin's RPCs.
//!
//! Serializable transactions over partitioned and replicated tables in memory: optimistic concurrency control,
//! two-phase commit and primary-backup replication, with two-sided RPCs only.
//!
//! - A [`Participant`] is one core of one node. It owns copies of partitions and a log. No other thread touches them.
//! - A [`Client`] coordinates transactions, beside a participant or remote from all of them.
//! - Committed transactions survive the loss of any f of the f + 1 copies. The f + 1 log replicas belong to the
//!   coordinator, whatever partitions it writes.
//! - Transactions are strictly serializable: they appear to run one at a time, in an order that agrees with real time.
//!   Reads of absent keys and of ranges are covered. No transaction waits for a lock, so there are no deadlocks: a conflict aborts,
//!   and the client runs it again.
//! - Every message carries its epoch. After a failure, recovery uses the logs to decide each transaction of earlier
//!   epochs.
//!
//! - [`node`] makes it a service: a cluster manager knows the members and where partitions have their copies; members
//!   that fail are replaced, and new copies are filled.
//!
//! Start reading at [`client`], then `transaction/rounds.rs` (the messages of each phase) and `participant/execute.rs`.
#![forbid(unsafe_code)]

pub mod client;
pub mod configuration;
pub mod error;
pub mod ids;
pub mod limits;
mod log;
#[cfg(feature = "mutations")]
pub mod mutation;
#[cfg(not(feature = "mutations"))]
mod mutation;
pub mod node;
pub mod participant;
mod partition;
mod service;
mod transaction;
pub mod wire;

pub use client::{Client, ClientConfig, ClientStats, Outcome, Recovered, RetryPolicy, Transaction};
pub use configuration::{Configuration, ConfigurationError, Keys, Member, Plan, Role, Table};
pub use dunlin_index::{Gap, Range};
pub use error::TxnError;
pub use ids::{Epoch, NodeId, PartitionId, Place, TableId, TransactionId, Version};
pub use limits::{Limits, RecoverySlice};
pub use participant::{CopyState, NotTaken, Participant, ParticipantStats};
pub use partition::PartitionStats;
pub use service::serve;
pub use transaction::{Coalescing, Mode};
