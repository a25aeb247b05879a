//! A model of a log's contents, and every state that it went through.

use std::collections::BTreeMap;

use dunlin_smr::wal::sim::SimDisk;
use dunlin_smr::wal::{Compaction, Entry, HardState, Position, SnapshotReader, SnapshotWriter, Ticket, Wal, WalError};

use super::payload;

/// The visible state of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub hard_state: HardState,
    pub compaction: Compaction,
    pub last: Position,
    /// Term and payload length of each existing entry.
    pub entries: BTreeMap<u64, (u64, usize)>,
}

/// A log, and its expected contents after each of its batches.
#[derive(Debug)]
pub struct Model {
    /// The state with the changes not submitted yet.
    now: State,
    /// The state after each batch; the first one is how the log was found.
    batches: Vec<(Ticket, State)>,
    is_changed: bool,
}

impl Model {
    /// Creates a model of a log as it was found.
    pub fn new(ticket: Ticket, state: State) -> Model {
        Model { batches: vec![(ticket, state.clone())], now: state, is_changed: false }
    }

    pub fn now(&self) -> &State {
        &self.now
    }

    pub fn append(&mut self, wal: &mut Wal<SimDisk>, term: u64, len: usize) -> bool {
        let index = self.now.last.index + 1;
        let appended = wal.append(Entry { index, term, kind: (index % 3) as u8, payload: &payload(index, term, len) });
        let is_appended = is_done(wal, appended);
        self.is_changed |= is_appended;
        if is_appended {
            self.now.last = Position { index, term };
            self.now.entries.insert(index, (term, len));
        }
        is_appended
    }

    pub fn set_hard_state(&mut self, wal: &mut Wal<SimDisk>, hard_state: HardState) {
        let set = wal.set_hard_state(hard_state);
        if is_done(wal, set) {
            self.now.hard_state = hard_state;
            self.is_changed = true;
        }
    }

    pub fn truncate(&mut self, wal: &mut Wal<SimDisk>, from: u64) {
        let truncated = wal.truncate(from);
        if is_done(wal, truncated) {
            let term = self.term(from - 1).expect("it was there");
            self.now.entries.split_off(&from);
            self.now.last = Position { index: from - 1, term };
            self.is_changed = true;
        }
    }

    fn term(&self, index: u64) -> Option<u64> {
        let Compaction { snapshot, compacted } = self.now.compaction;
        let known = [compacted, snapshot].into_iter().find(|known| known.index == index).map(|known| known.term);
        self.now.entries.get(&index).map(|(term, _)| *term).or(known)
    }

    /// Takes a snapshot up to an entry and compacts up to another.
    pub fn compact(&mut self, wal: &mut Wal<SimDisk>, snapshot: u64, up_to: u64) {
        // A disk that failed earlier may have rejected these entries.
        let (Some(snapshot_term), Some(term)) = (self.term(snapshot), self.term(up_to)) else { return };
        let snapshot = Position { index: snapshot, term: snapshot_term };
        if !write_snapshot(wal, snapshot) {
            return;
        }
        let compacted = wal.compact(snapshot, up_to);
        if is_done(wal, compacted) {
            let compacted = Position { index: up_to, term };
            self.now.compaction = Compaction { snapshot, compacted };
            self.now.entries = self.now.entries.split_off(&(up_to + 1));
            self.is_changed = true;
        }
    }

    /// Installs a snapshot of another node.
    pub fn reset(&mut self, wal: &mut Wal<SimDisk>, snapshot: Position) {
        if !write_snapshot(wal, snapshot) {
            return;
        }
        let reset = wal.reset(snapshot);
        if is_done(wal, reset) {
            self.now.compaction = Compaction { snapshot, compacted: snapshot };
            self.now.last = snapshot;
            self.now.entries.clear();
            self.is_changed = true;
        }
    }

    pub fn submit(&mut self, wal: &mut Wal<SimDisk>) {
        let ticket = wal.submit();
        if std::mem::take(&mut self.is_changed) {
            self.batches.push((ticket, self.now.clone()));
        }
    }

    /// Checks the state found after a crash: it must be that after one of the batches, and no batch reported as durable
    /// may be missing.
    pub fn check_found(&self, durable: Ticket, found: &State) {
        let promised =
            self.batches.iter().rposition(|(ticket, _)| *ticket <= durable).expect("the first batch is there");
        let possible = &self.batches[promised..];
        assert!(
            possible.iter().any(|(_, state)| state == found),
            "found {found:?}\npromised {:?}\nlast {:?}",
            possible[0],
            possible[possible.len() - 1]
        );
    }
}

/// Whether the log has done something. It does what it is asked for, unless its disk has failed.
fn is_done<T, E: std::fmt::Debug>(wal: &Wal<SimDisk>, result: Result<T, E>) -> bool {
    if let Err(why) = &result {
        assert!(wal.failure().is_some(), "refused though nothing has failed: {why:?}");
    }
    result.is_ok()
}

fn write_snapshot(wal: &Wal<SimDisk>, position: Position) -> bool {
    let before = wal.disk().faults();
    let written = SnapshotWriter::create(wal.disk().clone(), wal.part(), position, b"about").and_then(|mut writer| {
        writer.write(&snapshot_contents(position))?;
        writer.finish()
    });
    if let Err(why) = &written {
        // A disk that has stopped counts each thing that it refuses.
        assert!(wal.disk().faults() > before, "not written though nothing has failed: {why:?}");
    }
    written.is_ok()
}

fn snapshot_contents(position: Position) -> Vec<u8> {
    payload(position.index, position.term, 700)
}

/// Reads everything in a log, and checks each payload.
pub fn look(wal: &mut Wal<SimDisk>) -> State {
    let mut entries = BTreeMap::new();
    let mut found = Vec::new();
    for index in wal.first_index()..=wal.last().index {
        let (term, kind) = wal.read(index, &mut found).unwrap();
        assert_eq!(wal.term(index), Some(term));
        assert_eq!((&found, kind), (&payload(index, term, found.len()), (index % 3) as u8));
        entries.insert(index, (term, found.len()));
    }
    for outside in [wal.first_index() - 1, wal.last().index + 1] {
        assert!(matches!(wal.read(outside, &mut found), Err(WalError::NoEntry { .. })));
    }
    let compaction = wal.compaction();
    if compaction.snapshot.index > 0 {
        let mut reader = SnapshotReader::open(wal.disk(), wal.part(), compaction.snapshot).unwrap();
        assert_eq!(reader.about(), b"about");
        let mut contents = Vec::new();
        while let Some(block) = reader.next_block().unwrap() {
            contents.extend_from_slice(block);
        }
        assert_eq!(contents, snapshot_contents(compaction.snapshot));
    }
    State { hard_state: wal.hard_state(), compaction, last: wal.last(), entries }
}
