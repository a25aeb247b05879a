//! The log's interface for its owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::commit::{Shared, Stepper, Threaded, lock};
use super::config::WalConfig;
use super::disk::Disk;
use super::error::{AppendError, Failure, Misplaced, WalError};
use super::format::{
    ENTRY_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION, frame_bytes,
};
use super::part::GroupState;
use super::progress::Handed;
use super::read::Reader;
use super::record::{Compaction, ENTRY_HEADER_BYTES, Entry, HardState, Position, Record};
use super::segment::segment_name;
use super::segments::Segments;
use super::snapshot::snapshot_name;
use super::state::{LogState, Slot};
use super::work::Task;

/// Identifies a submitted batch: when [`Wal::durable`] has reached it, the batch is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// Returns it as a number, which rises with each batch, not always by one.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// One group's part of a node's log, or all of a log that is not shared. Changes are collected, and [`Wal::submit`]
/// turns them into a batch; a crash preserves whole batches, in order. Groups that share a log ([`Wal::of_group`])
/// collect together: one group's submit includes the changes of the others.
///
/// It belongs to one thread. Its accessors ([`Wal::last`], [`Wal::hard_state`] and so on) return the appended state,
/// durable or not.
#[derive(Debug)]
pub struct Wal<D: Disk> {
    pub(super) group: u16,
    inner: Arc<Mutex<Inner<D>>>,
    pub(super) shared: Arc<Shared>,
    pub(super) config: WalConfig,
    disk: D,
    log: u64,
    /// This group's snapshot that the writer has.
    pub(super) snapshot: Option<Handed>,
}

/// State shared by all groups of a log.
#[derive(Debug)]
pub(super) struct Inner<D: Disk> {
    config: WalConfig,
    log: u64,
    pub(super) groups: BTreeMap<u16, GroupState>,
    /// The frame being collected: space for its header, then records. Empty if there are none.
    frame: Vec<u8>,
    /// The groups with records in it, possibly repeated.
    changed: Vec<u16>,
    /// Files that are obsolete once the frame is durable.
    obsolete: Vec<String>,
    /// Whether entries were removed that may have been the last of a segment.
    is_cut: bool,
    segments: Segments,
    /// The sequence number of the last frame.
    pub(super) sequence: u64,
    /// Number of snapshots handed to the writer, of all groups.
    snapshots: u64,
    shared: Arc<Shared>,
    pub(super) driver: Driver<D>,
    reader: Reader<D>,
}

/// What drives the writer.
#[derive(Debug)]
pub(super) enum Driver<D: Disk> {
    /// A thread, which lives as long as this value.
    Threaded { _thread: Threaded },
    /// The owner of the stepper.
    Stepped(Stepper<D>),
}

/// The parts that an opened log consists of.
#[derive(Debug)]
pub(super) struct Parts<D: Disk> {
    pub config: WalConfig,
    pub disk: D,
    pub log: u64,
    pub groups: BTreeMap<u16, GroupState>,
    pub segments: Segments,
    pub sequence: u64,
    pub shared: Arc<Shared>,
    pub driver: Driver<D>,
}

impl<D: Disk> Wal<D> {
    /// Returns the handle of group 0.
    pub(super) fn new(parts: Parts<D>) -> Wal<D> {
        let Parts { config, disk, log, groups, segments, sequence, shared, driver } = parts;
        let inner = Inner {
            config,
            log,
            groups,
            frame: Vec::new(),
            changed: Vec::new(),
            obsolete: Vec::new(),
            is_cut: true,
            segments,
            sequence,
            snapshots: 0,
            shared: shared.clone(),
            driver,
            reader: Reader::new(disk.clone()),
        };
        Wal { group: 0, inner: Arc::new(Mutex::new(inner)), shared, config, disk, log, snapshot: None }
    }

    /// Returns the handle of another group of the same log.
    pub(super) fn handle(&self, group: u16) -> Wal<D> {
        Wal {
            group,
            inner: self.inner.clone(),
            shared: self.shared.clone(),
            config: self.config,
            disk: self.disk.clone(),
            log: self.log,
            snapshot: None,
        }
    }

    /// Locks the shared state. All groups belong to one thread, so this never blocks.
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner<D>> {
        lock(&self.inner)
    }

    /// Looks at this group's state.
    fn state<R>(&self, look: impl FnOnce(&LogState) -> R) -> R {
        match self.inner().groups.get(&self.group) {
            Some(group) => look(&group.state),
            None => look(&LogState::default()),
        }
    }

    /// Appends an entry.
    ///
    /// If the batch would exceed [`FRAME_BYTES_MAX`], it is submitted first, and another begins: a crash may preserve
    /// the first and not the second.
    ///
    /// # Errors
    /// [`AppendError`]; nothing has changed.
    pub fn append(&mut self, entry: Entry<'_>) -> Result<(), AppendError> {
        let unflushed = self.unflushed();
        if self.inner().frame.is_empty() && unflushed > self.config.unflushed_bytes_max {
            return Err(AppendError::Behind { bytes: unflushed });
        }
        if self.is_full() {
            return Err(AppendError::Full { bytes: self.bytes() });
        }
        self.append_admitted(entry)
    }

    /// As [`Wal::append`], for an entry that the owner admitted while there was room ([`Wal::has_room`],
    /// [`Wal::is_full`]) and cannot take back: the owner is responsible for the limits.
    ///
    /// # Errors
    /// [`AppendError`], but neither `Behind` nor `Full`; nothing has changed.
    pub fn append_admitted(&mut self, entry: Entry<'_>) -> Result<(), AppendError> {
        self.inner().append(self.group, entry)
    }

    /// Sets the hard state.
    ///
    /// # Errors
    /// [`AppendError`]; nothing has changed.
    pub fn set_hard_state(&mut self, hard_state: HardState) -> Result<(), AppendError> {
        let mut inner = self.inner();
        inner.record(self.group, &Record::HardState(hard_state))?;
        inner.state(self.group).set_hard_state(hard_state);
        Ok(())
    }

    /// Removes the entries from `from` on, so that others can replace them.
    ///
    /// # Errors
    /// [`AppendError`]; nothing has changed.
    pub fn truncate(&mut self, from: u64) -> Result<(), AppendError> {
        self.inner().truncate(self.group, from)
    }

    /// Removes the entries up to `up_to`, which the snapshot ending at `snapshot` covers. That snapshot must be durable
    /// ([`Wal::take_written_snapshot`], [`super::SnapshotWriter::finish`]). Obsolete segments and snapshots are removed
    /// when the record of this is durable.
    ///
    /// # Errors
    /// [`AppendError`]; nothing has changed.
    pub fn compact(&mut self, snapshot: Position, up_to: u64) -> Result<(), AppendError> {
        self.inner().compact(self.group, snapshot, up_to)
    }

    /// Removes all entries: the log continues after the last entry of `snapshot`. That snapshot, which came from
    /// another node, must be durable ([`Wal::take_written_snapshot`], [`super::SnapshotWriter::finish`]).
    ///
    /// # Errors
    /// [`AppendError`]; nothing has changed.
    pub fn reset(&mut self, snapshot: Position) -> Result<(), AppendError> {
        self.inner().reset(self.group, snapshot)
    }

    /// Turns all changes since the last call, including those of other groups, into a batch, and hands it to the
    /// writer. Returns the ticket of the last batch if there were none.
    pub fn submit(&mut self) -> Ticket {
        let mut inner = self.inner();
        inner.submit();
        Ticket(inner.sequence)
    }

    /// Makes everything durable, and marks the log as cleanly closed, so that the next opening can tell damage in the
    /// last batches from a crash.
    ///
    /// # Errors
    /// [`Failure`] if that is not possible.
    pub fn close(mut self) -> Result<(), Failure> {
        self.seal()
    }

    /// As [`Wal::close`], for a log that cannot be moved. Later appends come after the mark.
    ///
    /// # Errors
    /// [`Failure`] if that is not possible.
    pub fn seal(&mut self) -> Result<(), Failure> {
        self.submit();
        self.wait()?;
        // A separate group, since everything before is flushed.
        self.inner().send_empty();
        self.wait()
    }

    /// Returns the directory.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the log's identity, a random number.
    pub fn log(&self) -> u64 {
        self.log
    }

    /// Returns the hard state as last set.
    pub fn hard_state(&self) -> HardState {
        self.state(|state| state.base().hard_state)
    }

    /// Returns what a snapshot covers, and what is removed.
    pub fn compaction(&self) -> Compaction {
        self.state(|state| state.base().compaction)
    }

    /// Returns the last entry, or the snapshot's if there is none after it.
    pub fn last(&self) -> Position {
        self.state(|state| state.base().last)
    }

    /// Returns the first entry that was not compacted, or the next one to come.
    pub fn first_index(&self) -> u64 {
        self.state(LogState::first_index)
    }

    /// Returns the term of an existing entry, or of the last one in the snapshot or compacted.
    pub fn term(&self, index: u64) -> Option<u64> {
        self.state(|state| state.term(index))
    }

    /// Returns the length of all segments, in bytes, including all groups.
    pub fn bytes(&self) -> u64 {
        self.inner().segments.bytes
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.inner().segments.all.len()
    }

    /// Returns the group that keeps the oldest segment from being removed, if the segments exceed half of their limit:
    /// a snapshot of that group makes room for all.
    pub fn held_by(&self) -> Option<u16> {
        let inner = self.inner();
        if inner.segments.bytes <= self.config.log_bytes_max / 2 {
            return None;
        }
        let first = inner.groups.iter().filter_map(|(group, of)| Some((of.state.first_segment()?, *group))).min()?;
        (first.0 < inner.segments.current().0).then_some(first.1)
    }

    /// Returns the number of flushes of segments since the log was opened, except those of new segments.
    pub fn flushes(&self) -> u64 {
        self.shared.flushes()
    }

    /// Reads a durable entry from the disk. Returns its term and kind; its payload replaces the contents of `payload`.
    ///
    /// # Errors
    /// [`WalError::NoEntry`], [`WalError::NotWritten`] if it is not durable yet, or an error of the disk.
    pub fn read(&self, index: u64, payload: &mut Vec<u8>) -> Result<(u64, u8), WalError> {
        let slot = self.state(|state| state.slot(index).copied()).ok_or(WalError::NoEntry { index })?;
        self.inner().reader.read(index, &slot, payload)?;
        Ok((slot.term, slot.kind))
    }
}

impl<D: Disk> Inner<D> {
    /// Returns the number of the next snapshot to hand over.
    pub fn next_snapshot(&mut self) -> u64 {
        self.snapshots += 1;
        self.snapshots
    }

    fn group(&mut self, group: u16) -> &mut GroupState {
        self.groups.entry(group).or_default()
    }

    fn state(&mut self, group: u16) -> &mut LogState {
        &mut self.group(group).state
    }

    fn append(&mut self, group: u16, entry: Entry<'_>) -> Result<(), AppendError> {
        if entry.payload.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLong { bytes: entry.payload.len() });
        }
        self.state(group).check_entry(entry.index, entry.term)?;
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
        self.write(group, &record);
        let of = self.group(group);
        of.frame_entries.get_or_insert(entry.index);
        Ok(of.state.append(entry.index, slot)?)
    }

    fn truncate(&mut self, group: u16, from: u64) -> Result<(), AppendError> {
        let index = from.checked_sub(1).ok_or(Misplaced("entries are numbered from 1"))?;
        let state = self.state(group);
        let term = state.term(index).ok_or(Misplaced("entries cannot be truncated that are in a snapshot"))?;
        let last = Position { index, term };
        state.check_truncate(last)?;
        self.record(group, &Record::Truncate(last))?;
        self.is_cut = true;
        let of = self.group(group);
        of.frame_entries = of.frame_entries.filter(|first| *first < from);
        Ok(of.state.truncate(last)?)
    }

    fn compact(&mut self, group: u16, snapshot: Position, up_to: u64) -> Result<(), AppendError> {
        let state = self.state(group);
        let term = state.term(up_to).ok_or(Misplaced("entries cannot be compacted that are not there"))?;
        let compaction = Compaction { snapshot, compacted: Position { index: up_to, term } };
        state.check_compact(compaction)?;
        let before = state.base().compaction.snapshot;
        self.record(group, &Record::Compact(compaction))?;
        self.state(group).compact(compaction)?;
        self.replaced(group, before, snapshot);
        Ok(())
    }

    fn reset(&mut self, group: u16, snapshot: Position) -> Result<(), AppendError> {
        let state = self.state(group);
        state.check_reset(snapshot)?;
        let before = state.base().compaction.snapshot;
        self.record(group, &Record::Reset(snapshot))?;
        let of = self.group(group);
        of.frame_entries = None;
        of.state.reset(snapshot)?;
        self.replaced(group, before, snapshot);
        Ok(())
    }

    fn replaced(&mut self, group: u16, before: Position, by: Position) {
        self.is_cut = true;
        if before.index > 0 && before != by {
            self.obsolete.push(snapshot_name(group, before));
        }
    }

    fn record(&mut self, group: u16, record: &Record<'_>) -> Result<(), AppendError> {
        self.start(record.bytes())?;
        self.write(group, record);
        Ok(())
    }

    fn write(&mut self, group: u16, record: &Record<'_>) {
        record.write(group, &mut self.frame);
        if self.changed.last() != Some(&group) {
            self.changed.push(group);
        }
    }

    /// Makes room in the frame, or begins one.
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

    fn submit(&mut self) {
        if !self.frame.is_empty() {
            self.send();
        }
    }

    /// Hands over a frame without records.
    fn send_empty(&mut self) {
        self.frame.resize(FRAME_HEADER_BYTES, 0);
        self.send();
    }

    /// Places the frame, in a new segment if the last one is full.
    fn send(&mut self) {
        let mut frame = std::mem::take(&mut self.frame);
        let len = frame_bytes(frame.len() - FRAME_HEADER_BYTES);
        let roll = self.roll_before(len);
        self.sequence += 1;
        let (sequence, end) = (self.sequence, self.segments.end);
        self.shared.add(|work| {
            if let Some((header, bases)) = roll {
                work.tasks.push(Task::Roll(header));
                work.push(&bases, SEGMENT_HEADER_BYTES as u32, header.sequence);
            }
            work.push(&frame, end, sequence);
        });
        let segment = self.segments.current().0;
        for group in self.changed.drain(..) {
            let Some(of) = self.groups.get_mut(&group) else { continue };
            if let Some(first) = of.frame_entries.take() {
                of.state.place(first, segment, end);
            }
            of.handed = of.state.base();
        }
        self.segments.end += len as u32;
        frame.clear();
        self.frame = frame;
        self.remove_obsolete();
    }

    /// Begins a new segment, with the state of all groups before the next frame, if the last one has no room for one of
    /// this length.
    fn roll_before(&mut self, len: usize) -> Option<(SegmentHeader, Vec<u8>)> {
        let (number, bytes) = self.segments.current();
        if self.segments.end as usize + len <= bytes as usize {
            return None;
        }
        self.sequence += 1;
        let mut bases = vec![0; FRAME_HEADER_BYTES];
        self.groups.iter().for_each(|(group, of)| Record::Base(of.handed).write(*group, &mut bases));
        let bases_bytes = frame_bytes(bases.len() - FRAME_HEADER_BYTES);
        let file_bytes = self.config.segment_bytes.max((SEGMENT_HEADER_BYTES + bases_bytes + len) as u32);
        self.segments.roll(number + 1, file_bytes, bases_bytes as u32);
        let header = SegmentHeader {
            log: self.log,
            owner: self.config.owner,
            number: number + 1,
            sequence: self.sequence,
            file_bytes,
            version: VERSION,
        };
        Some((header, bases))
    }

    /// Tells the writer what to remove when everything submitted is durable.
    fn remove_obsolete(&mut self) {
        if std::mem::take(&mut self.is_cut) {
            let last = self.segments.current().0;
            let first = self.groups.values().filter_map(|group| group.state.first_segment()).min().unwrap_or(last);
            while let Some((number, bytes)) = self.segments.all.front().copied()
                && number < first.min(last)
            {
                self.segments.all.pop_front();
                self.segments.bytes -= u64::from(bytes);
                self.reader.forget(number);
                self.obsolete.push(segment_name(number));
            }
        }
        if !self.obsolete.is_empty() {
            let names = std::mem::take(&mut self.obsolete);
            self.shared.add(|work| work.tasks.push(Task::Remove(names)));
        }
    }
}

/// Returns a frame with one record of group 0.
pub(super) fn frame_of(record: &Record<'_>) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    record.write(0, &mut frame);
    frame
}
