//! The byte layout of an index line: free, an inline item, or up to seven pointers into the log.
//!
//! `docs/store.md` shows it. The first four bytes are the same for all kinds: the chain link, and the kind.

use std::ops::Range;

use crate::memory::Line;
use crate::record::{Fields, Record, marks_of_bits, marks_to_bits};

/// Bytes for optional fields, key and value.
pub(crate) const CELL_BYTES: usize = 64 - CELL_HEAD_BYTES;
/// Pointers of a line.
pub(crate) const POINTERS: usize = 7;
/// Bits of a pointer that are the place in the log, in units of 8 bytes.
const PLACE_BITS: u32 = 44;

const CELL_HEAD_BYTES: usize = 12;
const CAS_BITS: u32 = 44;

const KIND: u32 = 3 << 8;
const KIND_ITEM: u32 = 1 << 8;
const KIND_POINTERS: u32 = 2 << 8;
const HEAD: u32 = 1 << 10;
const HOT: u32 = 1 << 11;
const MARKS_SHIFT: u32 = 12;
const FLAGS: u32 = 1 << 15;
const EXPIRES: u32 = 1 << 16;
const WIDE_CAS: u32 = 1 << 17;
const KEY_SHIFT: u32 = 18;
const VALUE_SHIFT: u32 = 24;
const MINUTES_HIGH_SHIFT: u32 = 30;
/// The part of the first word that belongs to the chain, not to the item.
const CHAIN: u32 = 0xff | HEAD;

/// The content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Free,
    Item,
    Pointers,
}

/// True if an item of these sizes and fields fits into a line.
#[inline]
pub(crate) fn fits(key_bytes: usize, value_bytes: usize, fields: &Fields) -> bool {
    let optional = optional_bytes(optional_bits(fields));
    key_bytes < 64 && value_bytes < 64 && optional + key_bytes + value_bytes <= CELL_BYTES
}

#[inline]
fn optional_bits(fields: &Fields) -> u32 {
    let bit = |is_there: bool, bit: u32| if is_there { bit } else { 0 };
    bit(fields.flags != 0, FLAGS) | bit(fields.expires != 0, EXPIRES) | bit(fields.cas >> CAS_BITS != 0, WIDE_CAS)
}

#[inline]
fn optional_bytes(head: u32) -> usize {
    ((head >> 15 & 1) * 4 + (head >> 16 & 1) * 4 + (head >> 17 & 1) * 8) as usize
}

impl Line {
    #[inline(always)]
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    #[inline(always)]
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    #[inline(always)]
    fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    #[inline(always)]
    fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        match self.u32(0) & KIND {
            KIND_ITEM => Kind::Item,
            KIND_POINTERS => Kind::Pointers,
            _ => Kind::Free,
        }
    }

    /// True if it is the head of its own home's chain.
    #[inline(always)]
    pub(crate) fn is_head(&self) -> bool {
        self.u32(0) & HEAD != 0
    }

    /// Returns the next line of the chain, as an offset from its home; 0 if the chain ends.
    #[inline(always)]
    pub(crate) fn link(&self) -> i8 {
        self.0[0] as i8
    }

    pub(crate) fn set_link(&mut self, link: i8) {
        self.0[0] = link as u8;
    }

    /// Makes it an empty line of a chain.
    pub(crate) fn enchain(&mut self, is_head: bool, link: i8) {
        self.set_u32(0, u32::from(link as u8) | if is_head { HEAD } else { 0 });
    }

    /// Copies content and link of another line; `is_head` is set separately.
    pub(crate) fn copy_from(&mut self, other: &Line, is_head: bool) {
        *self = *other;
        let head = self.u32(0) & !HEAD | if is_head { HEAD } else { 0 };
        self.set_u32(0, head);
    }

    pub(crate) fn free(&mut self) {
        self.set_u32(0, 0);
    }

    #[inline(always)]
    pub(crate) fn is_hot(&self) -> bool {
        self.u32(0) & HOT != 0
    }

    pub(crate) fn cool(&mut self) {
        let head = self.u32(0) & !HOT;
        self.set_u32(0, head);
    }

    /// Returns the item's key.
    #[inline(always)]
    pub(crate) fn key(&self) -> &[u8] {
        let head = self.u32(0);
        let start = CELL_HEAD_BYTES + optional_bytes(head);
        let len = (head >> KEY_SHIFT & 63) as usize;
        &self.0[start..start + len]
    }

    /// Returns the item.
    #[inline]
    pub(crate) fn record(&self) -> Record<'_> {
        let (fields, key, value) = self.parts();
        Record { key: &self.0[key], value: &self.0[value], fields }
    }

    /// Returns the item's fields, and the ranges of its key and value.
    #[inline]
    pub(crate) fn parts(&self) -> (Fields, Range<usize>, Range<usize>) {
        let head = self.u32(0);
        let low = self.u64(4);
        let mut at = CELL_HEAD_BYTES;
        let mut fields = Fields {
            flags: 0,
            expires: 0,
            cas: low & ((1 << CAS_BITS) - 1),
            minutes: (low >> CAS_BITS) as u32 | (head >> MINUTES_HIGH_SHIFT << 20),
            marks: marks_of_bits(head >> MARKS_SHIFT & 7),
            is_hot: head & HOT != 0,
        };
        if head & (WIDE_CAS | FLAGS | EXPIRES) != 0 {
            if head & WIDE_CAS != 0 {
                fields.cas = self.u64(at);
                at += 8;
            }
            if head & FLAGS != 0 {
                fields.flags = self.u32(at);
                at += 4;
            }
            if head & EXPIRES != 0 {
                fields.expires = self.u32(at);
                at += 4;
            }
        }
        let key_end = at + (head >> KEY_SHIFT & 63) as usize;
        let value_end = key_end + (head >> VALUE_SHIFT & 63) as usize;
        (fields, at..key_end, key_end..value_end)
    }

    /// Stores an item in a line of a chain. The item must fit ([`fits`]).
    #[inline]
    pub(crate) fn set_record(&mut self, key: &[u8], value: &[u8], fields: &Fields) {
        let optional = optional_bits(fields);
        let head = self.u32(0) & CHAIN
            | KIND_ITEM
            | if fields.is_hot { HOT } else { 0 }
            | marks_to_bits(fields.marks) << MARKS_SHIFT
            | optional
            | (key.len() as u32) << KEY_SHIFT
            | (value.len() as u32) << VALUE_SHIFT
            | fields.minutes >> 20 << MINUTES_HIGH_SHIFT;
        let narrow_cas = if optional & WIDE_CAS != 0 { 0 } else { fields.cas };
        self.set_u32(0, head);
        self.set_u64(4, narrow_cas | u64::from(fields.minutes) << CAS_BITS);
        let mut at = CELL_HEAD_BYTES;
        if optional & WIDE_CAS != 0 {
            self.set_u64(at, fields.cas);
            at += 8;
        }
        if optional & FLAGS != 0 {
            self.set_u32(at, fields.flags);
            at += 4;
        }
        if optional & EXPIRES != 0 {
            self.set_u32(at, fields.expires);
            at += 4;
        }
        self.0[at..at + key.len()].copy_from_slice(key);
        at += key.len();
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    /// Records that the item was read. Writes only if something changes, so that a frequently read line stays clean.
    #[inline]
    pub(crate) fn note_read(&mut self, minutes: u32) {
        let head = self.u32(0);
        let new_head = head & !(3 << MINUTES_HIGH_SHIFT) | HOT | 1 << MARKS_SHIFT | minutes >> 20 << MINUTES_HIGH_SHIFT;
        let low = self.u64(4);
        let new_low = low & ((1 << CAS_BITS) - 1) | u64::from(minutes) << CAS_BITS;
        if (head, low) != (new_head, new_low) {
            self.set_u32(0, new_head);
            self.set_u64(4, new_low);
        }
    }

    /// Makes it a line of pointers, still without any; its role in its chain stays.
    pub(crate) fn clear_pointers(&mut self) {
        let head = self.u32(0) & CHAIN | KIND_POINTERS;
        self.0 = [0; 64];
        self.set_u32(0, head);
    }

    #[inline(always)]
    pub(crate) fn pointer(&self, slot: usize) -> Pointer {
        Pointer(self.u64(8 + slot * 8))
    }

    pub(crate) fn set_pointer(&mut self, slot: usize, pointer: Pointer) {
        self.set_u64(8 + slot * 8, pointer.0);
    }

    pub(crate) fn free_slot(&self) -> Option<usize> {
        (0..POINTERS).find(|&slot| self.pointer(slot) == Pointer::NONE)
    }

    /// Returns the first pointer. A line of pointers always has one, except temporarily inside an operation.
    pub(crate) fn first_pointer(&self) -> Option<Pointer> {
        (0..POINTERS).map(|slot| self.pointer(slot)).find(|&pointer| pointer != Pointer::NONE)
    }
}

/// The place of an item in the log, and 20 bits of its key's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer(u64);

impl Pointer {
    /// No pointer: no item is at the start of memory.
    pub(crate) const NONE: Pointer = Pointer(0);

    /// Points to an item `at` bytes into the memory, a multiple of 8.
    #[inline]
    pub(crate) fn new(hash: u64, at: usize) -> Pointer {
        Pointer((hash << PLACE_BITS) | (at as u64 / 8))
    }

    /// True if its hash bits are those of this hash.
    #[inline(always)]
    pub(crate) fn is_like(self, hash: u64) -> bool {
        (self.0 ^ hash << PLACE_BITS) >> PLACE_BITS == 0 && self != Pointer::NONE
    }

    #[inline(always)]
    pub(crate) fn at(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize * 8
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::MINUTES_MAX;

    fn fields() -> impl Strategy<Value = Fields> {
        let rare = |max: u32| prop_oneof![Just(0), Just(max), any::<u32>()];
        let cas = prop_oneof![0..1u64 << 44, Just((1 << 44) - 1), Just(1 << 44), any::<u64>()];
        (rare(u32::MAX), rare(u32::MAX), cas, 0..=MINUTES_MAX, 0..8u32, any::<bool>()).prop_map(
            |(flags, expires, cas, minutes, marks, is_hot)| Fields {
                flags,
                expires,
                cas,
                minutes,
                marks: marks_of_bits(marks),
                is_hot,
            },
        )
    }

    proptest! {
        #[test]
        fn an_item_reads_back_and_leaves_the_chain_alone(
            fields in fields(), key in prop::collection::vec(any::<u8>(), 1..56), value in prop::collection::vec(any::<u8>(), 0..56),
            link in any::<i8>(), is_head in any::<bool>(), minutes in 0..=MINUTES_MAX,
        ) {
            let optional = usize::from(fields.flags != 0) * 4 + usize::from(fields.expires != 0) * 4 + usize::from(fields.cas >> 44 != 0) * 8;
            prop_assert_eq!(fits(key.len(), value.len(), &fields), key.len() + value.len() + optional <= 52);
            if fits(key.len(), value.len(), &fields) {
                let mut line = Line([0xa5; 64]);
                line.enchain(is_head, link);
                line.set_record(&key, &value, &fields);
                let check = |line: &Line, fields: &Fields| {
                    let record = line.record();
                    assert_eq!((line.key(), record.key, record.value, &record.fields), (&key[..], &key[..], &value[..], fields));
                    assert_eq!((line.kind(), line.is_head(), line.link(), line.is_hot()), (Kind::Item, is_head, link, fields.is_hot));
                };
                check(&line, &fields);
                line.note_read(minutes);
                let marks = crate::item::Marks { is_fetched: true, ..fields.marks };
                check(&line, &Fields { minutes, is_hot: true, marks, ..fields });
                line.cool();
                check(&line, &Fields { minutes, is_hot: false, marks, ..fields });
            }
        }

        #[test]
        fn pointers_keep_place_and_part_of_the_hash(hash in any::<u64>(), place in 1..1u64 << 44, slot in 0..POINTERS) {
            let at = place as usize * 8;
            let mut line = Line([0xff; 64]);
            line.enchain(true, -3);
            line.clear_pointers();
            prop_assert_eq!((line.first_pointer(), line.free_slot()), (None, Some(0)));
            line.set_pointer(slot, Pointer::new(hash, at));
            let pointer = line.pointer(slot);
            prop_assert_eq!((pointer.at(), pointer.is_like(hash), pointer.is_like(hash ^ 1)), (at, true, false));
            prop_assert_eq!((line.first_pointer(), line.kind(), line.is_head(), line.link()), (Some(pointer), Kind::Pointers, true, -3));
        }
    }
}
