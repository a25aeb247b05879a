//! The bytes of an item in the tier: a checked header, the key, the value, and up to 7 bytes of padding.

use crate::item::{Item, Marks, UnixSeconds};

/// Bytes of the header.
pub(super) const HEAD_BYTES: usize = 48;

const AT_CHECKSUM: usize = 0;
const AT_VALUE_LEN: usize = 4;
const AT_PLACE: usize = 8;
const AT_NONCE: usize = 16;
const AT_CAS: usize = 24;
const AT_FLAGS: usize = 32;
const AT_EXPIRES: usize = 36;
const AT_LAST_ACCESS: usize = 40;
const AT_KEY_LEN: usize = 44;
const AT_MARKS: usize = 45;

/// Returns the bytes of a record with key and value of these lengths.
pub(super) fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (HEAD_BYTES + key_bytes + value_bytes).next_multiple_of(8)
}

/// What makes a record that of one place in one tier: an old record, or one of another file, is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub nonce: u64,
    pub place: u64,
}

/// Appends the record of an item.
pub(super) fn write(out: &mut Vec<u8>, origin: Origin, key: &[u8], item: &Item<'_>) {
    let start = out.len();
    out.resize(start + HEAD_BYTES, 0);
    let head = &mut out[start..];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    // No value is longer than 1 MiB.
    put(AT_VALUE_LEN, &(item.value.len() as u32).to_le_bytes());
    put(AT_PLACE, &origin.place.to_le_bytes());
    put(AT_NONCE, &origin.nonce.to_le_bytes());
    put(AT_CAS, &item.cas.to_le_bytes());
    put(AT_FLAGS, &item.flags.to_le_bytes());
    put(AT_EXPIRES, &item.expires.unwrap_or(0).to_le_bytes());
    put(AT_LAST_ACCESS, &item.last_access.to_le_bytes());
    let marks = item.marks;
    let bits = u8::from(marks.is_fetched) | u8::from(marks.is_stale) << 1 | u8::from(marks.is_won) << 2;
    put(AT_KEY_LEN, &[key.len() as u8, bits]);
    out.extend_from_slice(key);
    out.extend_from_slice(item.value);
    out.resize(start + record_bytes(key.len(), item.value.len()), 0);
    let checksum = crc32c::crc32c(&out[start + AT_VALUE_LEN..]);
    out[start..start + AT_VALUE_LEN].copy_from_slice(&checksum.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Whether these are the bytes that were written for this place: of exactly one record, undamaged, of this tier.
pub(super) fn is_intact(bytes: &[u8], origin: Origin) -> bool {
    bytes.len() >= HEAD_BYTES
        && record_bytes(bytes[AT_KEY_LEN].into(), u32_at(bytes, AT_VALUE_LEN) as usize) == bytes.len()
        && u32_at(bytes, AT_CHECKSUM) == crc32c::crc32c(&bytes[AT_VALUE_LEN..])
        && origin == Origin { nonce: u64_at(bytes, AT_NONCE), place: u64_at(bytes, AT_PLACE) }
}

/// Returns the key and the item of an intact record.
pub(super) fn read(bytes: &[u8]) -> (&[u8], Item<'_>) {
    let (key, rest) = bytes[HEAD_BYTES..].split_at(bytes[AT_KEY_LEN].into());
    let bits = bytes[AT_MARKS];
    let expires: UnixSeconds = u32_at(bytes, AT_EXPIRES);
    let item = Item {
        value: &rest[..u32_at(bytes, AT_VALUE_LEN) as usize],
        flags: u32_at(bytes, AT_FLAGS),
        cas: u64_at(bytes, AT_CAS),
        expires: (expires != 0).then_some(expires),
        last_access: u32_at(bytes, AT_LAST_ACCESS),
        marks: Marks { is_fetched: bits & 1 != 0, is_stale: bits & 2 != 0, is_won: bits & 4 != 0 },
    };
    (key, item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_any_changed_bit_is_noticed() {
        let marks = Marks { is_fetched: true, is_stale: false, is_won: true };
        let item = Item { value: b"a wader", flags: 7, cas: u64::MAX, expires: Some(9), last_access: 3, marks };
        let origin = Origin { nonce: 1, place: 1 << 40 };
        let mut bytes = Vec::new();
        write(&mut bytes, origin, b"dunlin", &item);
        assert_eq!(bytes.len(), record_bytes(6, 7));
        assert!(is_intact(&bytes, origin));
        assert_eq!(read(&bytes), (&b"dunlin"[..], item));
        assert!(!is_intact(&bytes, Origin { place: 0, ..origin }), "of another place");
        assert!(!is_intact(&bytes, Origin { nonce: 2, ..origin }), "of another file");
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_intact(&bytes, origin), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!is_intact(&bytes[..bytes.len() - 1], origin));
        assert!(!is_intact(&[], origin));
    }
}
