//! Items as bytes, and blocks of them.

use super::error::SnapshotError;
use super::format::{BLOCK_BYTES, RECORD_HEADER_BYTES, u32_at};
use crate::item::{Item, UnixSeconds};
use crate::key::KEY_BYTES_MAX;
use crate::store::VALUE_BYTES_MAX;

const HAS_EXPIRY: u8 = 1;
const IS_STALE: u8 = 2;

/// An item in a snapshot. CAS tokens are not saved: a loaded item gets a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// 1 to [`KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// Up to [`VALUE_BYTES_MAX`] bytes.
    pub value: &'a [u8],
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// When it expires; `None` if never.
    pub expires: Option<UnixSeconds>,
    /// Whether it was invalidated ([`crate::Marks::is_stale`]).
    pub is_stale: bool,
}

impl<'a> Record<'a> {
    /// Creates the record of an item.
    pub fn of(key: &'a [u8], item: &Item<'a>) -> Record<'a> {
        Record { key, value: item.value, flags: item.flags, expires: item.expires, is_stale: item.marks.is_stale }
    }

    /// Parses the record at the start of some bytes at `offset`, and returns its length as well.
    pub(super) fn parse(bytes: &'a [u8], offset: u64) -> Result<(Record<'a>, usize), SnapshotError> {
        let malformed = |at, what| SnapshotError::Malformed { offset: offset + at, what };
        let Some((header, rest)) = bytes.split_at_checked(RECORD_HEADER_BYTES) else {
            return Err(malformed(0, "a record is longer than its block"));
        };
        let (key_len, marks) = (usize::from(header[0]), header[1]);
        let (value_len, flags, expires) = (u32_at(header, 2) as usize, u32_at(header, 6), u32_at(header, 10));
        if !(1..=KEY_BYTES_MAX).contains(&key_len) {
            return Err(malformed(0, "no key has that length"));
        }
        if marks & !(HAS_EXPIRY | IS_STALE) != 0 {
            return Err(malformed(1, "a record has unknown marks"));
        }
        if value_len > VALUE_BYTES_MAX {
            return Err(malformed(2, "a value is longer than values may be"));
        }
        let has_expiry = marks & HAS_EXPIRY != 0;
        if !has_expiry && expires != 0 {
            return Err(malformed(10, "a record that does not expire has a time when it does"));
        }
        let Some((key, value)) = rest.get(..key_len + value_len).map(|rest| rest.split_at(key_len)) else {
            return Err(malformed(0, "a record is longer than its block"));
        };
        let record =
            Record { key, value, flags, expires: has_expiry.then_some(expires), is_stale: marks & IS_STALE != 0 };
        Ok((record, RECORD_HEADER_BYTES + key_len + value_len))
    }
}

/// Records that are written together.
#[derive(Debug, Default)]
pub struct Block {
    payload: Vec<u8>,
    records: u32,
}

impl Block {
    /// Adds a record.
    ///
    /// # Panics
    /// If its key or value is longer than any store allows, or the block was full.
    pub fn push(&mut self, record: &Record<'_>) {
        assert!(
            (1..=KEY_BYTES_MAX).contains(&record.key.len()) && record.value.len() <= VALUE_BYTES_MAX,
            "an item within the limits"
        );
        assert!(!self.is_full(), "a full block takes no more");
        let expiry_mark = if record.expires.is_some() { HAS_EXPIRY } else { 0 };
        let stale_mark = if record.is_stale { IS_STALE } else { 0 };
        let mut header = [0; RECORD_HEADER_BYTES];
        header[0] = record.key.len() as u8;
        header[1] = expiry_mark | stale_mark;
        header[2..6].copy_from_slice(&(record.value.len() as u32).to_le_bytes());
        header[6..10].copy_from_slice(&record.flags.to_le_bytes());
        header[10..14].copy_from_slice(&record.expires.unwrap_or(0).to_le_bytes());
        self.payload.extend_from_slice(&header);
        self.payload.extend_from_slice(record.key);
        self.payload.extend_from_slice(record.value);
        self.records += 1;
    }

    /// Whether it should be written now: its records have reached [`BLOCK_BYTES`].
    pub fn is_full(&self) -> bool {
        self.payload.len() >= BLOCK_BYTES
    }

    /// Whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the number of records.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Returns the encoded records.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}
