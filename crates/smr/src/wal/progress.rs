//! The writer's progress, and handing snapshots to it.

use std::task::Waker;

use bytes::Bytes;

use super::commit::Stepper;
use super::disk::Disk;
use super::error::Failure;
use super::job::Source;
use super::log::{Driver, Ticket, Wal};
use super::record::Position;
use super::snapshot::snapshot_name;

/// A snapshot that the writer has.
#[derive(Debug)]
pub struct Handed {
    position: Position,
    /// When this many snapshots are durable, it is one of them.
    number: u64,
}

impl<D: Disk> Wal<D> {
    /// Returns the ticket up to which everything is durable. After a [`Wal::failure`] it does not advance.
    pub fn durable(&self) -> Ticket {
        Ticket(self.shared.durable())
    }

    /// Returns why nothing more will be durable.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failure()
    }

    /// Sets the waker to wake each time more is durable, or when the log has failed: a task of the owner's event loop.
    /// Any thread may wake it.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.shared.set_waker(waker);
    }

    /// Whether a batch would be accepted now, as far as the amount waiting for the disk is concerned.
    pub fn has_room(&self) -> bool {
        self.unflushed() <= self.config.unflushed_bytes_max
    }

    /// Whether the segments are at their limit in bytes: entries are rejected until a compaction.
    pub fn is_full(&self) -> bool {
        let is_full = self.bytes() > self.config.log_bytes_max;
        self.shared.note_full(is_full);
        is_full
    }

    /// Returns the bytes that were submitted and wait for the disk.
    pub fn unflushed(&self) -> usize {
        self.shared.unflushed()
    }

    /// Returns the number of the disk's current operation, a write and a flush; `None` if the disk is idle. As long as
    /// this is the same, no operation has ended: the owner, which has a clock, uses it to detect a hung disk.
    pub fn under_way(&self) -> Option<u64> {
        self.shared.under_way()
    }

    /// Returns what writes and flushes, if that is not a thread ([`super::open_stepped`]).
    pub fn stepper(&self) -> Option<Stepper<D>> {
        match &self.inner().driver {
            Driver::Threaded { .. } => None,
            Driver::Stepped(stepper) => Some(stepper.clone()),
        }
    }

    /// Sleeps until everything submitted is durable. A log without a thread flushes at once instead.
    ///
    /// # Errors
    /// [`Failure`] if it never will be.
    pub fn wait(&mut self) -> Result<(), Failure> {
        self.step_to_the_end();
        let sequence = self.inner().sequence;
        self.shared.wait(|shared| shared.durable() >= sequence)
    }

    /// Hands over a snapshot that ends with the entry at `position`; `about` is as for
    /// [`super::SnapshotWriter::create`]. It is written in pieces between flushes of the log. When it is durable,
    /// [`Wal::take_written_snapshot`] returns it, and waiters are woken; an error is a [`Wal::failure`].
    ///
    /// # Panics
    /// If one of this group is under way. Those of several groups are written one after the other.
    pub fn write_snapshot(&mut self, position: Position, about: Vec<u8>, data: Bytes) {
        assert!(self.snapshot.is_none(), "one snapshot is written at a time");
        let number = self.inner().next_snapshot();
        self.snapshot = Some(Handed { position, number });
        let piece_bytes = self.config.snapshot_piece_bytes;
        self.shared.add_snapshot(Source { part: self.part(), position, about, data, piece_bytes });
    }

    /// Returns the handed-over snapshot, once, when it is durable: now [`Wal::compact`] or [`Wal::reset`] may refer to
    /// it, and another may be handed over.
    pub fn take_written_snapshot(&mut self) -> Option<Position> {
        let snapshots = self.shared.snapshots();
        self.snapshot.take_if(|handed| handed.number <= snapshots).map(|handed| handed.position)
    }

    /// Has the file of a durable, handed-over snapshot removed that neither [`Wal::compact`] nor [`Wal::reset`] refers
    /// to.
    pub fn discard_snapshot(&mut self, position: Position) {
        debug_assert_ne!(self.compaction().snapshot, position, "the log begins with it");
        self.shared.add_orphan(snapshot_name(self.group, position));
    }

    /// Sleeps until the handed-over snapshot is durable, and returns it; `None` if there is none. A log without a
    /// thread writes it at once.
    ///
    /// # Errors
    /// [`Failure`] if it never will be.
    pub fn wait_for_snapshot(&mut self) -> Result<Option<Position>, Failure> {
        let Some(number) = self.snapshot.as_ref().map(|handed| handed.number) else { return Ok(None) };
        self.step_to_the_end();
        self.shared.wait(|shared| shared.snapshots() >= number)?;
        Ok(self.take_written_snapshot())
    }

    fn step_to_the_end(&self) {
        if let Some(stepper) = self.stepper() {
            stepper.step_to_the_end();
        }
    }
}
