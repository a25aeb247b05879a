//! The [`Store`] trait: what a service needs of one partition.

use std::time::Duration;

use crate::error::{KeyError, Refused};
use crate::item::{Delta, Item, Marks, Put, Side, Stored, Token, UnixSeconds};
use crate::key::Key;
use crate::tier::{Tier, TierConfig};

/// Longest value, in bytes: memcached's limit. A store with little memory may allow less
/// ([`StoreStats::value_bytes_max`]).
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// One partition of the keys, owned by one thread (EREW). Static dispatch.
///
/// A burst of operations is fastest as three passes: [`Store::prefetch`] for every key, [`Store::prefetch_item`] for
/// every key, then the operations (HERD's two-stage pipeline, thesis section 4.4.1). The prefetch passes are optional.
///
/// An expired item does not exist for any operation.
pub trait Store {
    /// Checks and hashes a key.
    ///
    /// # Errors
    /// [`KeyError`] if it is empty or too long.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError>;

    /// Prefetches the index line of a key.
    fn prefetch(&self, key: &Key<'_>);

    /// Prefetches the item, if the index line says where it is.
    fn prefetch_item(&self, key: &Key<'_>);

    /// Sets the time. A store never reads a clock: a simulation has its own. If the time is stepped, items expire too
    /// soon or too late: use a monotonic time, not a wall clock's ([`crate::Moment`]).
    fn set_now(&mut self, now: UnixSeconds);

    /// Reads an item, and records that it was read.
    fn get(&mut self, key: &Key<'_>) -> Option<Item<'_>>;

    /// Reads an item without recording that.
    fn peek(&self, key: &Key<'_>) -> Option<Item<'_>>;

    /// Stores a value. Its marks are reset.
    ///
    /// # Errors
    /// [`Refused::Exists`], [`Refused::NotFound`] or [`Refused::Changed`] by the condition ([`Refused::NotFound`] for
    /// [`crate::Condition::Unchanged`] without an item), [`Refused::TooLarge`], [`Refused::Full`]. An existing item is
    /// then unchanged.
    fn put(&mut self, key: &Key<'_>, value: &[u8], put: Put) -> Result<Stored, Refused>;

    /// Adds bytes to a value; flags and expiry are kept. Its marks are reset.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] if `unchanged` is given and is not the item's token,
    /// [`Refused::TooLarge`], [`Refused::Full`].
    fn extend(&mut self, key: &Key<'_>, bytes: &[u8], side: Side, unchanged: Option<u64>) -> Result<Stored, Refused>;

    /// Changes a value that is a decimal number, and returns the result; flags and expiry are kept.
    ///
    /// As in memcached: spaces, tabs, line ends and one `+` may precede the digits, and anything that begins with such
    /// a space may follow them. The new value has no leading zeros; if it is shorter than the old one, it is padded
    /// with spaces to the old length.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] as for [`Store::extend`], [`Refused::NotANumber`],
    /// [`Refused::Full`].
    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused>;

    /// Sets an item's expiry; its CAS token is kept.
    ///
    /// # Errors
    /// [`Refused::NotFound`]; [`Refused::Full`] for a small item without an expiry, if there is no room to add one in
    /// its place or elsewhere. The item is then unchanged.
    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> Result<(), Refused>;

    /// Sets an item's marks (memcached's `md` with `I` and `E`, and its "win" tokens).
    ///
    /// # Errors
    /// [`Refused::NotFound`]; [`Refused::Full`] as for [`Store::touch`], and only for a token of more than 44 bits.
    fn mark(&mut self, key: &Key<'_>, marks: Marks, token: Token) -> Result<(), Refused>;

    /// Deletes an item.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] as for [`Store::extend`].
    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused>;

    /// Deletes everything, without visiting it. Hashes change: a [`Key`] made earlier finds nothing.
    fn flush(&mut self);

    /// Returns counters and sizes.
    fn stats(&self) -> StoreStats;

    /// Drops some expired items, if there are any: examines about a thousand, which takes some tens of microseconds.
    /// Returns how many such calls are due per tenth of a second, including this one: at that rate, a pass over a
    /// partition takes a minute with up to 39 million items, and proportionally longer beyond that. Zero if nothing can
    /// have expired. Between two calls, let other tasks of the core run. Without these calls, expired items are found
    /// only when they are accessed, or when room near them is needed.
    fn expire_some(&mut self) -> u32 {
        0
    }

    /// Returns how long changes have waited for a snapshot's disk, all together, since the snapshot had its last turn.
    /// A change that adds to it has blocked the thread for up to 10 ms: let other tasks of the thread run before the
    /// next.
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether a change may wait for a disk, so that [`Store::stalled`] may rise: not while no snapshot is being
    /// taken. One that begins has its turns between bursts of operations, so ask once for each burst.
    fn may_stall(&self) -> bool {
        true
    }

    /// Whether [`Store::foresee`] makes a difference now.
    fn has_foresight(&self) -> bool {
        false
    }

    /// Announces the lengths of key and value of an item of a snapshot that will be loaded. If all of them are
    /// announced before the first is stored, a partition of a known [`crate::Shape`] reserves a place for each large
    /// one. Otherwise it may reject some, because large items take more room in another order. At most as many are
    /// recorded as a partition of this memory can hold.
    fn foresee(&mut self, _key_bytes: usize, _value_bytes: usize) {}

    /// Announces that all items of a snapshot were stored. Until then, a partition of a known [`crate::Shape`] uses the
    /// memory that it otherwise keeps free to clean into.
    fn loaded(&mut self) {}

    /// Returns the tier behind it, if there is one. Operations find items whose records are in memory
    /// ([`crate::tier::Located::Here`]); others must be read from the device first, or count as missing.
    #[inline]
    fn tier(&self) -> Option<&Tier> {
        None
    }

    /// Puts an empty tier behind a cache: items are evicted to it from now on. False if this store cannot have one.
    fn attach_tier(&mut self, _config: TierConfig) -> bool {
        false
    }

    /// As [`Store::tier`].
    #[inline]
    fn tier_mut(&mut self) -> Option<&mut Tier> {
        None
    }
}

/// Counters and sizes of one partition, as a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Existing items, including expired ones not dropped yet.
    pub items: u64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Bytes of memory used for them, including index and waste.
    pub memory_bytes: u64,
    /// Bytes of memory that may be in use.
    pub memory_bytes_max: u64,
    /// Longest value that this partition accepts, in bytes.
    pub value_bytes_max: u64,
    /// Items stored since the start.
    pub stored: u64,
    /// Live items lost because the log needed their room (cache mode).
    pub evicted_log: u64,
    /// Live items lost because their place in the index was needed (cache mode).
    pub evicted_index: u64,
    /// Expired items that were found and dropped.
    pub expired: u64,
    /// Those that were never read.
    pub expired_unfetched: u64,
    /// Items examined in search of expired ones.
    pub swept: u64,
    /// Evicted items that were never read.
    pub evicted_unfetched: u64,
    /// Evicted items that had an expiry.
    pub evicted_expiring: u64,
    /// Seconds between last access and eviction of the most recently evicted item, in steps of a minute; zero if none
    /// was evicted.
    pub evicted_idle_seconds: u32,
}
