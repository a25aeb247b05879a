//! The index of a tier: where the record of a hash is. Open addressing in one array that never grows, so that no
//! operation ever moves the whole table; a removed entry is filled by those behind it, so that none is left behind.

use crate::item::UnixSeconds;

/// Set in the length of an entry that was read since it was written.
const WAS_READ: u32 = 1 << 31;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub place: u64,
    /// Above zero, below 2^31.
    pub len: u32,
    /// Zero if never.
    pub expires: UnixSeconds,
    pub was_read: bool,
}

impl Entry {
    pub fn has_expired(&self, now: UnixSeconds) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// Hash, place, and length with expiry; a length of zero means free. Whole numbers, so that the system supplies zeros
/// when they are first touched.
type Slot = [u64; 3];

const FREE: Slot = [0; 3];
/// Bytes of memory for each entry: four fifths of the slots are used at most.
pub(super) const ENTRY_BYTES: usize = size_of::<Slot>() * 5 / 4;

fn is_free(slot: &Slot) -> bool {
    slot[2] as u32 == 0
}

fn entry(slot: &Slot) -> Entry {
    let len = slot[2] as u32;
    Entry { place: slot[1], len: len & !WAS_READ, expires: (slot[2] >> 32) as u32, was_read: len & WAS_READ != 0 }
}

#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<Slot>,
    len: usize,
    max: usize,
}

impl Index {
    /// Creates an index of at most `max` entries.
    pub fn new(max: usize) -> Index {
        Index { slots: vec![FREE; max + max.div_ceil(4) + 1], len: 0, max }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_full(&self) -> bool {
        self.len >= self.max
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// Returns the slot of a hash, or the free one where it belongs.
    fn slot(&self, hash: u64) -> usize {
        let mut at = self.home(hash);
        while !is_free(&self.slots[at]) && self.slots[at][0] != hash {
            at = self.next(at);
        }
        at
    }

    #[inline]
    pub fn get(&self, hash: u64) -> Option<Entry> {
        let slot = &self.slots[self.slot(hash)];
        (!is_free(slot)).then(|| entry(slot))
    }

    /// Notes that a record was read; returns whether it was before.
    pub fn note_read(&mut self, hash: u64) -> bool {
        let at = self.slot(hash);
        let before = entry(&self.slots[at]).was_read;
        if !is_free(&self.slots[at]) {
            self.slots[at][2] |= u64::from(WAS_READ);
        }
        before
    }

    /// Adds or replaces the entry of a hash; it is not full.
    pub fn insert(&mut self, hash: u64, entry: Entry) {
        debug_assert!(entry.len != 0 && entry.len & WAS_READ == 0);
        let at = self.slot(hash);
        if is_free(&self.slots[at]) {
            assert!(!self.is_full(), "an index of {} entries", self.len);
            self.len += 1;
        }
        let len = entry.len | if entry.was_read { WAS_READ } else { 0 };
        self.slots[at] = [hash, entry.place, u64::from(len) | u64::from(entry.expires) << 32];
    }

    pub fn remove(&mut self, hash: u64) -> Option<Entry> {
        let mut hole = self.slot(hash);
        if is_free(&self.slots[hole]) {
            return None;
        }
        let removed = entry(&self.slots[hole]);
        let mut at = hole;
        loop {
            at = self.next(at);
            if is_free(&self.slots[at]) {
                break;
            }
            // An entry moves to the hole unless its home lies behind the hole.
            let home = self.home(self.slots[at][0]);
            let stays = if hole <= at { (hole + 1..=at).contains(&home) } else { home > hole || home <= at };
            if !stays {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = FREE;
        self.len -= 1;
        Some(removed)
    }

    pub fn clear(&mut self) {
        // New zeros from the system, rather than zeros written one by one.
        self.slots = vec![FREE; self.slots.len()];
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few homes, so that chains are long and wrap around.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..24, 0u8..4, 1u32..100), 1..400)) {
            let mut index = Index::new(20);
            let mut model = HashMap::new();
            for (key, step, len) in steps {
                // The highest and the lowest homes, next to each other.
                let hash = (key << 60) | key | if key % 2 == 0 { u64::MAX << 58 } else { 0 };
                let entry = Entry { place: key, len, expires: len, was_read: false };
                match step {
                    0 | 1 if !index.is_full() || model.contains_key(&hash) => {
                        index.insert(hash, entry);
                        model.insert(hash, entry);
                    }
                    2 => prop_assert_eq!(index.remove(hash), model.remove(&hash)),
                    _ => {
                        let before = model.get_mut(&hash).map(|entry| std::mem::replace(&mut entry.was_read, true));
                        prop_assert_eq!(index.note_read(hash), before.unwrap_or(false));
                    }
                }
                prop_assert_eq!(index.len(), model.len());
                model.iter().try_for_each(|(hash, entry)| {
                    prop_assert_eq!(index.get(*hash), Some(*entry));
                    Ok(())
                })?;
            }
            index.clear();
            prop_assert!(model.keys().all(|hash| index.get(*hash).is_none()));
        }
    }
}
