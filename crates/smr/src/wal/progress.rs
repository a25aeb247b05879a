//! How far the writer is, and snapshots that are handed to it.

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
    /// So many snapshots are on the disk when it is.
    number: u64,
}

impl<D: Disk> Wal<D> {
    /// All up to this ticket is on the disk. While there is a [`Wal::failure`] it does not advance.
    pub fn durable(&self) -> Ticket {
        Ticket(self.shared.durable())
    }

    /// Why nothing will be durable any more.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failure()
    }

    /// Who is woken each time when more is durable, or the log has failed: a task of the owner's event loop. Any thread may wake it.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.shared.set_waker(waker);
    }

    /// Whether a batch would be taken now, as far as what waits for the disk matters.
    pub fn has_room(&self) -> bool {
        self.unflushed() <= self.config.unflushed_bytes_max
    }

    /// Whether the segments have all the bytes they may: entries are refused until a compaction.
    pub fn is_full(&self) -> bool {
        let is_full = self.bytes() > self.config.log_bytes_max;
        self.shared.note_full(is_full);
        is_full
    }

    /// Bytes that were submitted and wait for the disk.
    pub fn unflushed(&self) -> usize {
        self.shared.unflushed()
    }

    /// The number of what the disk does now, a write and a flush; `None` if it has nothing to do. As long as this is the same, nothing has ended: the owner,
    /// who has a clock, tells by it whether the disk hangs.
    pub fn under_way(&self) -> Option<u64> {
        self.shared.under_way()
    }

    /// What writes and flushes, if that is no thread ([`super::open_stepped`]).
    pub fn stepper(&self) -> Option<Stepper<D>> {
        match &self.inner().driver {
            Driver::Threaded { .. } => None,
            Driver::Stepped(stepper) => Some(stepper.clone()),
        }
    }

    /// Sleeps until all that was submitted is durable. A log without a thread flushes at once instead.
    ///
    /// # Errors
    /// [`Failure`] if it will never be.
    pub fn wait(&mut self) -> Result<(), Failure> {
        self.step_to_the_end();
        let sequence = self.inner().sequence;
        self.shared.wait(|shared| shared.durable() >= sequence)
    }

    /// Hands over a snapshot that ends with the entry at `position`; `about` is as for [`super::SnapshotWriter::create`]. It is written in pieces between flushes of
    /// the log. When it is on the disk, [`Wal::take_written_snapshot`] says so, and whoever waits is woken; that it failed is a [`Wal::failure`].
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

    /// The snapshot that was handed over, once, when it is on the disk: now [`Wal::compact`] or [`Wal::reset`] may refer to it, and another may be handed over.
    pub fn take_written_snapshot(&mut self) -> Option<Position> {
        let snapshots = self.shared.snapshots();
        self.snapshot.take_if(|handed| handed.number <= snapshots).map(|handed| handed.position)
    }

    /// Has the file of a snapshot removed that was handed over and is on the disk, and to which neither
    /// [`Wal::compact`] nor [`Wal::reset`] refers.
    pub fn discard_snapshot(&mut self, position: Position) {
        debug_assert_ne!(self.compaction().snapshot, position, "the log begins with it");
        self.shared.add_orphan(snapshot_name(self.group, position));
    }

    /// Sleeps until the snapshot that was handed over is on the disk, and gives it; nothing if there is none. A log without a thread writes it at once.
    ///
    /// # Errors
    /// [`Failure`] if it will never be.
    pub fn wait_for_snapshot(&mut self) -> Result<Option<Position>, Failure> {
        let Some(number) = self.snapshot.as_ref().map(|handed| handed.number) else { return Ok(None) };
        self.step_to_the_end();
        self.shared.wait(|shared| shared.snapshots() >= number)?;
        Ok(self.take_written_snapshot())
    }

    fn step_to_the_end(&self) {
        if let Some(stepper) = self.stepper() {
            // Nothing is later.
            stepper.step(u64::MAX);
        }
    }
}
