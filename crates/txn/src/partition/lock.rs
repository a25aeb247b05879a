//! Locks of a partition. A lock is held from the execution of a transaction to the commit at the primary.
//!
//! No transaction waits for a lock: a second one conflicts, so there are no deadlocks. The lock reserves room for the
//! owner's write, so that a commit never fails for lack of memory. A backup always has room for its primary's writes:
//! per key it holds what the primary holds, or what the primary has reserved.

use super::item::{Item, Key, cost_of};
use super::{Partition, Seen};
use crate::ids::{Epoch, TableId, TransactionId, Version};
use crate::limits::SliceFill;
use crate::wire::answer::{Cause, Grant, Resource};
use crate::wire::execute::Lock;
use crate::wire::write::Write;

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub owner: TransactionId,
    pub table: TableId,
    pub key: Key,
    /// Maximum length of a value that it has reserved.
    pub room: usize,
    /// Bytes that the reservation counts, beyond those of the item.
    pub reserved: usize,
    /// Whether it was already held at the last search for old locks.
    pub is_old: bool,
}

/// A request to lock a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub owner: TransactionId,
    pub table: TableId,
    pub key: &'a [u8],
    pub lock: Lock,
}

/// Why a key is not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLock {
    Conflict(Cause),
    Full(Resource),
}

/// Whether the transaction already held the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Held,
    Free,
}

impl Partition {
    /// Locks a key, or reserves more room under a lock of the same owner.
    pub fn lock(&mut self, wish: &Wish<'_>) -> Result<(Grant, Before), NoLock> {
        let Seen { version, owner, .. } = self.look(wish.table, wish.key);
        if wish.lock.expected != Version::MAX && wish.lock.expected != version {
            return Err(NoLock::Conflict(Cause::Changed));
        }
        match owner {
            Some(owner) if owner == wish.owner => self.widen(wish).map(|grant| (grant, Before::Held)),
            Some(_) => Err(NoLock::Conflict(Cause::Locked)),
            None => self.lock_free(wish).map(|grant| (grant, Before::Free)),
        }
    }

    fn lock_free(&mut self, wish: &Wish<'_>) -> Result<Grant, NoLock> {
        if self.locks.len() >= self.limits.locks_max {
            return Err(NoLock::Full(Resource::Locks));
        }
        // Any locked key may be deleted.
        if self.tombstones() + self.locks.len() >= 2 * self.limits.tombstones_max {
            return Err(NoLock::Full(Resource::Tombstones));
        }
        let (before, len) = match self.table(wish.table).get(wish.key) {
            Some(item) => (item.cost(wish.key), item.value.as_ref().map_or(0, |value| value.len())),
            None if self.table(wish.table).index_bytes() > self.limits.index_bytes_max => {
                return Err(NoLock::Full(Resource::Memory));
            }
            None => (0, 0),
        };
        // A value as long as the old one always has room.
        let room = len.max(wish.lock.room as usize);
        let reserved = self.reserve(wish.key, room, before, 0)?;
        let version = self.last + 1;
        self.last = version;
        self.table_mut(wish.table).entry(wish.key).lock = version;
        let key = Key::from_slice(wish.key);
        self.locks.insert(version, Held { owner: wish.owner, table: wish.table, key, room, reserved, is_old: false });
        Ok(Grant { version, low: self.low() })
    }

    /// Reserves room for a value in place of an item of `before` bytes, of which `reserved` are counted already.
    fn reserve(&mut self, key: &[u8], room: usize, before: usize, reserved: usize) -> Result<usize, NoLock> {
        let more = cost_of(key.len(), room).saturating_sub(before).saturating_sub(reserved);
        if more > 0 && self.bytes + more > self.limits.partition_bytes_max {
            return Err(NoLock::Full(Resource::Memory));
        }
        self.bytes += more;
        Ok(reserved + more)
    }

    fn widen(&mut self, wish: &Wish<'_>) -> Result<Grant, NoLock> {
        let item = self.table(wish.table).get(wish.key);
        let (version, before) = item.map_or((0, 0), |item| (item.lock, item.cost(wish.key)));
        let (room, reserved) = self.locks.get(&version).map_or((0, 0), |held| (held.room, held.reserved));
        let room = room.max(wish.lock.room as usize);
        let reserved = self.reserve(wish.key, room, before, reserved)?;
        if let Some(held) = self.locks.get_mut(&version) {
            (held.room, held.reserved) = (room, reserved);
        }
        Ok(Grant { version, low: self.low() })
    }

    /// Whether a transaction holds the lock that a commit needs, with room for its value.
    pub fn may_commit(&self, owner: TransactionId, write: &Write<'_>) -> bool {
        let Some(held) = self.locks.get(&write.version) else { return false };
        let is_of_key = held.table == write.target.table && *held.key == *write.target.key;
        let has_room = write.value.is_none_or(|value| value.len() <= held.room);
        held.owner == owner && is_of_key && has_room
    }

    /// Whether a write was applied here, and perhaps overwritten since.
    pub fn has_applied(&self, write: &Write<'_>) -> bool {
        !self.locks.contains_key(&write.version)
            && self.look(write.target.table, write.target.key).version >= write.version
    }

    /// Applies the write of a lock's owner, and unlocks. Call [`Partition::may_commit`] first.
    pub fn commit(&mut self, write: &Write<'_>) {
        self.set(write.target.table, write.target.key, write.version, write.value);
        self.release(write.version);
    }

    /// Unlocks a key, if this transaction has locked it.
    pub fn unlock(&mut self, owner: TransactionId, table: TableId, key: &[u8]) {
        let lock = self.table(table).get(key).map_or(0, |item| item.lock);
        if self.locks.get(&lock).is_some_and(|held| held.owner == owner) {
            self.release(lock);
        }
    }

    fn release(&mut self, version: Version) {
        let Some(Held { table, key, reserved, .. }) = self.locks.remove(&version) else { return };
        self.bytes -= reserved;
        self.unlocked(table, &key);
        self.raise_floor(self.low());
        self.forget_deletions(self.limits.tombstones_max);
    }

    /// Takes the lock from an item.
    pub(super) fn unlocked(&mut self, table: TableId, key: &[u8]) {
        if let Some(item) = self.table_mut(table).get_mut(key) {
            item.lock = 0;
            if item.is_unknown() {
                self.table_mut(table).remove(key);
            }
        }
    }

    /// Releases the locks of transactions of earlier epochs, as many as fit a slice: recovery has decided all of them.
    /// Returns whether none is left. Versions are issued in the order of epochs, so these locks have the lowest ones.
    pub fn release_before(&mut self, epoch: Epoch, fill: &mut SliceFill) -> bool {
        while let Some((version, _)) = self.locks.first_key_value().filter(|(_, held)| held.owner.epoch < epoch) {
            if !fill.add(0) {
                return false;
            }
            let version = *version;
            self.release(version);
        }
        true
    }

    /// Releases the locks of the given transactions.
    pub fn release_of(&mut self, is_ended: impl Fn(TransactionId) -> bool) {
        let ended = self.locks.iter().filter(|(_, held)| is_ended(held.owner)).map(|(version, _)| *version);
        ended.collect::<Vec<Version>>().into_iter().for_each(|version| self.release(version));
    }

    /// The owners of locks that were already held at the last call.
    pub fn old_locks(&mut self) -> impl Iterator<Item = TransactionId> {
        self.locks.values_mut().filter_map(|held| std::mem::replace(&mut held.is_old, true).then_some(held.owner))
    }
}

impl Item {
    /// Whether nothing is left to remember.
    fn is_unknown(&self) -> bool {
        self.version == 0 && self.value.is_none() && self.lock == 0
    }
}
