//! The tier behind a cache: items that memory has no room for go to a file, and come back when they are read.
//!
//! This is the state of one partition's part of the file, without I/O: it says what to write where ([`Tier::take_write`])
//! and where an item can be read ([`Tier::locate`]); its owner does that, on other threads, and reports the result
//! ([`Tier::written`], [`Tier::arrived`]).
//!
//! - **Layout.** The part is a ring of blocks. Evicted items are appended to the open block in memory; a full block is
//!   written as a whole, in place of the oldest one, whose items are lost. So the device sees large writes only, and
//!   space is reclaimed without reading.
//! - **Index.** A table from the hash of a key to the place of its record. The hash is keyed and has 64 bits. The record
//!   has the key, which is compared when it is read.
//! - **One version.** A key has an item in memory or a record in the tier, never both: storing an item drops the
//!   record, and a record that returns to memory leaves the index. So the tier never returns an outdated value.
//! - **What is known without a read.** With a [`Label`], the index has each item's token, too. So a replica of a cluster
//!   compares versions, decides about conditions, and finds what it must pass on, without the device.
//! - **It is a cache.** It may lose any record at any time, and does: if the device is too slow for the evictions, fails,
//!   or returns other bytes than were written.
//!
//! A read is staged: between [`Tier::arrived`] and the last [`Tier::release`] the item is found without the device.

mod index;
mod record;

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::item::{Item, Marks, UnixSeconds};
use crate::key::{Key, KeyHash};
use index::{ENTRY_BYTES, Entry, Index, LABEL_BITS, LEN_MAX, TOKEN_BYTES};
use record::{HEAD_BYTES, Origin, is_intact, record_bytes};

/// Bytes of memory that a record of the tier needs at most: its entry in the index, and its place in the list of its
/// block, which may have room for as many again.
pub const TIER_ITEM_BYTES: usize = ENTRY_BYTES + 2 * size_of::<u64>();
/// The same of a tier with a [`Label`].
pub const TIER_LABELLED_ITEM_BYTES: usize = TIER_ITEM_BYTES + TOKEN_BYTES;
/// Bits of a [`Label`]'s result that count.
pub const TIER_LABEL_BITS: u32 = LABEL_BITS;
/// Minimum number of blocks of a ring.
pub const TIER_BLOCKS_MIN: u64 = 8;
/// Default number of full blocks that wait for the device, at most. Further evicted items are lost.
pub const TIER_WRITES_MAX: usize = 4;
/// Largest block: the longest value fits, and a block takes some milliseconds to write.
const BLOCK_BYTES_MAX: usize = 2 << 20;
const BLOCK_BYTES_MIN: usize = 4096;
/// Blocks of a ring, unless they would be larger than the largest.
const BLOCKS: u64 = 64;
/// Default length below which values are not kept.
const VALUE_BYTES_MIN: usize = 128;

/// Puts a key into one of 2^[`TIER_LABEL_BITS`] groups, which are known without reading its record.
pub type Label = fn(&[u8]) -> u16;

/// Settings of a partition's tier.
#[derive(Debug, Clone, Copy)]
pub struct TierConfig {
    /// Bytes of its part of the file, at least [`TIER_BLOCKS_MIN`] blocks.
    pub bytes: u64,
    /// Bytes of a block, the unit of writing.
    pub block_bytes: usize,
    /// Maximum number of records: [`TIER_ITEM_BYTES`] of memory each, or [`TIER_LABELLED_ITEM_BYTES`].
    pub items_max: usize,
    /// Values shorter than this are not kept: they cost almost as much memory in the index.
    pub value_bytes_min: usize,
    /// Full blocks that may wait for the device.
    pub writes_max: usize,
    /// A random number that tells records of this tier from those of an earlier one in the same file.
    pub nonce: u64,
    /// What the index says of a key, beside the token of its item. Without it, the index has neither.
    pub label: Option<Label>,
}

impl TierConfig {
    /// Returns a configuration for this many bytes; everything else has its default.
    pub fn new(bytes: u64, nonce: u64) -> TierConfig {
        let block_bytes = usize::try_from(bytes / BLOCKS).unwrap_or(usize::MAX);
        let block_bytes = (block_bytes / BLOCK_BYTES_MIN * BLOCK_BYTES_MIN).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        TierConfig {
            bytes,
            block_bytes,
            items_max: usize::try_from(bytes / (HEAD_BYTES + VALUE_BYTES_MIN) as u64).unwrap_or(usize::MAX),
            value_bytes_min: VALUE_BYTES_MIN,
            writes_max: TIER_WRITES_MAX,
            nonce,
            label: None,
        }
    }
}

/// A record that has to be read from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    hash: u64,
    /// Its place in the sequence of all bytes ever written: no two records have the same.
    place: u64,
    len: u32,
}

impl Ticket {
    /// Returns the hash of its key.
    pub fn hash(&self) -> KeyHash {
        KeyHash(self.hash)
    }

    /// Returns a number that no other record of this tier has.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Returns the bytes to read.
    pub fn bytes(&self) -> usize {
        self.len as usize
    }
}

/// Where the record of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Located {
    /// There is none.
    Nowhere,
    /// In memory: operations find it at once.
    Here,
    /// On the device: read it first, and report that to [`Tier::arrived`].
    Device(Ticket),
}

/// What the index knows of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexed {
    /// Where it is, if it is on the device.
    pub ticket: Ticket,
    /// The label of its key.
    pub label: u16,
    /// When it expires.
    pub expires: Option<UnixSeconds>,
}

/// A block to write.
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// Its number, for [`Tier::written`].
    pub number: u64,
    /// The offset in this partition's part of the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// What became of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The item is found from now on.
    Staged,
    /// The record has been replaced, deleted or lost meanwhile.
    Outdated,
    /// The device failed, or returned something else: the item is lost.
    Lost,
}

/// Counters and sizes of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Records that can be found.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the part of the file.
    pub bytes_max: u64,
    /// Bytes of memory for the index, for blocks that are not written, and for staged records.
    pub memory_bytes: u64,
    /// Reads of items that were served from records.
    pub hits: u64,
    /// Records read from the device.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Blocks written.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Evicted items that became records.
    pub stored: u64,
    /// Records that returned to memory.
    pub recalled: u64,
    /// Evicted items that did not become records, since the device was too slow.
    pub dropped: u64,
    /// Evicted items that were too small or too large.
    pub unsuited: u64,
    /// Live records lost because their block was reused, or there were too many.
    pub evicted: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that returned other bytes than were written.
    pub corrupt: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Records lost by failed reads and writes.
    pub lost: u64,
}

impl TierStats {
    /// Adds those of another partition.
    pub fn add(&mut self, other: &TierStats) {
        for (sum, more) in [
            (&mut self.items, other.items),
            (&mut self.bytes, other.bytes),
            (&mut self.bytes_max, other.bytes_max),
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.hits, other.hits),
            (&mut self.reads, other.reads),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.writes, other.writes),
            (&mut self.write_bytes, other.write_bytes),
            (&mut self.stored, other.stored),
            (&mut self.recalled, other.recalled),
            (&mut self.dropped, other.dropped),
            (&mut self.unsuited, other.unsuited),
            (&mut self.evicted, other.evicted),
            (&mut self.read_errors, other.read_errors),
            (&mut self.corrupt, other.corrupt),
            (&mut self.write_errors, other.write_errors),
            (&mut self.lost, other.lost),
        ] {
            *sum += more;
        }
    }
}

#[derive(Debug)]
struct Block {
    /// The keys of its records, also of those that are gone.
    hashes: Vec<u64>,
    /// Its bytes, until the device has them.
    bytes: Option<Arc<Vec<u8>>>,
}

#[derive(Debug)]
struct Staged {
    place: u64,
    bytes: Vec<u8>,
    holders: usize,
}

/// The tier of one partition. See the module's description.
#[derive(Debug)]
pub struct Tier {
    config: TierConfig,
    /// Blocks in the file.
    ring: u64,
    index: Index,
    /// From the oldest to the newest; the open one follows.
    blocks: VecDeque<Block>,
    /// The number of the oldest.
    first: u64,
    open: Vec<u8>,
    open_hashes: Vec<u64>,
    /// Blocks that nobody has taken to write.
    to_write: VecDeque<u64>,
    /// Blocks that wait for the device, taken or not.
    writing: usize,
    /// How many fewer may wait than otherwise.
    spared: usize,
    staged: HashMap<u64, Staged>,
    staged_bytes: usize,
    stats: TierStats,
}

impl Tier {
    /// Creates an empty tier.
    ///
    /// # Panics
    /// If it has fewer than [`TIER_BLOCKS_MIN`] blocks, or as many blocks may wait for the device as it has, or a block
    /// has 4 MiB or more.
    pub fn new(config: TierConfig) -> Tier {
        let ring = config.bytes / config.block_bytes as u64;
        assert!(ring >= TIER_BLOCKS_MIN, "a tier of {ring} blocks");
        assert!(config.block_bytes <= LEN_MAX, "blocks of {} bytes", config.block_bytes);
        assert!((config.writes_max as u64) < ring - 1, "each block is written before it is replaced");
        Tier {
            config,
            ring,
            index: Index::new(config.items_max, config.label.is_some()),
            blocks: VecDeque::new(),
            first: 0,
            open: Vec::new(),
            open_hashes: Vec::new(),
            to_write: VecDeque::new(),
            writing: 0,
            spared: 0,
            staged: HashMap::new(),
            staged_bytes: 0,
            stats: TierStats::default(),
        }
    }

    /// Returns the number of the open block.
    fn open_number(&self) -> u64 {
        self.first + self.blocks.len() as u64
    }

    /// Where the record of a key is. An expired one is nowhere.
    pub fn locate(&self, hash: KeyHash, now: UnixSeconds) -> Located {
        match self.index.get(hash.0) {
            None => Located::Nowhere,
            Some(entry) if entry.has_expired(now) => Located::Nowhere,
            Some(entry) if self.bytes_of(hash.0, &entry).is_some() => Located::Here,
            Some(entry) => Located::Device(Ticket { hash: hash.0, place: entry.place, len: entry.len }),
        }
    }

    /// Returns the CAS token of the item of a key, without a read; `None` if it has no live record, or the tier has no
    /// labels.
    #[inline]
    pub fn token(&self, hash: KeyHash, now: UnixSeconds) -> Option<u64> {
        self.index.get(hash.0).filter(|entry| !entry.has_expired(now))?;
        self.index.token(hash.0)
    }

    /// Passes each record whose hash is in a range to `each`, without a read. Takes time proportional to the range.
    pub fn visit(&self, hashes: &RangeInclusive<u64>, mut each: impl FnMut(&Indexed)) {
        self.index.visit(hashes, |hash, entry| {
            let ticket = Ticket { hash, place: entry.place, len: entry.len };
            each(&Indexed { ticket, label: entry.label, expires: (entry.expires != 0).then_some(entry.expires) });
        });
    }

    /// Returns the number of bits for which 2^bits ranges of hashes have a few dozen records each at most, on average.
    pub fn range_bits(&self) -> u32 {
        self.index.range_bits()
    }

    /// Returns the key and the item of a live record that is in memory ([`Located::Here`]).
    pub fn item(&self, hash: KeyHash, now: UnixSeconds) -> Option<(&[u8], Item<'_>)> {
        let entry = self.index.get(hash.0).filter(|entry| !entry.has_expired(now))?;
        let (key, item) = record::read(self.bytes_of(hash.0, &entry)?);
        let marks = Marks { is_fetched: item.marks.is_fetched || entry.was_read, ..item.marks };
        Some((key, Item { marks, ..item }))
    }

    /// Whether as many blocks wait for the device as may: then further evicted items may be lost.
    pub fn is_behind(&self) -> bool {
        self.writing + self.spared >= self.config.writes_max
    }

    /// Whether there is room for a burst of evictions, of some items at least: a further block may wait for the device,
    /// or the open one is nearly empty.
    pub fn has_room(&self) -> bool {
        !self.is_behind() || self.open.len() <= self.config.block_bytes / 4
    }

    /// From now on, leaves so many of the blocks that may wait for the device to evictions after another call of this.
    pub fn spare_writes(&mut self, blocks: usize) {
        self.spared = blocks;
    }

    /// Returns the bytes of a record if they are in memory.
    fn bytes_of(&self, hash: u64, entry: &Entry) -> Option<&[u8]> {
        let (number, at) = self.split(entry.place);
        let len = entry.len as usize;
        if number == self.open_number() {
            return Some(&self.open[at..at + len]);
        }
        let block = self.blocks.get((number - self.first) as usize)?;
        match &block.bytes {
            Some(bytes) => Some(&bytes[at..at + len]),
            None => self.staged.get(&hash).filter(|staged| staged.place == entry.place).map(|staged| &staged.bytes[..]),
        }
    }

    /// Returns the number of the block of a place, and the offset in it.
    fn split(&self, place: u64) -> (u64, usize) {
        let block_bytes = self.config.block_bytes as u64;
        (place / block_bytes, (place % block_bytes) as usize)
    }

    /// Returns the offset of a record in this partition's part of the file.
    pub fn offset(&self, ticket: &Ticket) -> u64 {
        let (number, at) = self.split(ticket.place);
        self.offset_of(number) + at as u64
    }

    fn offset_of(&self, number: u64) -> u64 {
        number % self.ring * self.config.block_bytes as u64
    }

    /// Finds the item of a key, if its record is in memory.
    pub(crate) fn find(&self, key: &Key<'_>, now: UnixSeconds) -> Option<Item<'_>> {
        let (found, item) = self.item(key.hash(), now)?;
        (found == key.bytes()).then_some(item)
    }

    /// Counts a read of an item that [`Tier::find`] finds. Returns whether it was read before: then it belongs in
    /// memory.
    pub(crate) fn note_read(&mut self, key: &Key<'_>) -> bool {
        self.stats.hits += 1;
        self.index.note_read(key.hash().0)
    }

    /// Takes the record of a key out of the tier, if it is in memory: for the item to return to the partition.
    pub(crate) fn recall(&mut self, key: &Key<'_>, now: UnixSeconds) -> Option<Recalled> {
        let item = self.find(key, now)?;
        let marks = item.marks;
        let entry = self.index.get(key.hash().0)?;
        let bytes = self.bytes_of(key.hash().0, &entry)?.to_vec();
        self.forget(key.hash());
        self.stats.recalled += 1;
        Some(Recalled { bytes, marks })
    }

    /// Drops the record of a key, if there is one. Returns whether it was live.
    pub fn remove(&mut self, hash: KeyHash, now: UnixSeconds) -> bool {
        self.forget(hash).is_some_and(|entry| !entry.has_expired(now))
    }

    fn forget(&mut self, hash: KeyHash) -> Option<Entry> {
        let entry = self.index.remove(hash.0)?;
        self.stats.bytes -= u64::from(entry.len);
        self.unstage(hash.0);
        Some(entry)
    }

    fn unstage(&mut self, hash: u64) {
        if let Some(staged) = self.staged.remove(&hash) {
            self.staged_bytes -= staged.bytes.len();
        }
    }

    /// Keeps an item that the partition evicts.
    pub(crate) fn evicted(&mut self, hash: KeyHash, key: &[u8], item: &Item<'_>) {
        let len = record_bytes(key.len(), item.value.len());
        if item.value.len() < self.config.value_bytes_min || len > self.config.block_bytes {
            self.stats.unsuited += 1;
            return;
        }
        if self.open.len() + len > self.config.block_bytes && !self.close() {
            self.stats.dropped += 1;
            return;
        }
        while self.index.is_full() {
            // Blocks whose records are all gone are dropped on the way.
            if !self.drop_oldest() {
                // Without a record more, an open block that has all of them would never fill, and never be dropped.
                if self.blocks.is_empty() {
                    self.close();
                }
                self.stats.dropped += 1;
                return;
            }
        }
        if self.open.capacity() == 0 {
            self.open.reserve_exact(self.config.block_bytes);
        }
        let place = self.open_number() * self.config.block_bytes as u64 + self.open.len() as u64;
        record::write(&mut self.open, Origin { nonce: self.config.nonce, place }, key, item);
        // A record is no longer than a block.
        let (len, expires) = (len as u32, item.expires.unwrap_or(0));
        let label = self.config.label.map_or(0, |label| label(key));
        self.forget(hash);
        self.index.insert(hash.0, Entry { place, len, label, expires, was_read: false }, item.cas);
        self.open_hashes.push(hash.0);
        self.stats.bytes += u64::from(len);
        self.stats.stored += 1;
    }

    /// Closes the open block. False if too many wait for the device.
    fn close(&mut self) -> bool {
        if self.is_behind() {
            return false;
        }
        // The next block will be written in place of the oldest, which is gone then. It may still wait to be written, if
        // the device is stuck.
        if self.blocks.len() as u64 + 1 >= self.ring && !self.drop_oldest() {
            return false;
        }
        let number = self.open_number();
        let block = Block {
            hashes: std::mem::take(&mut self.open_hashes),
            bytes: Some(Arc::new(std::mem::take(&mut self.open))),
        };
        self.blocks.push_back(block);
        self.to_write.push_back(number);
        self.writing += 1;
        true
    }

    /// Drops the oldest block and its records. False if there is none that the device has.
    fn drop_oldest(&mut self) -> bool {
        if self.blocks.front().is_none_or(|block| block.bytes.is_some()) {
            return false;
        }
        let Some(block) = self.blocks.pop_front() else { return false };
        let number = self.first;
        self.first += 1;
        self.stats.evicted += self.forget_all(number, block.hashes);
        true
    }

    /// Drops the records of a block; returns how many there were.
    fn forget_all(&mut self, number: u64, hashes: Vec<u64>) -> u64 {
        let mut count = 0;
        for hash in hashes {
            if self.index.get(hash).is_some_and(|entry| self.split(entry.place).0 == number) {
                self.forget(KeyHash(hash));
                count += 1;
            }
        }
        count
    }

    /// Takes the next block to write, if there is one.
    pub fn take_write(&mut self) -> Option<BlockWrite> {
        let number = self.to_write.pop_front()?;
        let bytes = self.blocks.get((number - self.first) as usize)?.bytes.clone()?;
        Some(BlockWrite { number, offset: self.offset_of(number), bytes })
    }

    /// Reports that a block was written, or could not be.
    pub fn written(&mut self, number: u64, is_written: bool) {
        self.writing -= 1;
        let at = (number - self.first) as usize;
        let Some(block) = self.blocks.get_mut(at) else { return };
        let bytes = block.bytes.take().map_or(0, |bytes| bytes.len());
        if is_written {
            self.stats.writes += 1;
            self.stats.write_bytes += bytes as u64;
        } else {
            self.stats.write_errors += 1;
            let hashes = std::mem::take(&mut block.hashes);
            self.stats.lost += self.forget_all(number, hashes);
        }
    }

    /// Takes the bytes that were read for a ticket; `None` if reading failed. The item is then held `holders` times.
    pub fn arrived(&mut self, ticket: &Ticket, bytes: Option<Vec<u8>>, holders: usize) -> Arrival {
        if let Some(bytes) = &bytes {
            self.stats.reads += 1;
            self.stats.read_bytes += bytes.len() as u64;
        } else {
            self.stats.read_errors += 1;
        }
        if self.index.get(ticket.hash).is_none_or(|entry| entry.place != ticket.place) {
            return Arrival::Outdated;
        }
        let origin = Origin { nonce: self.config.nonce, place: ticket.place };
        match bytes {
            Some(bytes) if is_intact(&bytes, origin) => {
                self.staged_bytes += bytes.len();
                self.unstage(ticket.hash);
                self.staged.insert(ticket.hash, Staged { place: ticket.place, bytes, holders });
                Arrival::Staged
            }
            other => {
                self.stats.corrupt += u64::from(other.is_some());
                self.stats.lost += 1;
                self.forget(KeyHash(ticket.hash));
                Arrival::Lost
            }
        }
    }

    /// Holds the staged record of a key once more. Returns its ticket, for [`Tier::release`].
    pub fn hold(&mut self, hash: KeyHash) -> Option<Ticket> {
        let staged = self.staged.get_mut(&hash.0)?;
        staged.holders += 1;
        Some(Ticket { hash: hash.0, place: staged.place, len: staged.bytes.len() as u32 })
    }

    /// Ends one hold of a staged record. Ignored if the record is gone.
    pub fn release(&mut self, ticket: &Ticket) {
        let Some(staged) = self.staged.get_mut(&ticket.hash).filter(|staged| staged.place == ticket.place) else {
            return;
        };
        staged.holders -= 1;
        if staged.holders == 0 {
            self.unstage(ticket.hash);
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.staged.clear();
        (self.staged_bytes, self.stats.bytes) = (0, 0);
        self.blocks.iter_mut().for_each(|block| block.hashes = Vec::new());
        self.open_hashes.clear();
        // What stands in the open block is written with it, and never found. Places are not used twice.
    }

    /// Returns counters and sizes.
    pub fn stats(&self) -> TierStats {
        let blocks: usize = self.blocks.iter().filter_map(|block| block.bytes.as_ref()).map(|bytes| bytes.len()).sum();
        let listed: usize = self.blocks.iter().map(|block| block.hashes.len()).sum();
        let records = self.index.bytes() + listed * size_of::<u64>();
        let memory = records + blocks + self.open.capacity() + self.staged_bytes;
        TierStats {
            items: self.index.len() as u64,
            bytes_max: self.ring * self.config.block_bytes as u64,
            memory_bytes: memory as u64,
            ..self.stats
        }
    }
}

/// A record on its way back to memory.
#[derive(Debug)]
pub(crate) struct Recalled {
    bytes: Vec<u8>,
    marks: Marks,
}

impl Recalled {
    pub fn item(&self) -> Item<'_> {
        Item { marks: self.marks, ..record::read(&self.bytes).1 }
    }
}

#[cfg(test)]
mod tests;
