//! Limits of transactions and participants.

use dunlin_store as store;

/// Maximum length of a key, in bytes: that of the store.
pub const KEY_BYTES_MAX: usize = store::KEY_BYTES_MAX;
/// Maximum length of a value, in bytes: that of the store.
pub const VALUE_BYTES_MAX: usize = store::VALUE_BYTES_MAX;
/// Keys of one transaction.
pub const KEYS_MAX: usize = 1024;
/// Bytes of one message of this crate; they also limit the writes of a transaction, and one read from a core.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Partitions of a cluster.
pub const PARTITIONS_MAX: usize = 1 << 16;
/// Tables of a cluster.
pub const TABLES_MAX: usize = 1 << 12;
/// Pages that the range reads of one transaction may have.
pub const PAGES_MAX: usize = 1024;
/// Entries that the range reads of one transaction may visit: items, remembered deletions and locks on absent keys. The
/// commit visits them once more.
pub const SCANNED_MAX: usize = 1 << 16;
/// Entries that one message has a participant visit to validate range reads, so that it does not delay others; a page
/// with more of them is a message of its own.
pub const VALIDATED_MAX: usize = 1 << 12;
/// Bytes that the range reads of one transaction may bring.
pub const SCANNED_BYTES_MAX: usize = 16 << 20;
/// Bytes after which a page of a range read ends; its last item may exceed them.
pub const PAGE_BYTES_MAX: usize = 256 << 10;
/// Bytes that an item counts beyond its key and value: its slot in a half-full table (97 bytes each), and the lengths of
/// two allocations. Keys of up to 16 bytes and values of up to 40 are in the slot, and count twice.
pub const ITEM_BYTES: usize = 232;

/// How much one request of recovery handles. The event loop serves other requests between two of them, so this bounds
/// how long recovery delays these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoverySlice {
    /// Records, or locks, from 1 to 65,535; other values count as the nearest of these. Default 1,024.
    pub records_max: usize,
    /// Bytes of records, up to the 4 MiB of a message; a longer record is a slice of its own. Default 256 KiB.
    pub bytes_max: usize,
}

impl Default for RecoverySlice {
    fn default() -> Self {
        RecoverySlice { records_max: 1024, bytes_max: 256 << 10 }
    }
}

impl RecoverySlice {
    /// An empty slice with these limits.
    pub(crate) fn begin(self) -> SliceFill {
        let records_max = self.records_max.clamp(1, usize::from(u16::MAX));
        let bytes_max = self.bytes_max.min(MESSAGE_BYTES_MAX);
        SliceFill { limits: RecoverySlice { records_max, bytes_max }, records: 0, bytes: 0 }
    }
}

/// What one request of recovery has handled so far.
#[derive(Debug)]
pub(crate) struct SliceFill {
    limits: RecoverySlice,
    records: usize,
    bytes: usize,
}

impl SliceFill {
    /// Adds a record of so many bytes, or a lock, if it fits. The first one always does.
    pub fn add(&mut self, bytes: usize) -> bool {
        let RecoverySlice { records_max, bytes_max } = self.limits;
        let fits = self.records == 0 || (self.records < records_max && self.bytes + bytes <= bytes_max);
        if fits {
            self.records += 1;
            self.bytes += bytes;
        }
        fits
    }

    /// Records and locks so far.
    pub fn records(&self) -> usize {
        self.records
    }
}

/// Limits of one participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the items in one copy of a partition, including the room reserved by locks. It must be the same at all
    /// copies, so that a backup has room for everything that its primary accepted. Default 1 GiB.
    pub partition_bytes_max: usize,
    /// Bytes of the index of one ordered table in one copy of a partition, beyond its items, above which the primary
    /// locks no further absent key. Default 1 GiB.
    pub index_bytes_max: usize,
    /// Entries that one page of a range read visits, and items in one page of a copy that is being filled, so that they
    /// do not delay others; at least one. Default 1,024.
    pub page_entries_max: usize,
    /// Locks that are held in one partition. Default 65,536.
    pub locks_max: usize,
    /// Deleted keys whose versions one copy of a partition remembers. Twice as many are a hard limit. Default 65,536.
    pub tombstones_max: usize,
    /// Coordinators that log to one core. A registered coordinator that was evicted may return beyond it. Default 256.
    pub coordinators_max: usize,
    /// Bytes of the records of one coordinator in one log: at least the 4 MiB of one transaction. Default 8 MiB, so the
    /// coordinators of a core use up to 2 GiB together.
    pub log_bytes_max: usize,
    /// Committed transactions of one coordinator and epoch that a log remembers by number, besides those that ended
    /// after an open one. Default 1,024.
    pub outcomes_max: usize,
    /// How much of the log and of the locks one request of recovery handles.
    pub recovery_slice: RecoverySlice,
}

impl Limits {
    /// Entries that a page of a range read visits.
    pub(crate) fn page_entries(&self) -> usize {
        self.page_entries_max.max(1)
    }

    /// Entries that the range of a page may have as long as it is unchanged: those that the page visited, and the keys
    /// that its transaction has locked since, each of which may have been absent.
    pub(crate) fn range_entries(&self) -> usize {
        self.page_entries().saturating_add(KEYS_MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            partition_bytes_max: 1 << 30,
            index_bytes_max: 1 << 30,
            page_entries_max: 1024,
            locks_max: 1 << 16,
            tombstones_max: 1 << 16,
            coordinators_max: 256,
            log_bytes_max: 8 << 20,
            outcomes_max: 1024,
            recovery_slice: RecoverySlice::default(),
        }
    }
}
