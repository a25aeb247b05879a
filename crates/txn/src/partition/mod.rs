//! One copy of one partition: its items, their versions, and its locks. No I/O, no clock: one thread owns it.
//!
//! An item's version, lock and value are in one table entry, because every read needs all three. That is why items are
//! not in `dunlin-store`: its items move, its headers have no free bits, and a separate lock table would cost every
//! read a second lookup.
//!
//! **Versions** are numbers of the partition, not of the item: each is issued once, with a lock, in ascending order. So
//! an absent item has a version, too: that of its deletion or, once that is forgotten, the highest forgotten one of its
//! table, or of its gap in an ordered table. Whatever happened to an item in between, its version differs from the one
//! that was read.
//!
//! **The low-water mark** is the lowest version whose lock is held. A lock is released after all backups have applied
//! the write, so every version below the mark is applied at all copies, or never will be. The mark travels with each
//! lock and each commit, and tells a backup which deletions it may forget: a message with a version below it is a
//! repeated one.

mod fill;
mod item;
mod items;
mod lock;
mod range;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

use crate::configuration::Table;
use crate::ids::{Epoch, TableId, TransactionId, Version};
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::wire::write::Write;
use item::{Item, Key, Value, cost};
use items::Items;
use lock::Held;

pub(crate) use fill::Donation;
pub(crate) use lock::{Before, NoLock, Wish};
pub(crate) use range::PageLimits;

/// Versions of one epoch; then those of the next begin. So a promoted backup begins above all versions of its
/// predecessor.
const EPOCH_SHIFT: u32 = 40;

/// The epoch in which a version was issued.
pub(crate) fn epoch_of(version: Version) -> Epoch {
    version >> EPOCH_SHIFT
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen<'a> {
    /// The version of the item, or of its absence.
    pub version: Version,
    /// The value; `None` if it is absent.
    pub value: Option<&'a [u8]>,
    /// The owner of its lock.
    pub owner: Option<TransactionId>,
}

impl Seen<'_> {
    pub fn is_locked_by_other(&self, transaction: TransactionId) -> bool {
        self.owner.is_some_and(|owner| owner != transaction)
    }
}

/// A remembered deletion: its version and key.
#[derive(Debug)]
struct Tombstone {
    version: Version,
    table: TableId,
    key: Key,
}

/// Takes the oldest deletion if its version is not above `floor`.
fn take_oldest(all: &mut VecDeque<Tombstone>, floor: Version) -> Option<Tombstone> {
    all.front().filter(|oldest| oldest.version <= floor)?;
    all.pop_front()
}

/// A copy of a partition.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Indexed by table number.
    tables: Vec<Items>,
    /// By the version that the owner will write.
    locks: BTreeMap<Version, Held>,
    /// The highest version that was issued or applied here.
    last: Version,
    /// Every version up to this one is applied at all copies, or never will be.
    floor: Version,
    /// Remembered deletions of hashed tables, roughly in order.
    tombstones: VecDeque<Tombstone>,
    /// Those of ordered tables. They are forgotten sooner: range reads visit them, and a gap remembers the version.
    ordered_tombstones: VecDeque<Tombstone>,
    /// Deletions above this version are remembered: while the copy is being filled, a page may be under way that was
    /// read before them.
    remembered: Version,
    /// Bytes of items, and of the room reserved for them.
    bytes: usize,
    limits: Limits,
}

/// The contents of a copy in numbers, for comparing copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// Items that exist.
    pub items: usize,
    /// Bytes of items, and of the room reserved for them.
    pub bytes: usize,
    /// Locks that are held.
    pub locks: usize,
    /// Remembered deletions.
    pub tombstones: usize,
    /// Bytes of the indexes of ordered tables, which other copies may need more or less of.
    pub index_bytes: usize,
}

impl Partition {
    pub fn new(tables: &[Table], limits: Limits) -> Partition {
        Partition {
            tables: tables.iter().map(|table| Items::new(&table.keys)).collect(),
            locks: BTreeMap::new(),
            last: 0,
            floor: 0,
            tombstones: VecDeque::new(),
            ordered_tombstones: VecDeque::new(),
            remembered: Version::MAX,
            bytes: 0,
            limits,
        }
    }

    /// Adds the tables of a new configuration.
    pub fn grow_tables(&mut self, tables: &[Table]) {
        self.tables.extend(tables.iter().skip(self.tables.len()).map(|table| Items::new(&table.keys)));
    }

    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The table must exist: the participant checks it first.
    fn table(&self, table: TableId) -> &Items {
        &self.tables[usize::from(table.0)]
    }

    fn table_mut(&mut self, table: TableId) -> &mut Items {
        &mut self.tables[usize::from(table.0)]
    }

    /// Loads an item into the cache, if there is one.
    pub fn touch(&self, table: TableId, key: &[u8]) {
        if let Some(Items::Hashed(hashed)) = self.tables.get(usize::from(table.0)) {
            black_box(hashed.version_of(key));
        }
    }

    pub fn look(&self, table: TableId, key: &[u8]) -> Seen<'_> {
        let (version, item) = self.table(table).look(key);
        self.seen(version, item)
    }

    fn seen<'p>(&self, version: Version, item: Option<&'p Item>) -> Seen<'p> {
        let lock = item.map(|item| item.lock).filter(|lock| *lock != 0);
        let owner = lock.and_then(|lock| self.locks.get(&lock)).map(|held| held.owner);
        Seen { version, value: item.and_then(|item| item.value.as_deref()), owner }
    }

    /// The low-water mark of a primary.
    pub fn low(&self) -> Version {
        self.locks.first_key_value().map_or(self.last + 1, |(version, _)| *version)
    }

    /// Raises the low-water mark.
    fn raise_floor(&mut self, low: Version) {
        self.floor = self.floor.max(low.saturating_sub(1));
    }

    /// Applies a write of its primary, unless it is old. Backups do this with commits, all copies with records that
    /// recovery found.
    pub fn apply(&mut self, write: &Write<'_>) {
        let Write { target, version, low, value } = *write;
        let known = self.table(target.table).get(target.key).map_or(0, |item| item.version);
        let newest = if known == 0 { self.floor } else { known };
        if version > newest || is_planted(Mutation::OldWriteApplied) {
            self.set(target.table, target.key, version, value);
        }
        self.last = self.last.max(version);
        self.raise_floor(low);
        self.forget_deletions(0);
    }

    /// Sets an item's value and version. Its lock stays.
    fn set(&mut self, table: TableId, key: &[u8], version: Version, value: Option<&[u8]>) {
        let item = self.table_mut(table).entry(key);
        let before = item.cost(key);
        item.version = version;
        item.value = value.map(Value::from_slice);
        self.bytes = self.bytes - before + cost(key, value);
        if value.is_none() {
            let is_ordered = self.table(table).is_ordered();
            let all = if is_ordered { &mut self.ordered_tombstones } else { &mut self.tombstones };
            all.push_back(Tombstone { version, table, key: Key::from_slice(key) });
        }
    }

    /// Forgets deletions that are applied at all copies: those of ordered tables, and the oldest of hashed tables beyond
    /// the `kept` newest.
    fn forget_deletions(&mut self, kept: usize) {
        let floor = self.floor.min(self.remembered);
        while self.tombstones.len() > kept
            && let Some(oldest) = take_oldest(&mut self.tombstones, floor)
        {
            self.table_mut(oldest.table).forget(&oldest.key, oldest.version);
        }
        while let Some(oldest) = take_oldest(&mut self.ordered_tombstones, floor) {
            self.table_mut(oldest.table).forget(&oldest.key, oldest.version);
        }
    }

    /// Remembered deletions.
    fn tombstones(&self) -> usize {
        self.tombstones.len() + self.ordered_tombstones.len()
    }

    /// Makes it a primary: it has applied all recovered records, and issues versions that no other primary ever issued.
    pub fn promote(&mut self, epoch: Epoch) {
        self.last = self.last.max(epoch << EPOCH_SHIFT);
    }

    /// Bytes of items, and of the room reserved for them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Locks that are held.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    pub fn stats(&self) -> PartitionStats {
        PartitionStats {
            items: self.tables.iter().flat_map(Items::iter).filter(|(_, item)| item.value.is_some()).count(),
            bytes: self.bytes,
            locks: self.locks.len(),
            tombstones: self.tombstones(),
            index_bytes: self.tables.iter().map(Items::index_bytes).sum(),
        }
    }

    /// All items that exist, in no order.
    pub fn items(&self) -> impl Iterator<Item = (TableId, &[u8], Version, &[u8])> {
        self.tables.iter().enumerate().flat_map(|(table, items)| {
            let table = TableId(table as u16);
            items.iter().filter_map(move |(key, item)| Some((table, &key[..], item.version, item.value.as_deref()?)))
        })
    }
}
