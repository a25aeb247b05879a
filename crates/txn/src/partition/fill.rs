//! Filling a new copy of a partition, while writes go on.
//!
//! The new copy is a backup from the beginning, so it gets every write of its time. The primary hands over everything
//! older in pages, key by key. An item of a page is older than whatever the copy has under its key: then it changes
//! nothing.
//!
//! Deletions need care: a page that was read before a deletion may arrive after it. So a copy that is being filled
//! remembers the deletions that it learned of since it asked for the page. The primary has applied all others, because
//! their versions are below its low-water mark: no page that it reads from then on has their items.

use super::Partition;
use super::item::Key;
use crate::ids::{TableId, Version};
use crate::wire::write::Write;

/// The keys of a partition when its copying began. Later keys reach the new copy as writes.
#[derive(Debug)]
pub(crate) struct Donation {
    keys: Vec<(TableId, Key)>,
}

impl Donation {
    /// Keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

impl Partition {
    /// Notes all keys, until the copy is filled: 32 bytes for each, and those of keys that are longer than 16. It holds up the core for as long as that takes.
    pub fn donate(&self) -> Donation {
        let of_table = |(table, items): (usize, &super::Items)| {
            let with_value = items.iter().filter(|(_, item)| item.value.is_some());
            with_value.map(|(key, _)| (TableId(table as u16), key.clone())).collect::<Vec<_>>()
        };
        let mut keys: Vec<_> = self.tables.iter().enumerate().flat_map(of_table).collect();
        // A hash table has another order in each process, and a seed of the simulator is to name a run.
        keys.sort_unstable();
        Donation { keys }
    }

    /// Visits the items of a donation from a place on, until `visit` returns false. Returns the place behind them.
    pub fn page(
        &self,
        donation: &Donation,
        from: usize,
        mut visit: impl FnMut(TableId, &[u8], Version, &[u8]) -> bool,
    ) -> usize {
        for (at, (table, key)) in donation.keys.iter().enumerate().skip(from) {
            let Some(item) = self.table(*table).get(key) else { continue };
            let Some(value) = item.value.as_deref() else { continue };
            if !visit(*table, key, item.version, value) {
                return at;
            }
        }
        donation.keys.len()
    }

    /// Begins to wait for a page: deletions from now on are remembered.
    pub fn await_page(&mut self) {
        self.remembered = self.floor;
        self.forget_deletions(0);
    }

    /// Takes an item of a page, unless the copy knows a later state of the key.
    pub fn fill(&mut self, write: &Write<'_>) {
        let Write { target, version, value, .. } = *write;
        let known = self.table(target.table).get(target.key).map_or(0, |item| item.version);
        if version > known {
            self.set(target.table, target.key, version, value);
        }
        self.last = self.last.max(version);
    }

    /// It has all items.
    pub fn filled(&mut self) {
        self.remembered = Version::MAX;
        self.forget_deletions(0);
    }

    /// Makes a primary a backup. Its locks protect nothing any more: what their owners have logged is replayed, and the
    /// rest never commits.
    pub fn demote(&mut self) {
        let all = std::mem::take(&mut self.locks);
        for held in all.into_values() {
            self.bytes -= held.reserved;
            self.unlocked(held.table, &held.key);
        }
    }
}
