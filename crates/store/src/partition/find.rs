//! Finds a key: in its home line first, then in the lines chained to it.

use super::Partition;
use crate::entry::{entry_bytes, entry_key, kill_entry, read_entry};
use crate::key::Key;
use crate::line::{Kind, POINTERS, Pointer};
use crate::record::Record;

/// The place of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a line of the index.
    Line { home: usize, line: usize },
    /// In the log, `at` bytes into the memory, with its pointer in a line of the index.
    Log { home: usize, line: usize, slot: usize, at: usize },
}

/// True if two keys are the same.
#[inline(always)]
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    // The most common key size compares without a call, word by word: the key was often just written that way, and a
    // wider load would have to wait until those stores reach the cache, behind all others.
    match (a.as_chunks(), b.as_chunks()) {
        (([a0, a1], []), ([b0, b1], [])) => {
            (u64::from_le_bytes(*a0) ^ u64::from_le_bytes(*b0)) | (u64::from_le_bytes(*a1) ^ u64::from_le_bytes(*b1))
                == 0
        }
        _ => a == b,
    }
}

impl Partition {
    /// Returns the place of a key's item, expired or not. Most small items are in their home line, and are found
    /// without a call: a call's result does not fit in registers, so a caller that reads it at once would wait for the
    /// stores.
    #[inline(always)]
    pub(super) fn find(&self, key: &Key<'_>) -> Option<Place> {
        let home = self.table.geometry.home(key.hash().0);
        let cell = self.table.line(&self.memory, home);
        if !cell.is_head() {
            return None;
        }
        if cell.kind() != Kind::Item {
            return self.find_from(key, home, home);
        }
        if is_same(cell.key(), key.bytes()) {
            return Some(Place::Line { home, line: home });
        }
        let next = self.table.next(&self.memory, home, home)?;
        self.find_from(key, home, next)
    }

    /// Returns the place of a key's item in the chain of its home, from a line on.
    #[inline(never)]
    fn find_from(&self, key: &Key<'_>, home: usize, mut line: usize) -> Option<Place> {
        let hash = key.hash().0;
        loop {
            let cell = self.table.line(&self.memory, line);
            if cell.kind() == Kind::Item {
                if is_same(cell.key(), key.bytes()) {
                    return Some(Place::Line { home, line });
                }
            } else {
                for slot in 0..POINTERS {
                    let pointer = cell.pointer(slot);
                    if pointer.is_like(hash) && is_same(entry_key(&self.memory.bytes()[pointer.at()..]), key.bytes()) {
                        return Some(Place::Log { home, line, slot, at: pointer.at() });
                    }
                }
            }
            line = self.table.next(&self.memory, home, line)?;
        }
    }

    /// Returns the place of the pointer to the item at `at` in the log.
    pub(super) fn find_pointer(&self, hash: u64, at: usize) -> Option<Place> {
        let home = self.table.geometry.home(hash);
        let wanted = Pointer::new(hash, at);
        self.table.chain(&self.memory, home).find_map(|line| {
            let cell = self.table.line(&self.memory, line);
            let slot = (0..POINTERS).find(|&slot| cell.kind() == Kind::Pointers && cell.pointer(slot) == wanted)?;
            Some(Place::Log { home, line, slot, at })
        })
    }

    /// As [`Partition::find`], but drops the item if it has expired.
    #[inline]
    pub(super) fn find_live(&mut self, key: &Key<'_>) -> Option<Place> {
        let place = self.find(key)?;
        let expires = match place {
            Place::Line { line, .. } => self.table.line(&self.memory, line).parts().0.expires,
            Place::Log { at, .. } => read_entry(&self.memory.bytes()[at..]).fields.expires,
        };
        if expires != 0 && expires <= self.clock.now {
            self.expire(place);
            return None;
        }
        Some(place)
    }

    /// Returns the item at a place.
    #[inline]
    pub(super) fn record(&self, place: Place) -> Record<'_> {
        match place {
            Place::Line { line, .. } => self.table.line(&self.memory, line).record(),
            Place::Log { at, .. } => read_entry(&self.memory.bytes()[at..]),
        }
    }

    /// Removes an item from the index and the accounting. Lines of its chain may move.
    pub(super) fn drop_item(&mut self, place: Place) {
        let record = self.record(place);
        let (key_bytes, value_bytes) = (record.key.len(), record.value.len());
        self.count_gone(key_bytes + value_bytes);
        match place {
            Place::Line { home, line } => self.table.close(&mut self.memory, home, line),
            Place::Log { home, line, slot, at } => {
                self.kill(at, entry_bytes(key_bytes, value_bytes));
                self.drop_pointer(home, line, slot);
            }
        }
    }

    /// Counts an item of this many bytes as removed.
    fn count_gone(&mut self, bytes: usize) {
        let counters = &mut self.counters;
        debug_assert!(counters.items > 0 && counters.item_bytes >= bytes as u64, "an item goes once");
        counters.items = counters.items.saturating_sub(1);
        counters.item_bytes = counters.item_bytes.saturating_sub(bytes as u64);
    }

    /// Removes a pointer from its line, and the line from its chain if that was the last one.
    pub(super) fn drop_pointer(&mut self, home: usize, line: usize, slot: usize) {
        let cell = self.table.line_mut(&mut self.memory, line);
        cell.set_pointer(slot, Pointer::NONE);
        if cell.first_pointer().is_none() {
            self.table.close(&mut self.memory, home, line);
        }
    }

    /// Counts the bytes of an item in the log as dead.
    pub(super) fn kill(&mut self, at: usize, bytes: usize) {
        kill_entry(&mut self.memory.bytes_mut()[at..at + bytes]);
        self.log.kill(at, bytes);
    }
}
