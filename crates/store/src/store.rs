//! The [`Store`] trait: what a service asks of one partition.

use std::time::Duration;

use crate::error::{KeyError, Refused};
use crate::item::{Delta, Item, Marks, Put, Side, Stored, Token, UnixSeconds};
use crate::key::Key;

/// Longest value, in bytes: memcached's limit. A store with little memory may allow less ([`StoreStats::value_bytes_max`]).
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// One partition of the keys, owned by one thread (EREW). Static dispatch.
///
/// A burst of operations is fastest as three passes: [`Store::prefetch`] for every key, [`Store::prefetch_item`] for every key, then the
/// operations (HERD's two-stage pipeline, thesis section 4.4.1). Neither pass is needed for the right answer.
///
/// An item that expired is gone for every operation.
pub trait Store {
    /// Checks and hashes a key.
    ///
    /// # Errors
    /// [`KeyError`] if it is empty or too long.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError>;

    /// Asks the memory for the index line of a key.
    fn prefetch(&self, key: &Key<'_>);

    /// Asks the memory for the item, if the index line says where it is.
    fn prefetch_item(&self, key: &Key<'_>);

    /// Tells the time. Never read from a clock: a simulation tells its own. A step of it expires items too soon or too late: tell a time that only
    /// passes, and not that of a wall clock ([`crate::Moment`]).
    fn set_now(&mut self, now: UnixSeconds);

    /// Reads an item and notes that it was read.
    fn get(&mut self, key: &Key<'_>) -> Option<Item<'_>>;

    /// Reads an item and leaves no trace.
    fn peek(&self, key: &Key<'_>) -> Option<Item<'_>>;

    /// Stores a value. Marks start afresh.
    ///
    /// # Errors
    /// [`Refused::Exists`], [`Refused::NotFound`] or [`Refused::Changed`] by the condition ([`Refused::NotFound`] for
    /// [`crate::Condition::Unchanged`] without an item), [`Refused::TooLarge`], [`Refused::Full`]. The item that was there stays as it was.
    fn put(&mut self, key: &Key<'_>, value: &[u8], put: Put) -> Result<Stored, Refused>;

    /// Adds bytes to a value; flags and expiry stay.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] if `unchanged` is given and is not the item's token, [`Refused::TooLarge`],
    /// [`Refused::Full`].
    fn extend(&mut self, key: &Key<'_>, bytes: &[u8], side: Side, unchanged: Option<u64>) -> Result<Stored, Refused>;

    /// Adds to a value that is a decimal number, and gives the sum; flags and expiry stay.
    ///
    /// As memcached does: spaces, tabs, line ends and one `+` may stand before the digits, and after them anything that begins with such a
    /// space. The new value has no leading zeros; if it is shorter than the old one, spaces behind it fill the old length.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] as for [`Store::extend`], [`Refused::NotANumber`], [`Refused::Full`].
    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused>;

    /// Gives an item another expiry; its CAS token stays.
    ///
    /// # Errors
    /// [`Refused::NotFound`]; [`Refused::Full`] for a small item that had no expiry and no room for one where it stands, if there is none
    /// elsewhere either. It stays as it was then.
    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> Result<(), Refused>;

    /// Gives an item other marks (memcached's `md` with `I` and `E`, and its "win" tokens).
    ///
    /// # Errors
    /// [`Refused::NotFound`]; [`Refused::Full`] as for [`Store::touch`], and only for a token of more than 44 bits.
    fn mark(&mut self, key: &Key<'_>, marks: Marks, token: Token) -> Result<(), Refused>;

    /// Deletes an item.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::Changed`] as for [`Store::extend`].
    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused>;

    /// Deletes everything, without visiting it. Hashes are others from then on: a [`Key`] of before finds nothing.
    fn flush(&mut self);

    /// Counts and sizes.
    fn stats(&self) -> StoreStats;

    /// Drops some items that have expired, if there are any: looks at about a thousand, some tens of microseconds.
    /// Returns how many such calls a tenth of a second is to have, this one included: then a pass over a partition
    /// takes a minute up to 39 million items, and longer in proportion beyond. Zero if nothing can have expired. Other
    /// tasks of a core have their turn between two calls. Without this, only items are found that somebody asks for, or
    /// whose room is needed and that are near.
    fn expire_some(&mut self) -> u32 {
        0
    }

    /// Returns how long changes have waited for the disk of a snapshot, all together, since the snapshot had its last turn. A change that adds to
    /// it has held the thread for up to 10 ms: let other tasks of the thread run before the next.
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether [`Store::foresee`] makes a difference now.
    fn has_foresight(&self) -> bool {
        false
    }

    /// Tells the lengths of key and value of an item of a snapshot that will be loaded. Told of all of them before the first is stored, a partition of
    /// a known [`crate::Shape`] keeps a place for each large one; else it may refuse some of what it held, because large items take more room
    /// in another order. Bounded by the items that a partition of this memory can hold; more are not noted.
    fn foresee(&mut self, _key_bytes: usize, _value_bytes: usize) {}

    /// Says that all items of a snapshot were stored. Until then a partition of a known [`crate::Shape`] uses the memory that it otherwise keeps
    /// free to clean into.
    fn loaded(&mut self) {}
}

/// Counts and sizes of one partition, by snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Items that can be found, and some that expired and were not met since.
    pub items: u64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Bytes of memory in use for them, index and waste included.
    pub memory_bytes: u64,
    /// Bytes of memory that may be in use.
    pub memory_bytes_max: u64,
    /// Longest value this partition takes, in bytes.
    pub value_bytes_max: u64,
    /// Items stored since the start.
    pub stored: u64,
    /// Live items lost because the log needed their place (cache mode).
    pub evicted_log: u64,
    /// Live items lost because their place in the index was needed (cache mode).
    pub evicted_index: u64,
    /// Items that were met after their time and dropped.
    pub expired: u64,
    /// Those of them that nobody read.
    pub expired_unfetched: u64,
    /// Items that were looked at in search of such.
    pub swept: u64,
    /// Those of the items lost to eviction that nobody read.
    pub evicted_unfetched: u64,
    /// Those of the items lost to eviction that would have expired some time.
    pub evicted_expiring: u64,
    /// Seconds from the last access of the item that was evicted last to its eviction, in steps of a minute; zero if none was.
    pub evicted_idle_seconds: u32,
}
