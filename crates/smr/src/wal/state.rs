//! The contents of a log: the state that its records result in, and the places of its entries. The log itself and its
//! recovery apply records by the same rules, so that nothing is written that would not be read.

use std::collections::VecDeque;

use super::error::Misplaced;
use super::record::{Base, Compaction, HardState, Position};

/// The highest entry number, so that there is always one after it.
const INDEX_MAX: u64 = u64::MAX - 1;

/// The place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub term: u64,
    /// The segment; [`Slot::STAGED`] until the entry has a place.
    pub segment: u64,
    /// The offset of its payload in the segment, or in the frame while it has no place.
    pub offset: u32,
    pub payload_bytes: u32,
    /// The checksum of the payload, so that a later read detects damage.
    pub checksum: u32,
    pub kind: u8,
}

impl Slot {
    /// The segment of entries that have no place yet.
    pub const STAGED: u64 = u64::MAX;
}

/// The state of a log.
#[derive(Debug, Default)]
pub struct LogState {
    base: Base,
    /// The existing entries: those that are not compacted, and not before the first segment.
    slots: VecDeque<Slot>,
    /// Entries before this one are unknown, since their segments are removed. They must turn out to be compacted.
    known_from: u64,
}

impl LogState {
    /// Creates the state at the start of a segment; nothing before that is known.
    pub fn new(base: Base) -> Result<LogState, Misplaced> {
        let Compaction { snapshot, compacted } = base.compaction;
        if compacted.index > snapshot.index || snapshot.index > base.last.index || base.last.index > INDEX_MAX {
            return Err(Misplaced("a segment begins with a state that cannot be"));
        }
        Ok(LogState { base, slots: VecDeque::new(), known_from: base.last.index + 1 })
    }

    /// Returns everything but the entries.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Returns the first existing entry, or the first that would exist.
    pub fn first_index(&self) -> u64 {
        self.base.last.index + 1 - self.slots.len() as u64
    }

    /// Whether all entries are known that were not compacted.
    pub fn is_complete(&self) -> bool {
        self.known_from <= self.base.compaction.compacted.index + 1
    }

    /// Returns the place of an entry.
    pub fn slot(&self, index: u64) -> Option<&Slot> {
        let at = index.checked_sub(self.first_index())?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// Returns the term of an existing entry, or of the last compacted one.
    pub fn term(&self, index: u64) -> Option<u64> {
        let Base { compaction: Compaction { compacted, snapshot }, last, .. } = self.base;
        match self.slot(index) {
            Some(slot) => Some(slot.term),
            None => [compacted, snapshot, last].iter().find(|known| known.index == index).map(|known| known.term),
        }
    }

    /// Returns the segment that holds the first entry, if there is one.
    pub fn first_segment(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.segment)
    }

    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.base.hard_state = hard_state;
    }

    /// Whether [`LogState::append`] would accept an entry.
    pub fn check_entry(&self, index: u64, term: u64) -> Result<(), Misplaced> {
        let last = self.base.last;
        if index != last.index + 1 || index > INDEX_MAX {
            return Err(Misplaced("an entry does not follow the one before it"));
        }
        if term < last.term.max(1) {
            return Err(Misplaced("an entry has a lower term than the one before it"));
        }
        Ok(())
    }

    pub fn append(&mut self, index: u64, slot: Slot) -> Result<(), Misplaced> {
        self.check_entry(index, slot.term)?;
        self.base.last = Position { index, term: slot.term };
        self.slots.push_back(slot);
        Ok(())
    }

    /// Whether [`LogState::truncate`] would succeed.
    pub fn check_truncate(&self, last: Position) -> Result<(), Misplaced> {
        if last.index >= self.base.last.index {
            return Err(Misplaced("there is nothing to truncate"));
        }
        if last.index < self.base.compaction.snapshot.index {
            return Err(Misplaced("entries cannot be truncated that are in a snapshot"));
        }
        if self.term(last.index).is_some_and(|term| term != last.term) {
            return Err(Misplaced("the entry before a truncation has another term"));
        }
        Ok(())
    }

    /// Makes `last` the last entry.
    pub fn truncate(&mut self, last: Position) -> Result<(), Misplaced> {
        self.check_truncate(last)?;
        let kept = (last.index + 1).saturating_sub(self.first_index());
        self.slots.truncate(kept as usize);
        self.base.last = last;
        self.known_from = self.known_from.min(last.index + 1);
        Ok(())
    }

    /// Whether [`LogState::compact`] would succeed.
    pub fn check_compact(&self, Compaction { snapshot, compacted }: Compaction) -> Result<(), Misplaced> {
        let before = self.base.compaction;
        if snapshot.index > self.base.last.index {
            return Err(Misplaced("a snapshot has entries that the log does not have"));
        }
        if self.term(snapshot.index).is_some_and(|term| term != snapshot.term) {
            return Err(Misplaced("a snapshot ends with another entry than the log has there"));
        }
        if compacted.index > snapshot.index {
            return Err(Misplaced("entries cannot be compacted that are in no snapshot"));
        }
        if snapshot.index < before.snapshot.index || compacted.index < before.compacted.index {
            return Err(Misplaced("a snapshot is older than the one before it"));
        }
        Ok(())
    }

    pub fn compact(&mut self, compaction: Compaction) -> Result<(), Misplaced> {
        self.check_compact(compaction)?;
        let first = self.first_index();
        let gone = (compaction.compacted.index + 1).saturating_sub(first);
        self.slots.drain(..self.slots.len().min(gone as usize));
        self.base.compaction = compaction;
        Ok(())
    }

    /// Whether [`LogState::reset`] would succeed.
    pub fn check_reset(&self, snapshot: Position) -> Result<(), Misplaced> {
        if snapshot.index < self.base.compaction.snapshot.index {
            return Err(Misplaced("a snapshot is older than the one before it"));
        }
        if !(1..=INDEX_MAX).contains(&snapshot.index) {
            return Err(Misplaced("a snapshot ends with an entry that cannot be"));
        }
        Ok(())
    }

    pub fn reset(&mut self, snapshot: Position) -> Result<(), Misplaced> {
        self.check_reset(snapshot)?;
        self.slots.clear();
        self.base.last = snapshot;
        self.base.compaction = Compaction { snapshot, compacted: snapshot };
        self.known_from = snapshot.index + 1;
        Ok(())
    }

    /// Assigns the entries from `index` on, which have no place yet, their places in a segment.
    pub fn place(&mut self, index: u64, segment: u64, payload_start: u32) {
        let at = index.saturating_sub(self.first_index()) as usize;
        for slot in self.slots.iter_mut().skip(at) {
            slot.segment = segment;
            slot.offset += payload_start;
        }
    }
}
