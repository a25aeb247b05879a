//! The versions of keys that were deleted lately: an earlier write that arrives later must not bring them back.

use std::collections::{HashMap, VecDeque};

use dunlin_store::{KeyHash, UnixSeconds};

use crate::wire::Version;

/// How long a deletion is kept in mind: longer than the packets of an earlier write may be on their way.
pub(crate) const KEPT_SECONDS: UnixSeconds = 10;
/// Deletions that are kept in mind at most, about 10 MB. If there are more, the oldest raise the floor.
const KEPT_MAX: usize = 256 << 10;

/// A deletion, in the order in which they were made.
#[derive(Debug)]
struct Deletion {
    at: UnixSeconds,
    key: KeyHash,
    version: Version,
}

/// What a core keeps in mind of deletions.
#[derive(Debug)]
pub(super) struct Deleted {
    /// So many at most.
    max: usize,
    /// By the hash of a key, the highest version.
    versions: HashMap<KeyHash, Version>,
    order: VecDeque<Deletion>,
    /// The highest version of a deletion that was forgotten before its time, and when its time ends.
    floor: (Version, UnixSeconds),
}

impl Default for Deleted {
    fn default() -> Self {
        Deleted::up_to(KEPT_MAX)
    }
}

impl Deleted {
    /// Keeps so many in mind at most.
    pub fn up_to(max: usize) -> Deleted {
        Deleted { max, versions: HashMap::new(), order: VecDeque::new(), floor: (0, 0) }
    }

    /// Keeps in mind that a key was deleted.
    pub fn note(&mut self, key: KeyHash, version: Version, now: UnixSeconds) {
        let noted = self.versions.entry(key).or_default();
        *noted = version.max(*noted);
        self.order.push_back(Deletion { at: now, key, version });
        while self.order.front().is_some_and(|first| first.at.saturating_add(KEPT_SECONDS) < now) {
            self.forget_first();
        }
        if self.order.len() > self.max
            && let Some(first) = self.forget_first()
        {
            self.floor = (self.floor(now).max(first.version), now.saturating_add(KEPT_SECONDS));
        }
    }

    fn forget_first(&mut self) -> Option<Deletion> {
        let first = self.order.pop_front()?;
        // It may have been deleted again since.
        if self.versions.get(&first.key) == Some(&first.version) {
            self.versions.remove(&first.key);
        }
        Some(first)
    }

    /// Returns the version of the last deletion of a key; 0 if none is kept in mind.
    pub fn version(&self, key: KeyHash) -> Version {
        self.versions.get(&key).copied().unwrap_or(0)
    }

    /// Returns the version up to which deletions may have been forgotten too early; 0 if none were.
    pub fn floor(&self, now: UnixSeconds) -> Version {
        let (floor, until) = self.floor;
        if now <= until { floor } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_kept_for_a_while() {
        let mut deleted = Deleted::default();
        deleted.note(KeyHash(1), 10, 100);
        deleted.note(KeyHash(1), 5, 101);
        deleted.note(KeyHash(2), 7, 110);
        assert_eq!([deleted.version(KeyHash(1)), deleted.version(KeyHash(2)), deleted.version(KeyHash(3))], [10, 7, 0]);
        deleted.note(KeyHash(3), 8, 112);
        assert_eq!([deleted.version(KeyHash(1)), deleted.version(KeyHash(2)), deleted.version(KeyHash(3))], [0, 7, 8]);
        assert_eq!(deleted.floor(112), 0, "those that are forgotten in time raise no floor");
    }

    #[test]
    fn too_many_deletions_raise_a_floor_that_ends() {
        let mut deleted = Deleted::default();
        let count = KEPT_MAX as u64 + 3;
        (0..count).for_each(|key| deleted.note(KeyHash(key), 1000 + key, 50));
        assert_eq!((deleted.versions.len(), deleted.order.len()), (KEPT_MAX, KEPT_MAX));
        assert_eq!((deleted.version(KeyHash(2)), deleted.version(KeyHash(3))), (0, 1003));
        assert_eq!((deleted.floor(50), deleted.floor(60), deleted.floor(61)), (1002, 1002, 0));
    }
}
