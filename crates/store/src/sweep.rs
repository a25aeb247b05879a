//! Looking at all items while they are served: what a point-in-time snapshot is made of.
//!
//! Items are ordered by the hash of their key, and so is the memory of a partition: a range of hashes is a stretch of memory, whatever the
//! size of the index, and stays the same range when the index grows. A snapshot goes through the ranges one by one ([`Visit`]). What is
//! about to change in a range that it has not reached is announced first ([`Watch`]), so that it can take that range out of turn.

use std::any::Any;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::item::Item;
use crate::key::KeyHash;
use crate::shape::Shape;
use crate::store::Store;

/// A look at items by the hash of their key.
pub trait Visit {
    /// The number of bits for which 2^bits ranges of equal length hold about a bucket each.
    fn range_bits(&self) -> u32;

    /// Shows every item whose hash is in a range, once, in no order. Expired items are left out. Costs time in proportion to the range.
    fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>));
}

/// Is told of changes before they happen.
pub trait Watch: Any + Debug + Send {
    /// The item of a key with this hash is about to be stored, changed, deleted or evicted, or else one may be: it may be called when
    /// nothing happens in the end, and more than once for one change. Not called for what only reading changes (time of the last access,
    /// marks of `get`), nor when an item that expired is dropped.
    fn before_change(&mut self, items: &dyn Visit, hash: KeyHash);

    /// Everything is about to be deleted.
    fn before_flush(&mut self, items: &dyn Visit);

    /// Returns how long changes have waited in [`Watch::before_change`], all together, in this turn of the event loop. See [`Store::stalled`].
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

/// A store that can be swept while it is in use.
pub trait Sweep: Store + Visit {
    /// Tells this watch of changes from now on, instead of the one before, which is given back.
    fn watch(&mut self, watch: Box<dyn Watch>) -> Option<Box<dyn Watch>>;

    /// What another store must have so that it has place for what this one holds, as far as `docs/store.md` promises it.
    fn shape(&self) -> Shape;

    /// Tells nobody any more, and gives the watch back.
    fn unwatch(&mut self) -> Option<Box<dyn Watch>>;
}
