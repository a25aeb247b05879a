//! The byte layout of an item in the log: a header of 24 bytes, key, value, and up to 7 bytes of padding to a multiple
//! of 8.

use crate::record::{Fields, Record, marks_of_bits, marks_to_bits};

/// Bytes of the header.
pub(crate) const ENTRY_HEAD_BYTES: usize = 24;

const KEY_SHIFT: u32 = 24;
const DEAD: u64 = 1 << 32;
const HOT: u64 = 1 << 33;
const MARKS_SHIFT: u32 = 34;
const MINUTES_SHIFT: u32 = 37;

/// Returns the bytes of an item with key and value of these lengths.
#[inline]
pub(crate) fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (ENTRY_HEAD_BYTES + key_bytes + value_bytes).next_multiple_of(8)
}

/// The sizes of an item, and whether it is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub key: usize,
    pub value: usize,
    pub is_dead: bool,
}

impl Sizes {
    /// Reads them from the item at the start of these bytes.
    #[inline]
    pub(crate) fn of(bytes: &[u8]) -> Sizes {
        let head = head(bytes);
        Sizes { key: (head >> KEY_SHIFT) as usize & 0xff, value: head as usize & 0xff_ffff, is_dead: head & DEAD != 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        entry_bytes(self.key, self.value)
    }
}

#[inline(always)]
fn head(bytes: &[u8]) -> u64 {
    u64_at(bytes, 0)
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn set_head(bytes: &mut [u8], head: u64) {
    bytes[..8].copy_from_slice(&head.to_le_bytes());
}

/// Returns the key of the item at the start of these bytes.
#[inline(always)]
pub(crate) fn entry_key(bytes: &[u8]) -> &[u8] {
    let len = (head(bytes) >> KEY_SHIFT) as usize & 0xff;
    &bytes[ENTRY_HEAD_BYTES..ENTRY_HEAD_BYTES + len]
}

/// Returns the item at the start of these bytes.
#[inline]
pub(crate) fn read_entry(bytes: &[u8]) -> Record<'_> {
    let head = head(bytes);
    let sizes = Sizes::of(bytes);
    let fields = Fields {
        flags: u32_at(bytes, 16),
        expires: u32_at(bytes, 20),
        cas: u64_at(bytes, 8),
        minutes: (head >> MINUTES_SHIFT) as u32,
        marks: marks_of_bits((head >> MARKS_SHIFT) as u32 & 7),
        is_hot: head & HOT != 0,
    };
    let (key, rest) = bytes[ENTRY_HEAD_BYTES..].split_at(sizes.key);
    Record { key, value: &rest[..sizes.value], fields }
}

/// Writes an item over [`entry_bytes`] bytes.
#[inline]
pub(crate) fn write_entry(bytes: &mut [u8], key: &[u8], value: &[u8], fields: &Fields) {
    write_fields(bytes, key.len(), value.len(), fields);
    let rest = &mut bytes[ENTRY_HEAD_BYTES..];
    rest[..key.len()].copy_from_slice(key);
    rest[key.len()..key.len() + value.len()].copy_from_slice(value);
}

/// Writes the header of an item.
#[inline]
pub(crate) fn write_fields(bytes: &mut [u8], key_bytes: usize, value_bytes: usize, fields: &Fields) {
    let head = value_bytes as u64
        | (key_bytes as u64) << KEY_SHIFT
        | if fields.is_hot { HOT } else { 0 }
        | u64::from(marks_to_bits(fields.marks)) << MARKS_SHIFT
        | u64::from(fields.minutes) << MINUTES_SHIFT;
    set_head(bytes, head);
    bytes[8..16].copy_from_slice(&fields.cas.to_le_bytes());
    bytes[16..20].copy_from_slice(&fields.flags.to_le_bytes());
    bytes[20..24].copy_from_slice(&fields.expires.to_le_bytes());
}

/// Marks the item as dead: nothing points to it any more.
pub(crate) fn kill_entry(bytes: &mut [u8]) {
    let head = head(bytes) | DEAD;
    set_head(bytes, head);
}

/// Records that the item was read. Writes only if something changes.
#[inline]
pub(crate) fn note_entry_read(bytes: &mut [u8], minutes: u32) {
    let head = head(bytes);
    let new = head & ((1 << MINUTES_SHIFT) - 1) | HOT | 1 << MARKS_SHIFT | u64::from(minutes) << MINUTES_SHIFT;
    if head != new {
        set_head(bytes, new);
    }
}

/// Marks the item as not read since eviction last passed by.
pub(crate) fn cool_entry(bytes: &mut [u8]) {
    let head = head(bytes) & !HOT;
    set_head(bytes, head);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Marks;
    use crate::record::MINUTES_MAX;

    #[test]
    fn an_item_reads_back() {
        for (key_bytes, value_bytes) in [(1, 0), (16, 32), (250, 1 << 20), (7, 1)] {
            let (key, value) = (vec![3; key_bytes], vec![9; value_bytes]);
            let marks = Marks { is_fetched: false, is_stale: true, is_won: true };
            let fields = Fields { flags: 5, expires: 77, cas: u64::MAX, minutes: MINUTES_MAX, marks, is_hot: false };
            let mut bytes = vec![0xff; entry_bytes(key_bytes, value_bytes)];
            write_entry(&mut bytes, &key, &value, &fields);
            let record = read_entry(&bytes);
            assert_eq!((record.key, record.value, record.fields), (&key[..], &value[..], fields));
            assert_eq!(entry_key(&bytes), &key[..]);
            note_entry_read(&mut bytes, 4);
            let marks = Marks { is_fetched: true, ..marks };
            assert_eq!(read_entry(&bytes).fields, Fields { minutes: 4, marks, is_hot: true, ..fields });
            cool_entry(&mut bytes);
            kill_entry(&mut bytes);
            assert_eq!(Sizes::of(&bytes), Sizes { key: key_bytes, value: value_bytes, is_dead: true });
            assert_eq!(Sizes::of(&bytes).bytes(), bytes.len());
        }
    }
}
