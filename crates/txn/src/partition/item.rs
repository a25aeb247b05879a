//! The state under a key.

use smallvec::SmallVec;

use crate::ids::Version;
use crate::limits::ITEM_BYTES;

/// A key, in place if it has no more bytes than the papers' keys and a few more.
pub(super) type Key = SmallVec<[u8; 16]>;
/// A value, in place if it has no more bytes than the papers' values.
pub(super) type Value = SmallVec<[u8; 40]>;

/// An item, a remembered deletion, or a lock on a key without an item.
#[derive(Debug, Default)]
pub(super) struct Item {
    /// Zero if the item is absent and its deletion is forgotten.
    pub version: Version,
    /// The version that the owner of the lock will write; zero if it is not locked.
    pub lock: Version,
    /// `None` if it is absent.
    pub value: Option<Value>,
}

impl Item {
    /// Bytes that it counts.
    pub fn cost(&self, key: &[u8]) -> usize {
        cost(key, self.value.as_deref())
    }
}

/// Bytes that an item counts. Absent items count nothing: the limits of locks and tombstones bound them.
pub(super) fn cost(key: &[u8], value: Option<&[u8]>) -> usize {
    value.map_or(0, |value| cost_of(key.len(), value.len()))
}

/// Bytes that an item counts, given the lengths of its key and value.
pub(super) fn cost_of(key: usize, value: usize) -> usize {
    ITEM_BYTES + key + value
}
