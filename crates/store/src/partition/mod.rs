//! The real store: MICA's cache and store over one block of memory, with small items in the index itself.
//!
//! The memory contains the map of free lines, the index behind it ([`crate::table`]), and the log ([`crate::log`]) in
//! the rest, from which the index takes segments from below as it grows. `docs/store.md` shows the layout.
//!
//! | To understand | Read |
//! |---|---|
//! | how a key is found | `find.rs` |
//! | how an item is stored, and moved between line and log | `insert.rs` |
//! | how the index grows | `grow.rs` |
//! | where large items of a snapshot are placed | `plan.rs` |
//! | what is dropped when there is no room | `expire.rs`, `evict.rs` for lines, `clean.rs` for the log |
//! | the operations | `ops.rs` |
//! | snapshots | `visit.rs` |
//! | items that return from the tier | `behind.rs` |

mod behind;
mod clean;
mod evict;
mod expire;
mod find;
mod grow;
mod insert;
mod ops;
mod plan;
mod visit;

use crate::config::{Layout, Mode, PartitionConfig, PartitionError};
use crate::entry::entry_bytes;
use crate::hasher::KeyHasher;
use crate::key::KEY_BYTES_MAX;
use crate::log::{Log, SEGMENTS_MIN};
use crate::memory::{Line, Memory};
use crate::record::Clock;
use crate::shape::Shape;
use crate::store::{StoreStats, VALUE_BYTES_MAX};
use crate::sweep::Watch;
use crate::table::{LINES_MIN, Table, WORD_LINES};
use crate::tier::Tier;
use expire::Sweeper;
use plan::Plan;

/// Bits of the random number at which CAS tokens begin. As many again can follow before a token exceeds 44 bits and
/// costs its item more memory.
const FIRST_TOKEN_BITS: u32 = 43;

/// A partition of keys in a fixed amount of memory, for one thread.
///
/// A [cache](Mode::Cache) evicts older items for newer ones; a [store](Mode::Store) rejects items that it has no memory
/// for, and keeps those it has. Besides its configured memory it uses a few bytes per segment, and room for one value.
///
/// ```
/// use dunlin_store::{Mode, Partition, PartitionConfig, Put, Store};
///
/// let mut partition = Partition::new(PartitionConfig::new(Mode::Cache, 1 << 20))?;
/// partition.set_now(1_800_000_000);
/// let key = partition.key(b"plover").expect("a key has 1 to 250 bytes");
/// partition.put(&key, b"a wader", Put { expires: Some(1_800_000_060), ..Put::default() }).expect("a cache is never full");
/// assert_eq!(partition.get(&key).map(|item| item.value), Some(&b"a wader"[..]));
/// partition.set_now(1_800_000_060);
/// assert_eq!(partition.get(&key), None);
/// # Ok::<(), dunlin_store::PartitionError>(())
/// ```
#[derive(Debug)]
pub struct Partition {
    memory: Memory,
    table: Table,
    log: Log,
    hasher: KeyHasher,
    clock: Clock,
    config: PartitionConfig,
    mode: Mode,
    layout: Layout,
    /// Longest value accepted.
    value_bytes_max: usize,
    /// The newest CAS token: tokens count up.
    cas: u64,
    counters: StoreStats,
    watch: Option<Box<dyn Watch>>,
    /// Takes what is evicted.
    tier: Option<Box<Tier>>,
    /// Where eviction from the index looks next.
    hand: usize,
    /// The number of stored items from which on the index tries again to grow.
    grow_after: u64,
    /// The number of segments that the index is to have before it grows; `None` if it waits for none.
    claim: Option<usize>,
    sweeper: Sweeper,
    /// Items of a partition of the same shape are being loaded: all of them must find a place.
    is_loading: bool,
    /// The planned places of the large ones.
    plan: Plan,
    /// Lines being moved while the index grows; empty between operations.
    moving: Vec<Line>,
    /// A value being built; empty between operations.
    scratch: Vec<u8>,
}

impl Partition {
    /// Creates an empty partition. Its hash has a random secret, and its CAS tokens begin at a random number, so a
    /// token from before a restart matches no item here (except by chance, once in 2^43).
    ///
    /// # Errors
    /// [`PartitionError`] if the memory is out of limits or unavailable, or the system has no random numbers.
    pub fn new(config: PartitionConfig) -> Result<Partition, PartitionError> {
        let random = getrandom::u64().map_err(|cause| PartitionError::NoSecret { cause })?;
        let partition = Partition::with_hasher(config, KeyHasher::random(config.key_function)?)?;
        Ok(Partition { cas: random >> (u64::BITS - FIRST_TOKEN_BITS), ..partition })
    }

    /// Creates an empty partition with this secret for its hash, and tokens from 1, so that a test is reproducible to
    /// the bit. An attacker who knows the secret can choose keys that slow it down: use [`Partition::new`] for anything
    /// else.
    ///
    /// # Errors
    /// [`PartitionError`] if the memory is out of limits or unavailable.
    pub fn with_secret(config: PartitionConfig, secret: [u64; 2]) -> Result<Partition, PartitionError> {
        Partition::with_hasher(config, KeyHasher::with_secret(config.key_function, secret))
    }

    /// Creates an empty partition for the items of one that had this shape. All of its items will fit, provided that a
    /// store [foresees](crate::Store::foresee) them: for items between an eighth and a third of a segment this is
    /// tested, not proven (`docs/store.md`). Call [`loaded`](crate::Store::loaded) after all items, before others are
    /// stored. If the shape [does not suit](Shape::suits) the settings, this is like [`Partition::new`].
    ///
    /// # Errors
    /// [`PartitionError`] if the memory is out of limits or unavailable, or there are no random numbers.
    pub fn with_shape(config: PartitionConfig, shape: &Shape) -> Result<Partition, PartitionError> {
        if !shape.suits(&config)? {
            return Partition::new(config);
        }
        let random = getrandom::u64().map_err(|cause| PartitionError::NoSecret { cause })?;
        let partition = Partition::with_secret(config, shape.secret)?;
        let mut partition = Partition { cas: random >> (u64::BITS - FIRST_TOKEN_BITS), ..partition };
        partition.take_shape(shape.lines);
        Ok(partition)
    }

    /// Gives the index its lines, unless there cannot be that many.
    fn take_shape(&mut self, lines: u64) {
        let segments_max = self.log.segments().len() - SEGMENTS_MIN;
        let lines_max = self.table.lines_until(segments_max * self.log.segment_bytes);
        let lines = usize::try_from(lines).unwrap_or(usize::MAX);
        if (LINES_MIN..=lines_max).contains(&lines) && lines.is_multiple_of(WORD_LINES) {
            self.table.resize(&mut self.memory, lines);
            take_index_segments(&mut self.log, &self.table);
            self.is_loading = true;
        }
    }

    fn with_hasher(config: PartitionConfig, hasher: KeyHasher) -> Result<Partition, PartitionError> {
        let segment_bytes = config.segment_bytes()?;
        let bytes = config.memory / segment_bytes * segment_bytes;
        let mut memory =
            Memory::new(bytes, config.prefault).map_err(|cause| PartitionError::NoMemory { bytes, cause })?;
        let table = Table::new(&mut memory);
        let mut log = Log::new(bytes, segment_bytes);
        take_index_segments(&mut log, &table);
        Ok(Partition {
            memory,
            table,
            log,
            hasher,
            clock: Clock::default(),
            config,
            mode: config.mode,
            layout: config.layout,
            value_bytes_max: VALUE_BYTES_MAX.min(segment_bytes - entry_bytes(KEY_BYTES_MAX, 0)),
            cas: 0,
            counters: StoreStats::default(),
            watch: None,
            tier: None,
            hand: 0,
            grow_after: 0,
            claim: None,
            sweeper: Sweeper::default(),
            is_loading: false,
            plan: Plan::default(),
            moving: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Forgets all items.
    fn reset(&mut self) {
        self.table.reset(&mut self.memory);
        self.log.reset();
        take_index_segments(&mut self.log, &self.table);
        (self.claim, self.grow_after, self.is_loading) = (None, 0, false);
        (self.sweeper, self.plan) = (Sweeper::default(), Plan::default());
        (self.counters.items, self.counters.item_bytes) = (0, 0);
    }

    fn snapshot(&self) -> StoreStats {
        StoreStats {
            memory_bytes: (self.table.end() + self.log.used_bytes()) as u64,
            memory_bytes_max: self.memory.bytes().len() as u64,
            value_bytes_max: self.value_bytes_max as u64,
            ..self.counters
        }
    }
}

/// The map and the smallest index take more than the first segment if the memory is large or segments are small.
fn take_index_segments(log: &mut Log, table: &Table) {
    while log.index_segments() * log.segment_bytes < table.end() {
        assert!(log.give_to_index(), "an empty log has only free segments");
    }
}
