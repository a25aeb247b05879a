//! The index of a tier: where the record of a hash is. Open addressing in one array that never grows, so that no
//! operation ever moves the whole table; a removed entry is filled by those behind it, so that none is left behind.

use std::ops::RangeInclusive;

use crate::item::UnixSeconds;

/// Bits of a [`super::Label`].
pub(super) const LABEL_BITS: u32 = 12;
/// Lengths are multiples of this.
const LEN_UNIT: u32 = 8;
/// The lowest bits of the third word: the length, in units.
const LEN_BITS: u32 = 19;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;
/// Longest record.
pub(super) const LEN_MAX: usize = (LEN_MASK * LEN_UNIT) as usize;
const LABEL_MASK: u32 = (1 << LABEL_BITS) - 1;
/// Set in an entry that was read since it was written.
const WAS_READ: u32 = 1 << 31;
/// Slots in each range of hashes that [`Index::range_bits`] means.
const RANGE_SLOTS: usize = 64;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub place: u64,
    /// Above zero, a multiple of [`LEN_UNIT`], at most [`LEN_MAX`].
    pub len: u32,
    /// Of its key; below 2^[`LABEL_BITS`].
    pub label: u16,
    /// Zero if never.
    pub expires: UnixSeconds,
    pub was_read: bool,
}

impl Entry {
    pub fn has_expired(&self, now: UnixSeconds) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// Hash, place, and length with label and expiry; a length of zero means free. Whole numbers, so that the system supplies zeros
/// when they are first touched.
type Slot = [u64; 3];

const FREE: Slot = [0; 3];
/// Bytes of memory for each entry: four fifths of the slots are used at most.
pub(super) const ENTRY_BYTES: usize = size_of::<Slot>() * 5 / 4;
/// The same for its token, if tokens are kept.
pub(super) const TOKEN_BYTES: usize = size_of::<u64>() * 5 / 4;

fn is_free(slot: &Slot) -> bool {
    slot[2] as u32 & LEN_MASK == 0
}

fn entry(slot: &Slot) -> Entry {
    let word = slot[2] as u32;
    Entry {
        place: slot[1],
        len: (word & LEN_MASK) * LEN_UNIT,
        label: (word >> LEN_BITS & LABEL_MASK) as u16,
        expires: (slot[2] >> 32) as u32,
        was_read: word & WAS_READ != 0,
    }
}

#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<Slot>,
    /// The token of each slot's item; empty if none are kept.
    tokens: Vec<u64>,
    len: usize,
    max: usize,
}

impl Index {
    /// Creates an index of at most `max` entries, with or without the tokens of their items.
    pub fn new(max: usize, keeps_tokens: bool) -> Index {
        let slots = max + max.div_ceil(4) + 1;
        Index { slots: vec![FREE; slots], tokens: vec![0; if keeps_tokens { slots } else { 0 }], len: 0, max }
    }

    /// Returns the bytes of memory of all entries.
    pub fn bytes(&self) -> usize {
        self.len * (ENTRY_BYTES + if self.tokens.is_empty() { 0 } else { TOKEN_BYTES })
    }

    /// Returns the number of bits for which 2^bits ranges of hashes have a few dozen entries each at most, on average.
    pub fn range_bits(&self) -> u32 {
        (self.slots.len() / RANGE_SLOTS).max(1).ilog2()
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

    /// Returns the token of an entry's item; `None` if there is no entry, or tokens are not kept.
    #[inline]
    pub fn token(&self, hash: u64) -> Option<u64> {
        let at = self.slot(hash);
        if is_free(&self.slots[at]) { None } else { self.tokens.get(at).copied() }
    }

    /// Passes each entry whose hash is in a range to `each`. Takes time proportional to the range.
    pub fn visit(&self, hashes: &RangeInclusive<u64>, mut each: impl FnMut(u64, Entry)) {
        let (mut at, last) = (self.home(*hashes.start()), self.home(*hashes.end()));
        // Entries stand at their homes or behind them, before the next free slot.
        let mut is_behind = false;
        for _ in 0..self.slots.len() {
            let slot = &self.slots[at];
            if is_free(slot) && is_behind {
                return;
            }
            if !is_free(slot) && hashes.contains(&slot[0]) {
                each(slot[0], entry(slot));
            }
            is_behind |= at == last;
            at = self.next(at);
        }
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

    /// Adds or replaces the entry of a hash, and its item's token; it is not full.
    pub fn insert(&mut self, hash: u64, entry: Entry, token: u64) {
        let units = entry.len / LEN_UNIT;
        debug_assert!(units != 0 && units <= LEN_MASK && entry.len.is_multiple_of(LEN_UNIT), "{entry:?}");
        let at = self.slot(hash);
        if is_free(&self.slots[at]) {
            assert!(!self.is_full(), "an index of {} entries", self.len);
            self.len += 1;
        }
        let label = (u32::from(entry.label) & LABEL_MASK) << LEN_BITS;
        let word = units | label | if entry.was_read { WAS_READ } else { 0 };
        self.slots[at] = [hash, entry.place, u64::from(word) | u64::from(entry.expires) << 32];
        if let Some(place) = self.tokens.get_mut(at) {
            *place = token;
        }
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
                if !self.tokens.is_empty() {
                    self.tokens[hole] = self.tokens[at];
                }
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
            let mut index = Index::new(20, true);
            let mut model = HashMap::new();
            for (key, step, len) in steps {
                // The highest and the lowest homes, next to each other.
                let hash = (key << 60) | key | if key % 2 == 0 { u64::MAX << 58 } else { 0 };
                let (len, label) = (len * LEN_UNIT, (len * 41) as u16 & LABEL_MASK as u16);
                let entry = Entry { place: key, len, label, expires: len, was_read: false };
                let token = key << 32 | u64::from(len);
                match step {
                    0 | 1 if !index.is_full() || model.contains_key(&hash) => {
                        index.insert(hash, entry, token);
                        model.insert(hash, (entry, token));
                    }
                    2 => prop_assert_eq!(index.remove(hash), model.remove(&hash).map(|(entry, _)| entry)),
                    _ => {
                        let before = model.get_mut(&hash).map(|(entry, _)| std::mem::replace(&mut entry.was_read, true));
                        prop_assert_eq!(index.note_read(hash), before.unwrap_or(false));
                    }
                }
                prop_assert_eq!(index.len(), model.len());
                model.iter().try_for_each(|(hash, (entry, token))| {
                    prop_assert_eq!(index.get(*hash), Some(*entry));
                    prop_assert_eq!(index.token(*hash), Some(*token));
                    Ok(())
                })?;
                for range in [0..=u64::MAX, hash..=hash, 0..=hash, hash..=u64::MAX] {
                    let mut visited = HashMap::new();
                    index.visit(&range, |hash, entry| assert_eq!(visited.insert(hash, entry), None, "once"));
                    let in_range = model.iter().filter(|(hash, _)| range.contains(hash));
                    prop_assert_eq!(visited, in_range.map(|(hash, (entry, _))| (*hash, *entry)).collect());
                }
            }
            index.clear();
            prop_assert!(model.keys().all(|hash| index.get(*hash).is_none()));
        }
    }
}
