//! The cluster manager: membership, failure detection, leases, and a small configuration tree that can be watched.
//!
//! It does what Assise needs ZooKeeper for (Reda 2022, chapter 5: members, heartbeats, epochs, the map of subtrees to
//! replicas) and what recovery of transactions needs (FaSST, section 6: configurations with epochs). It is never on the
//! data path.
//!
//! - **Members** join, send heartbeats, and leave. A member that is not heard for the failure timeout is marked as
//!   failed, and must join again. Each answer says until when the member may work as one, by its own clock;
//!   [`Standing`] makes the data plane stop by then.
//! - **The epoch** rises whenever the set of live members changes: with failures and with recoveries.
//! - **Leases** are held by one member at a time. Each grant has a *fencing token* higher than all earlier ones: the
//!   guard of a resource refuses tokens below the highest that it has seen.
//! - **The tree** holds small values under paths, with versions for conditional changes.
//! - **A transaction** compares epoch, leases and versions, and makes all of its changes to the tree, or none.
//! - Each event has a *revision*, and can be watched from any revision that is not too old.
//!
//! One trait, [`Coordinator`], and two back ends: [`embedded`] keeps all of it in a replicated state machine of three
//! nodes or one ([`dunlin_smr`]); `etcd`, behind the feature of that name, keeps it in an existing etcd.
//!
//! **Clocks of different machines are never compared.** [`model`] argues why that works. Start reading there, then at
//! [`coordinator`]; `docs/coordination.md` is the guide for users.
#![forbid(unsafe_code)]

mod campaign;
pub mod conformance;
pub mod coordinator;
mod either;
pub mod embedded;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod limits;
pub mod model;
#[doc(hidden)]
pub mod mutation;
mod path;
mod standing;
mod transaction;
mod types;
mod watchman;
pub mod wire;

pub use campaign::{Leadership, Mandate, campaign, campaign_as, campaign_until, keep, with_deadline};
pub use coordinator::{Coordinator, HEARTBEAT_EVERY, Watch, attend, heartbeat_every, join_after_leases};
pub use error::CoordError;
pub use limits::{LEASE_TTL_MAX, LEASE_TTL_MIN, Limits};
pub use path::{PATH_BYTES_MAX, check_path};
pub use standing::{NotSafe, Standing};
pub use transaction::{
    Compare, TRANSACTION_BYTES_MAX, TRANSACTION_COMPARES_MAX, TRANSACTION_WRITES_MAX, Transaction, Write,
};
pub use types::{
    Changes, Condition, Entry, EpochChange, Epochs, Event, Happening, Health, Heartbeat, HeldLease, Holder,
    Incarnation, Joined, Lease, Leases, Listing, Member, MemberId, Members, Membership, Revision, Scope, Token,
    VIEW_BYTES_MAX, View,
};
pub use watchman::{WatchmanConfig, WatchmanCounters};
