//! A partition that fails on purpose.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use dunlin_store::{
    Delta, Item, Key, KeyError, KeyHash, Marks, Partition, Put, Refused, Shape, Side, Store, StoreStats, Stored, Sweep,
    Token, UnixSeconds, Visit, Watch,
};

/// Keys with this prefix make [`Fragile`] panic when they are stored.
pub const PANIC: &[u8] = b"panic";

/// Storing a key with this prefix makes [`Fragile`] panic from then on when it is asked for its statistics.
pub const PANIC_AT_STATS: &[u8] = b"stats";

/// Storing a key with this prefix makes [`Fragile`] wait at its gate from then on whenever it is visited.
pub const HANG: &[u8] = b"hang";

/// Blocks all callers until it is opened.
#[derive(Debug, Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    comers: AtomicU32,
}

impl Gate {
    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Whether any caller has arrived.
    pub fn has_comers(&self) -> bool {
        self.comers.load(Ordering::Relaxed) > 0
    }

    fn pass(&self) {
        self.comers.fetch_add(1, Ordering::Relaxed);
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// A partition that panics when a key that begins with [`PANIC`] is stored. If it is `unreadable`, from then on it also
/// panics when it is visited.
#[derive(Debug)]
pub struct Fragile {
    pub partition: Partition,
    pub is_broken: bool,
    pub unreadable: Arc<AtomicBool>,
    pub ticks: Arc<Ticks>,
    pub has_no_stats: bool,
    pub hangs: bool,
    pub gate: Arc<Gate>,
}

/// Counts updates of a partition's time since its first visit began; a visit takes long.
#[derive(Debug, Default)]
pub struct Ticks {
    pub is_visited: AtomicBool,
    pub since: AtomicU32,
}

/// The interval at which a server updates its partitions' time, which must not happen during a visit.
pub const TICK: Duration = Duration::from_millis(1);
/// Long enough for several updates to fall due.
const VISIT: Duration = TICK.saturating_mul(5);

impl Store for Fragile {
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        self.partition.key(bytes)
    }

    fn prefetch(&self, key: &Key<'_>) {
        self.partition.prefetch(key);
    }

    fn prefetch_item(&self, key: &Key<'_>) {
        self.partition.prefetch_item(key);
    }

    fn set_now(&mut self, now: UnixSeconds) {
        self.partition.set_now(now);
    }

    fn get(&mut self, key: &Key<'_>) -> Option<Item<'_>> {
        self.partition.get(key)
    }

    fn peek(&self, key: &Key<'_>) -> Option<Item<'_>> {
        self.partition.peek(key)
    }

    fn put(&mut self, key: &Key<'_>, value: &[u8], put: Put) -> Result<Stored, Refused> {
        if key.bytes().starts_with(PANIC) {
            self.is_broken = true;
            panic!("a fault on purpose");
        }
        self.has_no_stats |= key.bytes().starts_with(PANIC_AT_STATS);
        self.hangs |= key.bytes().starts_with(HANG);
        self.partition.put(key, value, put)
    }

    fn extend(&mut self, key: &Key<'_>, bytes: &[u8], side: Side, unchanged: Option<u64>) -> Result<Stored, Refused> {
        self.partition.extend(key, bytes, side, unchanged)
    }

    fn count(&mut self, key: &Key<'_>, delta: Delta, unchanged: Option<u64>) -> Result<(u64, Stored), Refused> {
        self.partition.count(key, delta, unchanged)
    }

    fn touch(&mut self, key: &Key<'_>, expires: Option<UnixSeconds>) -> Result<(), Refused> {
        self.partition.touch(key, expires)
    }

    fn mark(&mut self, key: &Key<'_>, marks: Marks, token: Token) -> Result<(), Refused> {
        self.partition.mark(key, marks, token)
    }

    fn delete(&mut self, key: &Key<'_>, unchanged: Option<u64>) -> Result<(), Refused> {
        self.partition.delete(key, unchanged)
    }

    fn flush(&mut self) {
        self.partition.flush();
    }

    fn stats(&self) -> StoreStats {
        assert!(!self.has_no_stats, "a fault on purpose");
        self.partition.stats()
    }

    fn loaded(&mut self) {
        self.partition.loaded();
    }

    fn expire_some(&mut self) -> u32 {
        self.ticks.since.fetch_add(u32::from(self.ticks.is_visited.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.partition.expire_some()
    }
}

impl Visit for Fragile {
    fn range_bits(&self) -> u32 {
        self.partition.range_bits()
    }

    fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>)) {
        assert!(!self.is_broken || !self.unreadable.load(Ordering::Relaxed), "another fault on purpose");
        if !self.ticks.is_visited.swap(true, Ordering::Relaxed) {
            std::thread::sleep(VISIT);
        }
        if self.hangs {
            self.gate.pass();
        }
        self.partition.visit(hashes, each);
    }
}

impl Sweep for Fragile {
    fn watch(&mut self, watch: Box<dyn Watch>) -> Option<Box<dyn Watch>> {
        self.partition.watch(watch)
    }

    fn shape(&self) -> Shape {
        self.partition.shape()
    }

    fn unwatch(&mut self) -> Option<Box<dyn Watch>> {
        self.partition.unwatch()
    }
}
