//! Visits all items while they are served: the basis of point-in-time snapshots.
//!
//! Items are ordered by the hash of their key, and so is the memory of a partition: a range of hashes is a range of
//! memory, whatever the size of the index, and remains the same range of hashes when the index grows. A snapshot visits
//! the ranges one by one ([`Visit`]). Changes in a range that it has not reached are announced first ([`Watch`]), so
//! that it can copy that range out of turn.

use std::any::Any;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::item::Item;
use crate::key::KeyHash;
use crate::shape::Shape;
use crate::store::Store;

/// Visits items by the hash of their key.
pub trait Visit {
    /// Returns the number of bits for which 2^bits ranges of equal length hold about a bucket each.
    fn range_bits(&self) -> u32;

    /// Passes every item whose hash is in a range to `each`, once, in no particular order. Expired items are left out.
    /// Takes time proportional to the range.
    fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>));
}

/// Is told of changes before they happen.
pub trait Watch: Any + Debug + Send {
    /// An operation is about to store, change or delete the item of a key with this hash, or else it may: this may be
    /// called when nothing happens in the end. Not called for what only reading changes (time of the last access, marks
    /// of `get`), nor when an item that expired is dropped.
    fn before_change(&mut self, items: &dyn Visit, hash: KeyHash);

    /// An operation whose own change was announced is about to evict this item to make room. One operation may evict
    /// thousands, each from another range: copy the item rather than its range.
    fn before_eviction(&mut self, items: &dyn Visit, hash: KeyHash, _key: &[u8], _item: &Item<'_>) {
        self.before_change(items, hash);
    }

    /// A read is about to bring the item of a key with this hash back from the tier, and then to evict others to make
    /// room. Returns whether it may: a read does not wait, and can do without. By default this is a change like any
    /// other.
    fn before_recall(&mut self, items: &dyn Visit, hash: KeyHash) -> bool {
        self.before_change(items, hash);
        true
    }

    /// Everything is about to be deleted.
    fn before_flush(&mut self, items: &dyn Visit);

    /// Returns how long changes have waited in [`Watch::before_change`], all together, in this turn of the event loop.
    /// See [`Store::stalled`].
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

/// A store that can be swept while it is in use.
pub trait Sweep: Store + Visit {
    /// Reports changes to this watch from now on; returns the previous one.
    fn watch(&mut self, watch: Box<dyn Watch>) -> Option<Box<dyn Watch>>;

    /// Returns the properties that another store must have to hold all items of this one, as far as `docs/store.md`
    /// guarantees it.
    fn shape(&self) -> Shape;

    /// Stops reporting changes, and returns the watch.
    fn unwatch(&mut self) -> Option<Box<dyn Watch>>;
}
