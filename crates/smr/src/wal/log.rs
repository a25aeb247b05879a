//! The log as its owner uses it.

use std::sync::Arc;

use super::commit::{Shared, Stepper, Threaded};
use super::config::WalConfig;
use super::disk::Disk;
use super::error::{AppendError, Failure, Misplaced, WalError};
use super::format::{
    ENTRY_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, frame_bytes,
};
use super::progress::Handed;
use super::read::Reader;
use super::record::{BASE_BYTES, Compaction, ENTRY_HEADER_BYTES, Entry, HardState, Position, Record};
use super::segment::segment_name;
use super::segments::Segments;
use super::snapshot::snapshot_name;
use super::state::{LogState, Slot};
use super::work::Task;

/// Names what was submitted: when [`Wal::durable`] is no less, it is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// It as a number, which rises with each batch, not always by one.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The log of one node. Changes are collected, and become a batch by [`Wal::submit`]; a crash leaves whole batches, in order.
///
/// It belongs to one thread. What it holds ([`Wal::last`], [`Wal::hard_state`] and so on) is what was appended, durable or not.
#[derive(Debug)]
pub struct Wal<D: Disk> {
    pub(super) config: WalConfig,
    pub(super) log: u64,
    state: LogState,
    /// The frame that is being collected: space for its header, then records. Empty if there are none.
    frame: Vec<u8>,
    /// The first entry in it.
    frame_entries: Option<u64>,
    /// Files that are not needed when the frame is durable.
    obsolete: Vec<String>,
    segments: Segments,
    /// The sequence number of the last frame.
    pub(super) sequence: u64,
    /// The snapshot that the writer has.
    pub(super) snapshot: Option<Handed>,
    pub(super) shared: Arc<Shared>,
    pub(super) driver: Driver<D>,
    reader: Reader<D>,
}

/// Who writes.
#[derive(Debug)]
pub(super) enum Driver<D: Disk> {
    /// A thread, which lives as long as this.
    Threaded { _thread: Threaded },
    /// Whoever has the stepper.
    Stepped(Stepper<D>),
}

/// What a log is made of when it is opened.
#[derive(Debug)]
pub(super) struct Parts<D: Disk> {
    pub config: WalConfig,
    pub disk: D,
    pub log: u64,
    pub state: LogState,
    pub segments: Segments,
    pub sequence: u64,
    pub shared: Arc<Shared>,
    pub driver: Driver<D>,
}

impl<D: Disk> Wal<D> {
    pub(super) fn new(parts: Parts<D>) -> Wal<D> {
        Wal {
            config: parts.config,
            log: parts.log,
            state: parts.state,
            frame: Vec::new(),
            frame_entries: None,
            obsolete: Vec::new(),
            segments: parts.segments,
            sequence: parts.sequence,
            snapshot: None,
            shared: parts.shared,
            driver: parts.driver,
            reader: Reader::new(parts.disk),
        }
    }

    /// Adds an entry behind the last.
    ///
    /// A batch that would have more than [`FRAME_BYTES_MAX`] is submitted first, and another begins: a crash may leave the first and not the second.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was changed.
    pub fn append(&mut self, entry: Entry<'_>) -> Result<(), AppendError> {
        let unflushed = self.unflushed();
        if self.frame.is_empty() && unflushed > self.config.unflushed_bytes_max {
            return Err(AppendError::Behind { bytes: unflushed });
        }
        if self.is_full() {
            return Err(AppendError::Full { bytes: self.segments.bytes });
        }
        self.append_admitted(entry)
    }

    /// As [`Wal::append`], for an entry that its owner let in while there was room ([`Wal::has_room`], [`Wal::is_full`]) and cannot take back: the limits
    /// are the owner's to keep.
    ///
    /// # Errors
    /// [`AppendError`], but neither `Behind` nor `Full`; nothing was changed.
    pub fn append_admitted(&mut self, entry: Entry<'_>) -> Result<(), AppendError> {
        if entry.payload.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLong { bytes: entry.payload.len() });
        }
        self.state.check_entry(entry.index, entry.term)?;
        let record = Record::Entry(entry);
        self.start(record.bytes())?;
        let slot = Slot {
            term: entry.term,
            segment: Slot::STAGED,
            offset: (self.frame.len() + ENTRY_HEADER_BYTES) as u32,
            payload_bytes: entry.payload.len() as u32,
            checksum: crc32c::crc32c(entry.payload),
            kind: entry.kind,
        };
        record.write(&mut self.frame);
        self.frame_entries.get_or_insert(entry.index);
        Ok(self.state.append(entry.index, slot)?)
    }

    /// Sets the hard state.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was changed.
    pub fn set_hard_state(&mut self, hard_state: HardState) -> Result<(), AppendError> {
        self.record(Record::HardState(hard_state))?;
        self.state.set_hard_state(hard_state);
        Ok(())
    }

    /// Drops the entries from `from` on, for others to come in their place.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was changed.
    pub fn truncate(&mut self, from: u64) -> Result<(), AppendError> {
        let index = from.checked_sub(1).ok_or(Misplaced("entries are numbered from 1"))?;
        let term = self.state.term(index).ok_or(Misplaced("entries cannot be truncated that are in a snapshot"))?;
        let last = Position { index, term };
        self.state.check_truncate(last)?;
        self.record(Record::Truncate(last))?;
        self.frame_entries = self.frame_entries.filter(|first| *first < from);
        Ok(self.state.truncate(last)?)
    }

    /// Drops the entries up to `up_to`, which are in the snapshot that ends with `snapshot`. That snapshot must be on the disk
    /// ([`Wal::take_written_snapshot`], [`super::SnapshotWriter::finish`]). Segments and snapshots that are needed no more are removed when the record of this is durable.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was changed.
    pub fn compact(&mut self, snapshot: Position, up_to: u64) -> Result<(), AppendError> {
        let term = self.state.term(up_to).ok_or(Misplaced("entries cannot be compacted that are not there"))?;
        let compaction = Compaction { snapshot, compacted: Position { index: up_to, term } };
        self.state.check_compact(compaction)?;
        let before = self.state.base().compaction.snapshot;
        self.record(Record::Compact(compaction))?;
        self.state.compact(compaction)?;
        self.replaced(before, snapshot);
        Ok(())
    }

    /// Drops all entries: the log goes on behind the entry with which `snapshot` ends. That snapshot, which came from another node, must be on the
    /// disk ([`Wal::take_written_snapshot`], [`super::SnapshotWriter::finish`]).
    ///
    /// # Errors
    /// [`AppendError`]; nothing was changed.
    pub fn reset(&mut self, snapshot: Position) -> Result<(), AppendError> {
        self.state.check_reset(snapshot)?;
        let before = self.state.base().compaction.snapshot;
        self.record(Record::Reset(snapshot))?;
        self.frame_entries = None;
        self.state.reset(snapshot)?;
        self.replaced(before, snapshot);
        Ok(())
    }

    fn replaced(&mut self, before: Position, by: Position) {
        if before.index > 0 && before != by {
            self.obsolete.push(snapshot_name(before));
        }
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), AppendError> {
        self.start(record.bytes())?;
        record.write(&mut self.frame);
        Ok(())
    }

    /// Makes place in the frame, or begins one.
    fn start(&mut self, bytes: usize) -> Result<(), AppendError> {
        if let Some(failure) = self.shared.failure() {
            return Err(failure.clone().into());
        }
        if self.frame.len() + bytes > FRAME_HEADER_BYTES + FRAME_BYTES_MAX {
            self.submit();
        }
        if self.frame.is_empty() {
            self.frame.resize(FRAME_HEADER_BYTES, 0);
        }
        Ok(())
    }

    /// Makes a batch of all changes since the last time, and hands it to the writer. Gives the ticket of the last batch, if there was nothing.
    pub fn submit(&mut self) -> Ticket {
        if !self.frame.is_empty() {
            self.send();
        }
        Ticket(self.sequence)
    }

    /// Gives the frame its place, in a new segment if the last one is full.
    fn send(&mut self) {
        let mut frame = std::mem::take(&mut self.frame);
        let len = frame_bytes(frame.len() - FRAME_HEADER_BYTES);
        let (number, bytes) = self.segments.current();
        let roll = (self.segments.end as usize + len > bytes as usize).then(|| {
            self.sequence += 1;
            let least = SEGMENT_HEADER_BYTES + frame_bytes(BASE_BYTES) + len;
            let file_bytes = self.config.segment_bytes.max(least as u32);
            self.segments.roll(number + 1, file_bytes);
            SegmentHeader {
                log: self.log,
                owner: self.config.owner,
                number: number + 1,
                sequence: self.sequence,
                file_bytes,
            }
        });
        self.sequence += 1;
        // The segment begins with the state before this frame.
        let (sequence, end, base) = (self.sequence, self.segments.end, self.segments.base);
        self.shared.add(|work| {
            if let Some(header) = roll {
                work.tasks.push(Task::Roll(header));
                work.push(&frame_of(&Record::Base(base)), SEGMENT_HEADER_BYTES as u32, header.sequence);
            }
            work.push(&frame, end, sequence);
        });
        if let Some(first) = self.frame_entries.take() {
            self.state.place(first, self.segments.current().0, end);
        }
        self.segments.end += len as u32;
        self.segments.base = self.state.base();
        frame.clear();
        self.frame = frame;
        self.remove_obsolete();
    }

    /// Tells the writer what it may remove when all that was submitted is durable.
    fn remove_obsolete(&mut self) {
        let first = self.state.first_segment().unwrap_or(self.segments.current().0);
        while let Some((number, bytes)) = self.segments.all.front().copied()
            && number < first
        {
            self.segments.all.pop_front();
            self.segments.bytes -= u64::from(bytes);
            self.reader.forget(number);
            self.obsolete.push(segment_name(number));
        }
        if !self.obsolete.is_empty() {
            let names = std::mem::take(&mut self.obsolete);
            self.shared.add(|work| work.tasks.push(Task::Remove(names)));
        }
    }

    /// Brings all to the disk, and a mark that all was there, so that the next opening can tell damage in the last batches from a crash.
    ///
    /// # Errors
    /// [`Failure`] if it could not.
    pub fn close(mut self) -> Result<(), Failure> {
        self.seal()
    }

    /// The same for a log that cannot be given away. What is appended later is behind the mark.
    ///
    /// # Errors
    /// [`Failure`] if it could not.
    pub fn seal(&mut self) -> Result<(), Failure> {
        self.submit();
        self.wait()?;
        // A group of its own, since what was before is flushed.
        self.frame.resize(FRAME_HEADER_BYTES, 0);
        self.send();
        self.wait()
    }

    /// The directory.
    pub fn disk(&self) -> &D {
        self.reader.disk()
    }

    /// The identity of the log, a random number.
    pub fn log(&self) -> u64 {
        self.log
    }

    /// As it was set last.
    pub fn hard_state(&self) -> HardState {
        self.state.base().hard_state
    }

    /// What is in a snapshot, and what is gone.
    pub fn compaction(&self) -> Compaction {
        self.state.base().compaction
    }

    /// The last entry; or that of the snapshot, if there is none behind it.
    pub fn last(&self) -> Position {
        self.state.base().last
    }

    /// The first entry that was not compacted, or that would come next.
    pub fn first_index(&self) -> u64 {
        self.state.first_index()
    }

    /// The term of an entry that is there, or of the last one in the snapshot or compacted.
    pub fn term(&self, index: u64) -> Option<u64> {
        self.state.term(index)
    }

    /// Length of all segments, in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.bytes
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.segments.all.len()
    }

    /// Flushes of segments since the log was opened, but for those of new segments.
    pub fn flushes(&self) -> u64 {
        self.shared.flushes()
    }

    /// Reads a durable entry from the disk. Gives its term and kind; its payload replaces what is in `payload`.
    ///
    /// # Errors
    /// [`WalError::NoEntry`], [`WalError::NotWritten`] if it is not durable yet, or what is wrong with the disk.
    pub fn read(&self, index: u64, payload: &mut Vec<u8>) -> Result<(u64, u8), WalError> {
        let slot = *self.state.slot(index).ok_or(WalError::NoEntry { index })?;
        self.reader.read(index, &slot, payload)?;
        Ok((slot.term, slot.kind))
    }
}

/// A frame with one record.
pub(super) fn frame_of(record: &Record<'_>) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    record.write(&mut frame);
    frame
}
