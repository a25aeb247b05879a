//! A log on disk. [`Wal`] writes; all entries are in memory as well, and are read there. A snapshot of this replica's
//! own state is written in the background, and takes effect when it is durable; a snapshot from a leader is waited for.

use std::collections::VecDeque;
use std::error::Error;
use std::task::Waker;

use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage};

use super::{Batch, LogError, LogStore, MemoryLog, Room, Ticket, Urgency};
use crate::mutation::{Mutation, is_planted};
use crate::wal::{self, AppendError, Disk, Position, SnapshotReader, Wal, WalError};

/// A log on disk.
#[derive(Debug)]
pub struct DurableLog<D: Disk> {
    wal: Wal<D>,
    view: MemoryLog,
    /// A snapshot that is being written, and the first entry to keep when it is durable.
    compacting: Option<(Snapshot, u64)>,
    /// A snapshot from a leader that is being written, and whether it is durable.
    staged: Option<(Position, bool)>,
    /// Writes that are not known to be durable: this log's tickets with the disk's.
    issued: VecDeque<(Ticket, wal::Ticket)>,
    written: Ticket,
    done: Ticket,
}

/// Why a log cannot be read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file is corrupt.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// A file has content that this program never writes.
    #[error("{place} says what no replica writes: {what}; it is of another program, or of a newer version of this one")]
    Foreign {
        /// The file, or the part of it.
        place: String,
        /// Its content.
        what: String,
    },
}

impl<D: Disk> DurableLog<D> {
    /// Reads back the contents of an opened log.
    ///
    /// # Errors
    /// [`OpenError`]: a part is corrupt or foreign.
    pub fn new(wal: Wal<D>) -> Result<DurableLog<D>, OpenError> {
        let compaction = wal.compaction();
        let snapshot = match read_snapshot(&wal) {
            Err(OpenError::Wal(WalError::Missing { .. })) if !wal.part().needs_file(compaction.snapshot) => {
                Snapshot::default()
            }
            read => read?,
        };
        let mut entries = Vec::new();
        for index in wal.first_index()..=wal.last().index {
            let mut data = Vec::new();
            let (term, kind) = wal.read(index, &mut data)?;
            let mut entry = Entry { index, term, data: data.into(), ..Entry::default() };
            entry.set_entry_type(
                entry_type(kind).ok_or_else(|| foreign(format!("entry {index}"), format!("kind {kind}")))?,
            );
            entries.push(entry);
        }
        let wal::HardState { term, vote, commit } = wal.hard_state();
        // A crash may have cut off entries that this replica knew to be committed: other replicas have them and will
        // report them again.
        let commit = commit.min(wal.last().index);
        let hard_state = HardState { term, vote, commit, ..HardState::default() };
        let before = (compaction.compacted.index, compaction.compacted.term);
        let view = MemoryLog::restored(hard_state, snapshot, before, entries);
        Ok(DurableLog {
            wal,
            view,
            compacting: None,
            staged: None,
            issued: VecDeque::new(),
            written: Ticket(0),
            done: Ticket(0),
        })
    }

    /// Reads back the contents of an opened log with this many groups, numbered from 0. Returns one log for each; all
    /// share the writer and its flushes.
    ///
    /// # Errors
    /// As [`DurableLog::new`].
    pub fn of_groups(wal: &Wal<D>, groups: u16) -> Result<Vec<DurableLog<D>>, OpenError> {
        (0..groups).map(|group| DurableLog::new(wal.of_group(group))).collect()
    }

    /// Returns the writer.
    pub fn wal(&self) -> &Wal<D> {
        &self.wal
    }

    /// Returns the copy in memory, which reads use.
    pub fn view(&self) -> &MemoryLog {
        &self.view
    }

    fn write_entries(&mut self, entries: &[Entry]) -> Result<(), AppendError> {
        let Some(first) = entries.first() else { return Ok(()) };
        if first.index <= self.wal.last().index {
            self.wal.truncate(first.index)?;
        }
        for entry in entries {
            let kind = entry.get_entry_type() as u8;
            let wal_entry = wal::Entry { index: entry.index, term: entry.term, kind, payload: &entry.data };
            self.wal.append_admitted(wal_entry)?;
        }
        Ok(())
    }

    /// Hands a snapshot to the writer thread.
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<Position, LogError> {
        let position = position_of(snapshot);
        let about = snapshot.get_metadata().get_conf_state().write_to_bytes().map_err(failed)?;
        self.wal.write_snapshot(position, about, snapshot.data.clone());
        Ok(position)
    }

    /// A snapshot is durable. Forgets the entries that it covers; for a leader's snapshot, only notes that it is
    /// durable.
    fn finish_compaction(&mut self, written: Option<Position>) -> Result<(), LogError> {
        let Some(position) = written else { return Ok(()) };
        if let Some(staged) = &mut self.staged {
            staged.1 = true;
            return Ok(());
        }
        let Some((snapshot, keep_from)) = self.compacting.take() else { return Ok(()) };
        // Only the view may still have entries before that: it forgets gradually.
        let keep_from = keep_from.max(self.wal.first_index());
        self.wal.compact(position, keep_from - 1).map_err(failed)?;
        self.wal.submit();
        self.view.compact(snapshot, keep_from)
    }

    /// Starts over with a snapshot from a leader, or with the first one. Waits for it unless it was staged or needs no
    /// file; returns whether it waited.
    fn begin_anew(&mut self, snapshot: &Snapshot) -> Result<Waited, LogError> {
        let position = position_of(snapshot);
        if self.staged == Some((position, true)) || !self.wal.part().needs_file(position) {
            self.staged = None;
            return self.wal.reset(position).map(|()| Waited::No).map_err(failed);
        }
        let before = self.wal.wait_for_snapshot().map_err(failed)?;
        self.finish_compaction(before)?;
        let position = self.write_snapshot(snapshot)?;
        self.wal.wait_for_snapshot().map_err(failed)?;
        self.wal.reset(position).map(|()| Waited::Yes).map_err(failed)
    }
}

/// Whether the event loop waited for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    No,
    Yes,
}

fn failed(error: impl Error) -> LogError {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why += &format!(": {error}");
        cause = error.source();
    }
    LogError { why }
}

fn position_of(snapshot: &Snapshot) -> Position {
    let metadata = snapshot.get_metadata();
    Position { index: metadata.index, term: metadata.term }
}

fn foreign(place: String, what: String) -> OpenError {
    OpenError::Foreign { place, what }
}

fn entry_type(kind: u8) -> Option<EntryType> {
    const TYPES: [EntryType; 3] = [EntryType::EntryNormal, EntryType::EntryConfChange, EntryType::EntryConfChangeV2];
    TYPES.into_iter().find(|known| *known as u8 == kind)
}

fn read_snapshot<D: Disk>(wal: &Wal<D>) -> Result<Snapshot, OpenError> {
    let position = wal.compaction().snapshot;
    let mut reader = SnapshotReader::open(wal.disk(), wal.part(), position)?;
    let conf_state = ConfState::parse_from_bytes(reader.about())
        .map_err(|error| foreign(format!("the snapshot of entry {}", position.index), error.to_string()))?;
    let mut data = Vec::new();
    while let Some(block) = reader.next_block()? {
        data.extend_from_slice(block);
    }
    let mut snapshot = Snapshot { data: data.into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (position.index, position.term);
    metadata.set_conf_state(conf_state);
    Ok(snapshot)
}

impl<D: Disk> Storage for DurableLog<D> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        self.view.initial_state()
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        self.view.entries(low, high, max_size, context)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.view.term(index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        self.view.first_index()
    }

    fn last_index(&self) -> raft::Result<u64> {
        self.view.last_index()
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        Storage::snapshot(&self.view, request_index, to)
    }
}

impl<D: Disk> LogStore for DurableLog<D> {
    fn room(&self) -> Room {
        match (self.wal.has_room(), self.wal.is_full()) {
            (_, true) => Room::Full,
            (false, false) => Room::Behind,
            (true, false) => Room::Free,
        }
    }

    fn append(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        let waited = match &batch.snapshot {
            Some(snapshot) => self.begin_anew(snapshot)?,
            None => Waited::No,
        };
        self.write_entries(&batch.entries).map_err(failed)?;
        if let Some(hard_state) = &batch.hard_state {
            let HardState { term, vote, commit, .. } = *hard_state;
            let vote = if is_planted(Mutation::VoteForgotten) { 0 } else { vote };
            self.wal.set_hard_state(wal::HardState { term, vote, commit }).map_err(failed)?;
        }
        self.written.0 += 1;
        if batch.urgency == Urgency::Urgent {
            let ticket = self.wal.submit();
            self.issued.push_back((self.written, ticket));
        }
        if waited == Waited::Yes {
            // The first snapshot of a member, or one that was not staged: the caller relies on it being durable.
            self.wal.wait().map_err(failed)?;
        }
        self.view.append(batch)?;
        Ok(self.written)
    }

    fn found(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        match batch.snapshot {
            Some(snapshot) if self.wal.compaction().snapshot == position_of(&snapshot) => {
                self.view.remember(snapshot);
                Ok(self.done)
            }
            _ => self.append(batch),
        }
    }

    fn durable(&mut self) -> Result<Ticket, LogError> {
        if let Some(failure) = self.wal.failure() {
            return Err(failed(failure));
        }
        let written = self.wal.take_written_snapshot();
        self.finish_compaction(written)?;
        let durable = self.wal.durable();
        while let Some((ticket, on_disk)) = self.issued.front()
            && *on_disk <= durable
        {
            self.done = *ticket;
            self.issued.pop_front();
        }
        Ok(self.done)
    }

    fn stage(&mut self, snapshot: &Snapshot) -> Result<(), LogError> {
        assert!(self.compacting.is_none() && self.staged.is_none(), "one snapshot is written at a time");
        let position = self.write_snapshot(snapshot)?;
        self.staged = Some((position, false));
        Ok(())
    }

    fn is_staged(&self) -> bool {
        self.staged.is_some_and(|(_, is_there)| is_there)
    }

    fn unstage(&mut self) {
        if let Some((position, true)) = self.staged.take() {
            self.wal.discard_snapshot(position);
        }
    }

    fn under_way(&self) -> Option<u64> {
        self.wal.under_way()
    }

    fn held_by(&self) -> Option<u16> {
        self.wal.held_by()
    }

    fn flushes(&self) -> bool {
        true
    }

    fn wake_when_durable(&mut self, waker: &Waker) {
        self.wal.set_waker(Some(waker.clone()));
    }

    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> Result<(), LogError> {
        assert!(self.compacting.is_none(), "one snapshot is kept at a time");
        let position = self.write_snapshot(&snapshot)?;
        self.compacting = Some((snapshot, keep_from));
        if is_planted(Mutation::ForgottenBeforeDurable) {
            let under_way = self.compacting.clone();
            self.finish_compaction(Some(position))?;
            self.compacting = under_way;
        }
        Ok(())
    }

    fn forget_kept(&mut self) -> Result<(), LogError> {
        let base = position_of(self.view.base());
        // The view forgets gradually; the files are authoritative.
        if self.wal.first_index() > base.index {
            return Ok(());
        }
        self.wal.compact(base, base.index).map_err(failed)?;
        self.wal.submit();
        self.view.compact(self.view.base().clone(), base.index + 1)
    }

    fn is_compacting(&self) -> bool {
        self.compacting.is_some()
    }

    fn compacting_bytes(&self) -> u64 {
        self.compacting.as_ref().map_or(0, |(snapshot, _)| snapshot.data.len() as u64)
    }

    fn close(&mut self) -> Result<(), LogError> {
        self.wal.seal().map_err(failed)
    }

    fn base(&self) -> &Snapshot {
        self.view.base()
    }

    fn entry_bytes(&self) -> u64 {
        self.view.entry_bytes()
    }

    fn first_within(&self, last: u64, bytes: u64) -> u64 {
        self.view.first_within(last, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::sim::{Crash, SimDisk, SimDiskConfig};
    use crate::wal::{WalConfig, open_stepped};

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![index as u8; 30].into(), ..Entry::default() }
    }

    fn snapshot(index: u64, term: u64) -> Snapshot {
        let mut snapshot = Snapshot { data: vec![9; 100].into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        metadata.set_conf_state(ConfState { voters: vec![1, 2, 3], ..ConfState::default() });
        snapshot
    }

    fn log_on(disk: &SimDisk) -> DurableLog<SimDisk> {
        DurableLog::new(open_stepped(disk.clone(), WalConfig { segment_bytes: 4096, ..WalConfig::new(1) }).unwrap().0)
            .unwrap()
    }

    fn urgent(entries: Vec<Entry>, commit: u64) -> Batch {
        let hard_state = Some(HardState { term: 2, vote: 3, commit, ..HardState::default() });
        Batch { entries, hard_state, urgency: Urgency::Urgent, ..Batch::default() }
    }

    #[test]
    fn what_was_durable_is_there_after_a_crash() {
        let disk = SimDisk::new(5, SimDiskConfig::default());
        let mut log = log_on(&disk);
        log.append(Batch { snapshot: Some(snapshot(1, 1)), ..urgent(Vec::new(), 1) }).unwrap();
        let ticket = log.append(urgent((2..=9).map(|index| entry(index, 1)).collect(), 3)).unwrap();
        // Entries of a later leader replace some.
        let last = log.append(urgent(vec![entry(6, 2), entry(7, 2)], 5)).unwrap();
        assert!(ticket < last && log.durable().unwrap() < ticket);
        log.wal.wait().unwrap();
        assert_eq!(log.durable().unwrap(), last);
        log.append(urgent(vec![entry(8, 2)], 5)).unwrap();
        drop(log);
        let log = log_on(&disk.crash(Crash::Power));
        let state = log.initial_state().unwrap();
        assert_eq!((state.hard_state.term, state.hard_state.vote, state.hard_state.commit), (2, 3, 5));
        assert_eq!(state.conf_state.voters, [1, 2, 3]);
        assert!((7..=8).contains(&log.last_index().unwrap()));
        let entries = log.entries(2, 8, None, GetEntriesContext::empty(false)).unwrap();
        let expected: Vec<Entry> = (2..=7).map(|index| entry(index, if index < 6 { 1 } else { 2 })).collect();
        assert_eq!(entries, expected);
        assert_eq!(log.base().data[..], [9; 100]);
    }

    #[test]
    fn a_snapshot_stands_for_what_was_before_it() {
        let disk = SimDisk::new(6, SimDiskConfig::default());
        let mut log = log_on(&disk);
        log.append(urgent((1..=40).map(|index| entry(index, 1)).collect(), 40)).unwrap();
        log.compact(snapshot(30, 1), 25).unwrap();
        log.wal.wait().unwrap();
        assert!(
            log.is_compacting() && log.first_index().unwrap() == 1,
            "it has not looked whether the snapshot is there"
        );
        log.durable().unwrap();
        assert!(!log.is_compacting() && log.first_index().unwrap() == 25);
        log.wal.wait().unwrap();
        drop(log);
        let log = log_on(&disk.crash(Crash::Power));
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap(), log.term(24).unwrap()), (25, 40, 1));
        assert_eq!(log.base().get_metadata().index, 30);
    }

    #[test]
    fn a_snapshot_that_was_staged_in_vain_is_removed() {
        let disk = SimDisk::new(6, SimDiskConfig::default());
        let mut log = log_on(&disk);
        log.append(Batch { snapshot: Some(snapshot(5, 1)), ..urgent(Vec::new(), 5) }).unwrap();
        log.stage(&snapshot(8, 1)).unwrap();
        log.wal.wait().unwrap();
        log.durable().unwrap();
        assert!(log.is_staged());
        log.unstage();
        log.append(urgent(Vec::new(), 5)).unwrap();
        log.wal.wait().unwrap();
        let snapshots = disk.list().unwrap().into_iter().filter(|name| name.starts_with("snapshot-")).count();
        assert_eq!(snapshots, 1);
        drop(log);
        assert_eq!(log_on(&disk.crash(Crash::Power)).base().get_metadata().index, 5);
    }

    /// The library refuses a log that says so.
    #[test]
    fn a_crash_before_the_commit_of_a_leaders_snapshot_loses_no_commit() {
        let disk = SimDisk::new(6, SimDiskConfig::default());
        let mut log = log_on(&disk);
        log.append(Batch { snapshot: Some(snapshot(1, 1)), ..urgent(Vec::new(), 1) }).unwrap();
        log.stage(&snapshot(8, 1)).unwrap();
        log.wal.wait().unwrap();
        log.durable().unwrap();
        log.wal.reset(position_of(&snapshot(8, 1))).unwrap();
        log.wal.submit();
        log.wal.wait().unwrap();
        drop(log);
        let log = log_on(&disk.crash(Crash::Power));
        assert_eq!((log.initial_state().unwrap().hard_state.commit, log.last_index().unwrap()), (8, 8));
    }

    #[test]
    fn a_flush_that_fails_is_final() {
        let disk = SimDisk::new(7, SimDiskConfig::default());
        let mut log = log_on(&disk);
        disk.fail_flush_after(0);
        log.append(urgent(vec![entry(1, 1)], 0)).unwrap();
        let _ = log.wal.wait();
        assert!(log.durable().is_err());
        assert!(log.append(urgent(vec![entry(2, 1)], 0)).is_err());
    }

    /// Of many entries, the view has only begun to forget those that the files have not.
    #[test]
    fn a_snapshot_that_keeps_entries_comes_after_one_that_kept_none() {
        const MANY: u64 = 40_000;
        let mut log = log_on(&SimDisk::new(5, SimDiskConfig::default()));
        log.append(Batch { snapshot: Some(snapshot(1, 1)), ..urgent(Vec::new(), 1) }).unwrap();
        log.append(urgent((2..=MANY).map(|index| entry(index, 1)).collect(), MANY)).unwrap();
        for (index, kept) in [(MANY, 0), (MANY + 1, 10_000)] {
            log.append(urgent((log.last_index().unwrap() + 1..=index).map(|index| entry(index, 1)).collect(), index))
                .unwrap();
            let keep_from = (index + 1 - kept).max(log.first_index().unwrap());
            log.compact(snapshot(index, 1), keep_from).unwrap();
            log.wal.wait_for_snapshot().map(|written| log.finish_compaction(written).unwrap()).unwrap();
            log.durable().unwrap();
        }
        assert_eq!(position_of(log.base()), Position { index: MANY + 1, term: 1 });
    }
}
