//! A log in memory: the paper's setting (section 7.1). A replica that stops loses it, and must not return under its id.

use std::collections::VecDeque;
use std::task::Waker;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::discard::{discard, discard_entries};

use super::{Batch, LogError, LogStore, Ticket};

/// A log in memory: every write is as durable as it gets at once. It has no locks, since one replica owns it; entries
/// are moved in, and the bytes of commands are shared with outgoing messages.
#[derive(Debug, Clone, Default)]
pub struct MemoryLog {
    hard_state: HardState,
    /// A snapshot at or after the entry before the first.
    snapshot: Snapshot,
    /// Index and term of the entry before the first.
    before: (u64, u64),
    entries: VecDeque<Entry>,
    entry_bytes: u64,
    /// Entries before this one are freed, some with each write: to free a million takes tens of milliseconds.
    forget_to: u64,
    written: Ticket,
}

/// Entries that are freed at once, at most: more than one write adds.
const FORGOTTEN_AT_ONCE: usize = 8192;
/// Memory of an entry beyond its command.
const ENTRY_OVERHEAD: u64 = size_of::<Entry>() as u64;

fn bytes_of(entry: &Entry) -> u64 {
    ENTRY_OVERHEAD + entry.data.len() as u64
}

impl MemoryLog {
    /// Creates an empty log.
    pub fn new() -> MemoryLog {
        MemoryLog::default()
    }

    /// Creates a log with these contents: a snapshot, the position before the first entry, and the entries that follow
    /// it.
    pub(super) fn restored(
        hard_state: HardState,
        snapshot: Snapshot,
        before: (u64, u64),
        entries: Vec<Entry>,
    ) -> MemoryLog {
        let mut log = MemoryLog { hard_state, snapshot, before, ..MemoryLog::default() };
        log.push(entries);
        log
    }

    /// Returns the term, vote and commit index as last written.
    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// Iterates over all entries.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    fn first(&self) -> u64 {
        self.before.0 + 1
    }

    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    fn install(&mut self, snapshot: Snapshot) {
        let metadata = snapshot.get_metadata();
        self.before = (metadata.index, metadata.term);
        discard_entries(std::mem::take(&mut self.entries), self.entry_bytes);
        (self.entry_bytes, self.forget_to) = (0, 0);
        self.hard_state.term = self.hard_state.term.max(metadata.term);
        self.hard_state.commit = self.hard_state.commit.max(metadata.index);
        discard(std::mem::replace(&mut self.snapshot, snapshot).data);
    }

    /// Sets the snapshot that the log begins with, of which only the position was known.
    pub(super) fn remember(&mut self, snapshot: Snapshot) {
        debug_assert_eq!(self.before.0, snapshot.get_metadata().index, "it begins with another");
        self.snapshot = snapshot;
    }

    /// Frees some of the entries that are due.
    fn forget_some(&mut self) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            if self.first() >= self.forget_to {
                break;
            }
            let Some(entry) = self.entries.pop_front() else { break };
            self.entry_bytes -= bytes_of(&entry);
            self.before = (entry.index, entry.term);
        }
    }

    fn push(&mut self, entries: Vec<Entry>) {
        let Some(from) = entries.first().map(|entry| entry.index) else { return };
        assert!(
            from > self.before.0 && from <= self.last() + 1,
            "entries from {from} on do not follow a log from {} to {}",
            self.first(),
            self.last()
        );
        while self.last() >= from {
            // An entry exists, since the last one is not before the first.
            self.entry_bytes -= self.entries.pop_back().as_ref().map_or(0, bytes_of);
        }
        self.entry_bytes += entries.iter().map(bytes_of).sum::<u64>();
        self.entries.extend(entries);
    }
}

impl Storage for MemoryLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let conf_state: ConfState = self.snapshot.get_metadata().get_conf_state().clone();
        let mut hard_state = self.hard_state.clone();
        if self.snapshot.get_metadata().index > 0 {
            // The entries in the snapshot were committed, whatever commit index was written.
            hard_state.commit = hard_state.commit.max(self.snapshot.get_metadata().index);
        }
        Ok(RaftState { hard_state, conf_state })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.first() {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "entries up to {high} of a log that ends with {}", self.last());
        let max = max_size.into().unwrap_or(u64::MAX);
        let range = (low - self.first()) as usize..(high - self.first()) as usize;
        let mut bytes = 0;
        let fitting = self.entries.range(range).enumerate().take_while(|(number, entry)| {
            bytes += bytes_of(entry);
            *number == 0 || bytes <= max
        });
        Ok(fitting.map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.0 {
            return Ok(self.before.1);
        }
        if index < self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.get((index - self.first()) as usize);
        entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.snapshot.get_metadata().index < request_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}

impl LogStore for MemoryLog {
    fn append(&mut self, batch: Batch) -> Result<Ticket, LogError> {
        if let Some(snapshot) = batch.snapshot {
            self.install(snapshot);
        }
        self.push(batch.entries);
        self.forget_some();
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state;
        }
        self.written.0 += 1;
        Ok(self.written)
    }

    fn durable(&mut self) -> Result<Ticket, LogError> {
        Ok(self.written)
    }

    fn flushes(&self) -> bool {
        false
    }

    /// Everything is always durable.
    fn wake_when_durable(&mut self, _waker: &Waker) {}

    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> Result<(), LogError> {
        let index = snapshot.get_metadata().index;
        assert!(
            keep_from <= index + 1 && index <= self.last(),
            "a snapshot of {index} cannot replace entries up to {keep_from}"
        );
        self.forget_to = self.forget_to.max(keep_from);
        self.forget_some();
        discard(std::mem::replace(&mut self.snapshot, snapshot).data);
        Ok(())
    }

    /// Never: compaction is immediate.
    fn is_compacting(&self) -> bool {
        false
    }

    /// A log in memory keeps nothing in any case.
    fn close(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    fn base(&self) -> &Snapshot {
        &self.snapshot
    }

    fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    fn first_within(&self, last: u64, bytes: u64) -> u64 {
        let count = (last.min(self.last()) + 1).saturating_sub(self.first()) as usize;
        let mut left = bytes;
        let fits = |entry: &&Entry| left.checked_sub(bytes_of(entry)).map(|rest| left = rest).is_some();
        let fitting = self.entries.range(..count).rev().take_while(fits).count();
        last + 1 - fitting as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![7; 100].into(), ..Entry::default() }
    }

    fn snapshot(index: u64, term: u64) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = index;
        snapshot.mut_metadata().term = term;
        snapshot
    }

    fn append(log: &mut MemoryLog, entries: impl IntoIterator<Item = (u64, u64)>) {
        let entries = entries.into_iter().map(|(index, term)| entry(index, term)).collect();
        log.append(Batch { entries, ..Batch::default() }).unwrap();
    }

    fn indices(log: &MemoryLog, low: u64, high: u64, max: u64) -> Vec<u64> {
        let entries = log.entries(low, high, Some(max), GetEntriesContext::empty(false)).unwrap();
        entries.iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn entries_replace_those_they_contradict() {
        let mut log = MemoryLog::new();
        append(&mut log, (1..=5).map(|index| (index, 1)));
        append(&mut log, [(4, 2)]);
        assert_eq!((log.last(), log.term(4).unwrap(), log.term(3).unwrap()), (4, 2, 1));
        assert_eq!(log.entry_bytes(), 4 * bytes_of(&entry(1, 1)));
        assert_eq!(indices(&log, 1, 5, u64::MAX), [1, 2, 3, 4]);
        let each = bytes_of(&entry(1, 1));
        assert_eq!([0, each, 2 * each + 1, 100 * each].map(|bytes| log.first_within(3, bytes)), [4, 3, 2, 1]);
        assert_eq!(indices(&log, 2, 5, 0), [2], "one at least");
        assert_eq!(indices(&log, 1, 5, 2 * bytes_of(&entry(1, 1))), [1, 2]);
        assert!(matches!(log.term(5), Err(Error::Store(StorageError::Unavailable))));
    }

    #[test]
    fn a_snapshot_replaces_what_is_before() {
        let mut log = MemoryLog::new();
        append(&mut log, (1..=5).map(|index| (index, 1)));
        log.compact(snapshot(4, 1), 3).unwrap();
        assert_eq!((log.first(), log.last(), log.term(2).unwrap()), (3, 5, 1));
        assert!(matches!(log.term(1), Err(Error::Store(StorageError::Compacted))));
        assert_eq!(Storage::snapshot(&log, 4, 2).unwrap().get_metadata().index, 4);
        assert!(Storage::snapshot(&log, 5, 2).is_err());
        // A leader's snapshot replaces everything, and the entries after it continue from there.
        let batch = Batch { snapshot: Some(snapshot(9, 3)), entries: vec![entry(10, 3)], ..Batch::default() };
        log.append(batch).unwrap();
        assert_eq!((log.first(), log.last(), log.term(9).unwrap()), (10, 10, 3));
        assert_eq!(log.initial_state().unwrap().hard_state.commit, 9);
    }
}
