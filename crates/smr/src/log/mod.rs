//! Where a replica keeps its log, its vote and its snapshot.
//!
//! The library reads through [`raft::Storage`]; a replica writes through [`LogStore`]. What is written can be read at once, and is durable later:
//! each write has a [`Ticket`], and the store says up to which ticket all is durable. So many proposals share one flush, and the replica
//! goes on meanwhile. What depends on it, a vote or the word that a replica has an entry, is held back until it is.

mod durable;
mod memory;

use std::task::Waker;

use raft::Storage;
use raft::eraftpb::{Entry, HardState, Snapshot};

pub use durable::{DurableLog, OpenError};
pub use memory::MemoryLog;

/// A write, by its order: what has a lower one was written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// What is written together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Replaces the whole log, and comes before all else.
    pub snapshot: Option<Snapshot>,
    /// Entries that follow each other. They replace what the log had from the first of them on.
    pub entries: Vec<Entry>,
    /// Term, vote, and how far the log is committed.
    pub hard_state: Option<HardState>,
    /// Whether somebody waits until it is durable. If not, it may be written when something else is.
    pub urgency: Urgency,
}

/// Whether somebody waits until a batch is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// Nobody: it may be lost in a crash.
    #[default]
    Lazy,
    /// It is to be durable soon.
    Urgent,
}

/// Whether a log takes entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It does.
    Free,
    /// The disk is far behind: not before more is durable.
    Behind,
    /// It is as long as it may be: not before it is compacted.
    Full,
}

impl Batch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.entries.is_empty() && self.hard_state.is_none()
    }
}

/// A write failed, or a flush. What is on disk is not known any more: the replica stops for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log cannot be written: {why}")]
pub struct LogError {
    /// What went wrong, and where.
    pub why: String,
}

/// A log that can be written. It is owned by the replica alone.
///
/// A store that was never written to is empty: [`raft::Storage::initial_state`] gives defaults. Then the replica begins with a snapshot that all first
/// members of a cluster make alike, or waits for one from a leader.
pub trait LogStore: Storage {
    /// Whether entries may come. Whoever lets entries in asks before; [`LogStore::append`] takes what was let in, does not wait, and refuses nothing for this.
    fn room(&self) -> Room {
        Room::Free
    }

    /// Writes a batch. From now on it can be read; it is durable when [`LogStore::durable`] says so.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn append(&mut self, batch: Batch) -> Result<Ticket, LogError>;

    /// Begins with the snapshot that all first members of a cluster make alike. A log may keep no more of that than that
    /// it begins with it. Then [`LogStore::base`] is empty when it is opened again, it is given the same snapshot in this
    /// way, and what it has besides stays.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn found(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        self.append(batch)
    }

    /// Up to which write all is durable; ends a compaction whose snapshot is durable. Does not wait.
    ///
    /// # Errors
    /// [`LogError`] if a write or a flush failed, which is final.
    fn durable(&mut self) -> Result<Ticket, LogError>;

    /// Begins to bring a snapshot from a leader to the disk, before the batch that has it: that one does not wait for it then. Not while
    /// [`LogStore::is_compacting`], one at a time, and of a later entry than the snapshot that the log begins with.
    /// Whoever is to be woken when it is there is told as of a write.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn stage(&mut self, _snapshot: &Snapshot) -> Result<(), LogError> {
        Ok(())
    }

    /// Whether the snapshot that was staged is durable, as the last [`LogStore::durable`] found.
    fn is_staged(&self) -> bool {
        true
    }

    /// No batch will have the snapshot that was staged.
    fn unstage(&mut self) {}

    /// The number of what the disk does now; `None` if it has nothing to do. As long as this is the same, nothing has ended.
    fn under_way(&self) -> Option<u64> {
        None
    }

    /// The group that keeps a log that several share from getting shorter, if that log is long: a snapshot of that group makes room.
    fn held_by(&self) -> Option<u16> {
        None
    }

    /// Whether it takes time until a write is durable.
    fn flushes(&self) -> bool;

    /// Wakes this one, once, when [`LogStore::durable`] says more than before, or fails.
    fn wake_when_durable(&mut self, waker: &Waker);

    /// Keeps a snapshot of the state as of an entry that was applied, instead of the one before, and forgets entries before `keep_from`, which
    /// is not behind the entry after that of the snapshot. Both happen when the snapshot is durable, in a later [`LogStore::durable`], or now if nothing has to be
    /// waited for. Whoever is to be woken then is told as of a write.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    ///
    /// # Panics
    /// If one is under way.
    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> Result<(), LogError>;

    /// Forgets the entries that were kept although [`LogStore::base`] has them. Not while [`LogStore::is_compacting`], nor
    /// while a snapshot is staged. A log in memory, which holds nothing for others, may keep them.
    ///
    /// # Errors
    /// [`LogError`], which is final.
    fn forget_kept(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Whether a snapshot was given to [`LogStore::compact`] that is not durable yet.
    fn is_compacting(&self) -> bool;

    /// Bytes of the state in that snapshot; 0 if there is none.
    fn compacting_bytes(&self) -> u64 {
        0
    }

    /// Waits until all is durable, and marks that it is: nothing is missing at the end of a log that was closed. For the end of the replica.
    ///
    /// # Errors
    /// [`LogError`] if it is not, and never will be.
    fn close(&mut self) -> Result<(), LogError>;

    /// The snapshot that the log begins with; empty if there is none.
    fn base(&self) -> &Snapshot;

    /// Bytes of the entries that it has, about.
    fn entry_bytes(&self) -> u64;

    /// The first of the entries up to `last` that together take at most so many bytes, as [`LogStore::entry_bytes`] counts; the one after `last` if that alone
    /// takes more.
    fn first_within(&self, last: u64, bytes: u64) -> u64;
}
