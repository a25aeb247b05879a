//! The storage of a replica's log, vote and snapshot.
//!
//! The library reads through [`raft::Storage`]; a replica writes through [`LogStore`]. A write can be read at once, and
//! is durable later: each write has a [`Ticket`], and the store reports the ticket up to which all writes are durable.
//! So many proposals share one flush while the replica goes on. Messages that depend on durability, such as a vote or
//! the acknowledgement of an entry, are held back until then.

mod durable;
mod memory;

use std::task::Waker;

use raft::Storage;
use raft::eraftpb::{Entry, HardState, Snapshot};

pub use durable::{DurableLog, OpenError};
pub use memory::MemoryLog;

/// A write, by order: writes with lower tickets come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// Parts that are written together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Replaces the whole log, before the other parts apply.
    pub snapshot: Option<Snapshot>,
    /// Consecutive entries. They replace the log from the first of them on.
    pub entries: Vec<Entry>,
    /// Term, vote and commit index.
    pub hard_state: Option<HardState>,
    /// Whether the replica waits until the batch is durable. If not, it may be written together with a later one.
    pub urgency: Urgency,
}

/// Whether the replica waits until a batch is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// No: the batch may be lost in a crash.
    #[default]
    Lazy,
    /// Yes: the batch is to be durable soon.
    Urgent,
}

/// Whether a log takes entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Free,
    /// The disk is far behind: not until more is durable.
    Behind,
    /// The log has reached its maximum length: not until it is compacted.
    Full,
}

impl Batch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.entries.is_empty() && self.hard_state.is_none()
    }
}

/// A write or a flush failed. The contents of the disk are no longer known: the replica stops for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log cannot be written: {why}")]
pub struct LogError {
    /// The failure, and where it occurred.
    pub why: String,
}

/// A writable log, owned by one replica.
///
/// A store that was never written to is empty: [`raft::Storage::initial_state`] returns defaults. The replica then
/// begins with a snapshot that is identical for all first members of a cluster, or waits for one from a leader.
pub trait LogStore: Storage {
    /// Whether the log takes entries. The caller checks this before it admits entries; [`LogStore::append`] takes what
    /// was admitted without waiting, and rejects nothing for lack of room.
    fn room(&self) -> Room {
        Room::Free
    }

    /// Writes a batch. It can be read from now on; it is durable when [`LogStore::durable`] says so.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn append(&mut self, batch: Batch) -> Result<Ticket, LogError>;

    /// Begins with the snapshot that is identical for all first members of a cluster. A log may store only that it
    /// begins with it. If so, [`LogStore::base`] is empty when the log is opened again; this method is then called with
    /// the same snapshot, and the other contents stay.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn found(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        self.append(batch)
    }

    /// Returns the ticket up to which all writes are durable; completes a compaction whose snapshot is durable. Does
    /// not wait.
    ///
    /// # Errors
    /// [`LogError`] if a write or a flush failed, which is final.
    fn durable(&mut self) -> Result<Ticket, LogError>;

    /// Begins to write a snapshot from a leader to the disk, ahead of the batch that contains it, which then need not
    /// wait. Not while [`LogStore::is_compacting`]; one at a time; and of a later entry than the snapshot that the log
    /// begins with. Its completion wakes the waker like that of a write.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn stage(&mut self, _snapshot: &Snapshot) -> Result<(), LogError> {
        Ok(())
    }

    /// Whether the staged snapshot is durable, as of the last [`LogStore::durable`].
    fn is_staged(&self) -> bool {
        true
    }

    /// Drops the staged snapshot: no batch will contain it.
    fn unstage(&mut self) {}

    /// Returns the number of the disk's current operation; `None` if the disk is idle. As long as the number is the
    /// same, no operation has ended.
    fn under_way(&self) -> Option<u64> {
        None
    }

    /// Returns the group that keeps a long shared log from getting shorter: a snapshot of that group makes room.
    fn held_by(&self) -> Option<u16> {
        None
    }

    /// Whether a write takes time to become durable.
    fn flushes(&self) -> bool;

    /// Wakes this waker, once, when [`LogStore::durable`] advances or fails.
    fn wake_when_durable(&mut self, waker: &Waker);

    /// Keeps a snapshot of the state as of an executed entry, in place of the previous one, and forgets entries before
    /// `keep_from`, which is at most one past the snapshot's entry. Both take effect when the snapshot is durable: in a
    /// later [`LogStore::durable`], or now if there is nothing to wait for. Its completion wakes the waker like that of
    /// a write.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    ///
    /// # Panics
    /// If a compaction is under way.
    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> Result<(), LogError>;

    /// Forgets the entries that were kept although [`LogStore::base`] covers them. Not while
    /// [`LogStore::is_compacting`], nor while a snapshot is staged. A log in memory, which shares no log with other
    /// groups, may keep them.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn forget_kept(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Whether a snapshot given to [`LogStore::compact`] is not durable yet.
    fn is_compacting(&self) -> bool;

    /// Returns the bytes of the state in that snapshot; 0 if there is none.
    fn compacting_bytes(&self) -> u64 {
        0
    }

    /// Waits until everything is durable, and marks the log as cleanly closed: nothing is missing at its end. For the
    /// end of the replica.
    ///
    /// # Errors
    /// [`LogError`] if something is not durable and never will be.
    fn close(&mut self) -> Result<(), LogError>;

    /// Returns the snapshot that the log begins with; empty if there is none.
    fn base(&self) -> &Snapshot;

    /// Returns the bytes of its entries, approximately.
    fn entry_bytes(&self) -> u64;

    /// Returns the first of the entries up to `last` that together take at most this many bytes, as
    /// [`LogStore::entry_bytes`] counts; the one after `last` if that alone takes more.
    fn first_within(&self, last: u64, bytes: u64) -> u64;
}
