//! The items of one table in one copy of a partition, and the versions of absent keys.

use std::collections::HashMap;

use dunlin_index::{Gap, Index, Order, Range, pin};
use foldhash::fast::RandomState;
use slab::Slab;

use super::item::{Item, Key};
use crate::configuration::Keys;
use crate::ids::Version;

/// A table from keys to items.
#[derive(Debug)]
pub(super) enum Items {
    Hashed(Hashed),
    Ordered(Box<Ordered>),
}

/// A hash table.
#[derive(Debug, Default)]
pub(super) struct Hashed {
    items: HashMap<Key, Item, RandomState>,
    /// The highest version of a forgotten deletion: the version of all unknown keys.
    absent: Version,
}

/// An index from keys to places of entries: versions and locks change more often than keys, and in place.
#[derive(Debug)]
pub(super) struct Ordered {
    index: Index,
    entries: Slab<Entry>,
    /// The version of the gap behind the last entry.
    last_gap: Version,
}

/// An item of an ordered table, and the gap before it.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: Key,
    pub item: Item,
    /// The highest version of a forgotten deletion between the entry before this one and this one, or of this key: the
    /// version of all unknown keys there. A gap that is divided by an insertion gives both parts its version; gaps that
    /// a removal joins get the higher one.
    pub gap: Version,
}

impl Entry {
    /// The version of the item, or of its absence.
    pub fn version(&self) -> Version {
        if self.item.version == 0 { self.gap } else { self.item.version }
    }
}

impl Items {
    pub fn new(keys: &Keys) -> Items {
        match keys {
            Keys::Hashed => Items::Hashed(Hashed::default()),
            Keys::Ordered { .. } => Items::Ordered(Box::new(Ordered::new())),
        }
    }

    pub fn is_ordered(&self) -> bool {
        matches!(self, Items::Ordered(_))
    }

    pub fn get(&self, key: &[u8]) -> Option<&Item> {
        match self {
            Items::Hashed(hashed) => hashed.items.get(key),
            Items::Ordered(ordered) => Some(&ordered.entries[ordered.find(key)?].item),
        }
    }

    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut Item> {
        match self {
            Items::Hashed(hashed) => hashed.items.get_mut(key),
            Items::Ordered(ordered) => {
                let at = ordered.find(key)?;
                Some(&mut ordered.entries[at].item)
            }
        }
    }

    /// The version of a key or of its absence, and its item if there is one.
    pub fn look(&self, key: &[u8]) -> (Version, Option<&Item>) {
        match self {
            Items::Hashed(hashed) => {
                let item = hashed.items.get(key);
                (item.map(|item| item.version).filter(|version| *version > 0).unwrap_or(hashed.absent), item)
            }
            Items::Ordered(ordered) => match ordered.find(key) {
                Some(at) => (ordered.entries[at].version(), Some(&ordered.entries[at].item)),
                None => (ordered.gap_around(key), None),
            },
        }
    }

    /// The item of a key, which is made if there is none.
    ///
    /// # Panics
    /// If the system has no more memory, as other containers do.
    pub fn entry(&mut self, key: &[u8]) -> &mut Item {
        match self {
            Items::Hashed(hashed) => hashed.items.entry(Key::from_slice(key)).or_default(),
            Items::Ordered(ordered) => {
                let at = ordered.find(key).unwrap_or_else(|| ordered.add(key));
                &mut ordered.entries[at].item
            }
        }
    }

    /// Removes a key that nothing is known of: it has no value, no version and no lock.
    pub fn remove(&mut self, key: &[u8]) {
        match self {
            Items::Hashed(hashed) => drop(hashed.items.remove(key)),
            Items::Ordered(ordered) => ordered.remove(key),
        }
    }

    /// Forgets the deletion of a key, unless the key was written since. Its version stays, as that of more keys.
    pub fn forget(&mut self, key: &[u8], deletion: Version) {
        let Some(item) = self.get_mut(key).filter(|item| item.version == deletion) else { return };
        item.version = 0;
        let is_locked = item.lock != 0;
        match self {
            Items::Hashed(hashed) => hashed.absent = hashed.absent.max(deletion),
            Items::Ordered(ordered) => {
                let at = ordered.find(key);
                ordered.raise_gap(at, deletion);
            }
        }
        if !is_locked {
            self.remove(key);
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Item)> {
        let (hashed, ordered) = match self {
            Items::Hashed(hashed) => (Some(&hashed.items), None),
            Items::Ordered(ordered) => (None, Some(&ordered.entries)),
        };
        let ordered = ordered.into_iter().flatten().map(|(_, entry)| (&entry.key, &entry.item));
        hashed.into_iter().flatten().chain(ordered)
    }

    /// The entries from a key on, in order, until `visit` returns something; none if the table is hashed.
    pub fn visit<'a, R>(&'a self, from: &[u8], mut visit: impl FnMut(&'a Entry) -> Option<R>) -> Option<R> {
        let Items::Ordered(ordered) = self else { return None };
        let guard = pin();
        let mut cursor = ordered.index.cursor(Range::from(from), Order::Ascending, &guard);
        while let Some((_, place)) = cursor.advance() {
            let result = visit(&ordered.entries[number(&place)]);
            if result.is_some() {
                return result;
            }
        }
        None
    }

    /// The version of the gap behind the last entry of an ordered table.
    pub fn last_gap(&self) -> Version {
        match self {
            Items::Hashed(_) => 0,
            Items::Ordered(ordered) => ordered.last_gap,
        }
    }

    /// Bytes of the index, without the items.
    pub fn index_bytes(&self) -> usize {
        match self {
            Items::Hashed(_) => 0,
            Items::Ordered(ordered) => ordered.index.memory_bytes(),
        }
    }
}

impl Hashed {
    pub fn version_of(&self, key: &[u8]) -> Option<Version> {
        self.items.get(key).map(|item| item.version)
    }
}

impl Ordered {
    /// Without a budget: a backup must store what its primary stored, although its nodes may be split elsewhere. The
    /// primary checks its limit before it locks an absent key.
    fn new() -> Ordered {
        let index = Index::new(usize::MAX).expect("the system has memory");
        Ordered { index, entries: Slab::new(), last_gap: 0 }
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        self.index.get(key, &pin()).map(|place| number(&place))
    }

    /// The next entry behind a key.
    fn behind(&self, key: &[u8]) -> Option<usize> {
        let (range, guard) = (Range { low: Gap::After(key), ..Range::ALL }, pin());
        self.index.cursor(range, Order::Ascending, &guard).advance().map(|(_, place)| number(&place))
    }

    /// The version of the gap that an unknown key is in.
    fn gap_around(&self, key: &[u8]) -> Version {
        self.behind(key).map_or(self.last_gap, |at| self.entries[at].gap)
    }

    /// Raises the version of the gap before an entry, or behind the last one.
    fn raise_gap(&mut self, before: Option<usize>, version: Version) {
        let gap = before.map_or(&mut self.last_gap, |at| &mut self.entries[at].gap);
        *gap = version.max(*gap);
    }

    fn add(&mut self, key: &[u8]) -> usize {
        let gap = self.gap_around(key);
        let at = self.entries.insert(Entry { key: Key::from_slice(key), item: Item::default(), gap });
        let guard = pin();
        let added = self.index.insert(key, &(at as u64).to_le_bytes(), &guard);
        added.expect("the key is short enough, and the system has memory");
        at
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(at) = self.index.remove(key, &pin()).map(|place| number(&place)) else { return };
        let Entry { gap, .. } = self.entries.remove(at);
        self.raise_gap(self.behind(key), gap);
    }
}

/// The place of an entry. It has eight bytes, so the index keeps it in a leaf.
fn number(place: &[u8]) -> usize {
    place.try_into().map_or(usize::MAX, |place| u64::from_le_bytes(place) as usize)
}
