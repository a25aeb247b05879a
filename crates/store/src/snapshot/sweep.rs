//! Copies a partition while it changes, so that the copy is its state at one instant.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use super::error::SaveError;
use super::record::{Block, Record};
use crate::item::Item;
use crate::key::KeyHash;
use crate::moment::Moment;
use crate::sweep::{Sweep, Visit, Watch};

/// Most ranges of hashes visited between two bursts.
pub const STEP_RANGES: usize = 256;
/// Bytes copied between two bursts, approximately. The last range of a step may exceed it.
pub const STEP_BYTES: usize = 32 << 10;
/// Blocks of changes that could not wait, which a core keeps when the disk is slow; beyond that, further changes wait a
/// little.
pub const BLOCKS_KEPT_MAX: usize = 16;
/// Blocks kept above which reads bring nothing back from the tier: the others are for changes, which cannot do without.
const BLOCKS_KEPT_BY_READS: usize = BLOCKS_KEPT_MAX / 2;
/// How long operations wait for the disk in each [`STALL_MAX`], all together, when little is kept.
pub const STALL_MIN: Duration = Duration::from_millis(1);
/// The same when at least half of the limit is kept; also the longest wait of one operation. In between, the time grows
/// with the amount kept. So changes that come faster than the disk writes slow down to its pace, however many there are
/// between two steps.
pub const STALL_MAX: Duration = Duration::from_millis(10);
/// How long operations wait, all together, for a disk that writes nothing. Then it counts as hung, and they wait again
/// only after it has written a block.
pub const HANG: Duration = Duration::from_secs(1);
/// Most bytes of blocks that one core keeps for a slow disk before the snapshot is given up.
pub const KEPT_BYTES_MAX: usize = 64 << 20;
/// Most bytes of blocks that all cores together keep, provided that each may keep at least [`KEPT_BYTES_MIN`].
pub const KEPT_BYTES_ALL_MAX: usize = 256 << 20;
/// Bytes of blocks that a core may always keep, however many cores there are.
pub const KEPT_BYTES_MIN: usize = 16 << 20;
/// How often a waiting operation checks the disk.
const STALL_STEP: Duration = Duration::from_micros(100);

/// How often waiting operations check a hung disk in total. Sleeps are counted, not timed: a thread that the system
/// wakes late has waited once.
const HANG_STEPS: u32 = (HANG.as_micros() / STALL_STEP.as_micros()) as u32;

/// Returns the most bytes of blocks that each core keeps, with this many cores.
pub fn kept_bytes_max(cores: usize) -> usize {
    (KEPT_BYTES_ALL_MAX / cores.max(1)).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX)
}

/// The clock of waiting operations.
trait Clock: fmt::Debug + Send {
    /// Returns the time since some fixed instant.
    fn now(&self) -> Duration;

    /// Waits for this time, or longer.
    fn sleep(&self, time: Duration);
}

/// The thread's real time.
#[derive(Debug)]
struct ThreadClock {
    began: Instant,
}

impl Clock for ThreadClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Limit of the number of bits that number the ranges: their bitmap takes 8 MiB then.
const RANGE_BITS_MAX: u32 = 26;

/// What a core sends to the writing thread.
#[derive(Debug)]
pub enum Piece {
    /// Items.
    Block(Block),
    /// The end of this core's items.
    End(Effort),
}

/// The cost of a snapshot for one core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Longest pause for the other cores.
    pub pause: Duration,
    /// Ranges copied because they were about to change.
    pub copies: u64,
    /// Longest time that one operation waited for the disk.
    pub stall: Duration,
}

/// The progress of a snapshot of one partition. The partition reports changes to it, and returns it for each step.
///
/// Hashes are divided into numbered ranges, about as many as the partition had buckets at the start.
#[derive(Debug)]
pub struct Copier {
    /// The snapshot that it belongs to.
    snapshot: usize,
    range_bits: u32,
    /// All ranges before this one were visited.
    next: usize,
    /// One bit for each range: set if it was copied before its turn.
    early: Vec<u64>,
    taken_at: Moment,
    block: Block,
    /// Full blocks that the queue has no room for.
    kept: VecDeque<Block>,
    /// Bytes of their records.
    kept_bytes: usize,
    kept_bytes_max: usize,
    /// How long operations may wait for the disk now, and when that was computed.
    stall_left: Duration,
    reckoned_at: Duration,
    /// How long they have waited since the last step.
    stalled: Duration,
    /// How long the one that is under way has.
    waited: Duration,
    /// Whether it may wait: it is not a read.
    may_wait: bool,
    /// How often they may still ask before the disk has taken a block.
    hang_steps: u32,
    clock: Box<dyn Clock>,
    output: SyncSender<Piece>,
    failure: Option<SaveError>,
    effort: Effort,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to visit.
    More,
    /// The queue is full.
    Full,
    /// Every range was visited, and all blocks are in the queue.
    Complete,
    /// It was given up.
    Failed,
}

impl Copier {
    /// Begins to copy a partition as of now, after its core paused for `pause`. Items that expired by `taken_at` are
    /// left out. Keeps up to `kept_bytes_max` for a slow disk.
    pub fn new(
        items: &dyn Visit,
        snapshot: usize,
        taken_at: Moment,
        output: SyncSender<Piece>,
        pause: Duration,
        kept_bytes_max: usize,
    ) -> Copier {
        let range_bits = items.range_bits().clamp(6, RANGE_BITS_MAX);
        Copier {
            snapshot,
            range_bits,
            next: 0,
            early: vec![0; (1 << range_bits) / 64],
            taken_at,
            block: Block::default(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            kept_bytes_max,
            stall_left: STALL_MIN,
            reckoned_at: Duration::ZERO,
            stalled: Duration::ZERO,
            waited: Duration::ZERO,
            may_wait: true,
            hang_steps: HANG_STEPS,
            clock: Box::new(ThreadClock { began: Instant::now() }),
            output,
            failure: None,
            effort: Effort { pause, ..Effort::default() },
        }
    }

    /// Takes a snapshot's copier back from its partition. A watch of another kind stays.
    pub fn take(partition: &mut impl Sweep, snapshot: usize) -> Option<Box<Copier>> {
        let watch = partition.unwatch()?;
        let copier = (watch.as_ref() as &dyn Any).downcast_ref::<Copier>();
        if copier.is_some_and(|copier| copier.snapshot == snapshot) {
            (watch as Box<dyn Any>).downcast().ok()
        } else {
            partition.watch(watch);
            None
        }
    }

    /// Gives up; nothing more is copied.
    fn fail(&mut self, why: SaveError) {
        self.failure.get_or_insert(why);
        self.kept.clear();
        self.kept_bytes = 0;
        self.block = Block::default();
        self.stalled = Duration::ZERO;
    }

    /// Returns why it was given up.
    pub fn failure(self) -> Option<SaveError> {
        self.failure
    }

    /// Returns its cost.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    fn add(&mut self, key: &[u8], item: &Item<'_>) {
        if self.failure.is_some() || item.expires.is_some_and(|at| at <= self.taken_at.now) {
            return;
        }
        let expires = item.expires.map(|at| self.taken_at.to_wall(at));
        self.block.push(&Record { expires, ..Record::of(key, item) });
        if self.block.is_full() {
            self.close_block();
        }
    }

    fn close_block(&mut self) {
        if !self.block.is_empty() {
            self.kept_bytes += self.block.payload().len();
            self.kept.push_back(std::mem::take(&mut self.block));
        }
    }

    /// Moves full blocks to the queue while that has room; returns whether it had room for all.
    fn push_out(&mut self) -> bool {
        while let Some(block) = self.kept.pop_front() {
            let bytes = block.payload().len();
            match self.output.try_send(Piece::Block(block)) {
                Ok(()) => {
                    self.kept_bytes -= bytes;
                    self.hang_steps = HANG_STEPS;
                }
                Err(TrySendError::Full(Piece::Block(block))) => {
                    self.kept.push_front(block);
                    return false;
                }
                Err(TrySendError::Full(_)) => return false,
                Err(TrySendError::Disconnected(_)) => {
                    // The writing thread has reported why it stopped.
                    self.fail(SaveError::Abandoned);
                    return true;
                }
            }
        }
        true
    }

    /// Hands on what an operation made full, or keeps it. If much is kept, the operation waits, unless it is a read.
    fn settle(&mut self) {
        self.push_out();
        if self.kept.len() > BLOCKS_KEPT_MAX && self.may_wait {
            self.stall();
        }
    }

    /// Waits in the middle of an operation for the disk to take a block, but not for long: what it does not take is
    /// kept.
    fn stall(&mut self) {
        let begun = self.clock.now();
        // Once for each operation, whatever it evicts.
        if self.waited.is_zero() {
            self.reckon(begun);
        }
        while self.stall_left >= STALL_STEP
            && self.hang_steps > 0
            && !self.push_out()
            && self.kept.len() > BLOCKS_KEPT_MAX
        {
            self.stall_left -= STALL_STEP;
            self.hang_steps -= 1;
            self.stalled += STALL_STEP;
            self.clock.sleep(STALL_STEP);
        }
        if self.kept_bytes > self.kept_bytes_max {
            self.fail(SaveError::TooSlow);
        }
        self.waited += self.clock.now().saturating_sub(begun);
        self.effort.stall = self.effort.stall.max(self.waited);
    }

    /// Adds to the time that operations may wait: a share of the time that has passed, which grows with the amount
    /// kept. Once the share is all of the time, each operation may wait, whatever earlier ones did.
    fn reckon(&mut self, now: Duration) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.reckoned_at, now));
        let full = self.kept_bytes_max / 2;
        if self.kept_bytes >= full {
            self.stall_left = STALL_MAX;
            return;
        }
        let in_each = STALL_MIN + (STALL_MAX - STALL_MIN).mul_f64(self.kept_bytes as f64 / full as f64);
        let share = in_each.div_duration_f64(STALL_MAX);
        self.stall_left = (self.stall_left + passed.min(STALL_MAX).mul_f64(share)).min(in_each);
    }

    fn ranges(&self) -> usize {
        1 << self.range_bits
    }

    fn hashes(&self, range: usize) -> RangeInclusive<u64> {
        let first = (range as u64) << (64 - self.range_bits);
        first..=first | u64::MAX >> self.range_bits
    }

    fn range(&self, hash: KeyHash) -> usize {
        (hash.0 >> (64 - self.range_bits)) as usize
    }

    fn is_early(&self, range: usize) -> bool {
        self.early[range / 64] & 1 << (range % 64) != 0
    }

    /// Whether changes of a range need no copy any more.
    fn is_over(&self, range: usize) -> bool {
        range < self.next || self.failure.is_some() || self.is_early(range)
    }

    /// Copies the range of a hash before its turn.
    fn copy_early(&mut self, items: &dyn Visit, hash: KeyHash) {
        self.waited = Duration::ZERO;
        let range = self.range(hash);
        if self.is_over(range) {
            return;
        }
        items.visit(self.hashes(range), &mut |_, key, item| self.add(key, item));
        self.early[range / 64] |= 1 << (range % 64);
        self.effort.copies += 1;
        self.settle();
    }

    /// Visits the next ranges.
    pub fn step(&mut self, items: &dyn Visit) -> Step {
        self.stalled = Duration::ZERO;
        if !self.push_out() {
            return Step::Full;
        }
        let end = self.ranges().min(self.next + STEP_RANGES);
        let mut bytes = 0;
        while self.next < end && bytes < STEP_BYTES && self.kept.is_empty() && self.failure.is_none() {
            let range = self.next;
            self.next += 1;
            if !self.is_early(range) {
                items.visit(self.hashes(range), &mut |_, key, item| {
                    bytes += key.len() + item.value.len();
                    self.add(key, item);
                });
            }
        }
        let is_complete = self.next == self.ranges();
        if is_complete {
            self.close_block();
        }
        match self.push_out() {
            _ if self.failure.is_some() => Step::Failed,
            false => Step::Full,
            true if is_complete => Step::Complete,
            true => Step::More,
        }
    }
}

impl Watch for Copier {
    fn before_change(&mut self, items: &dyn Visit, hash: KeyHash) {
        self.may_wait = true;
        self.copy_early(items, hash);
    }

    /// What the read copies and the disk does not take is kept, whatever it is: no further read adds to it then.
    fn before_recall(&mut self, items: &dyn Visit, hash: KeyHash) -> bool {
        self.push_out();
        if self.kept.len() > BLOCKS_KEPT_BY_READS {
            return false;
        }
        self.may_wait = false;
        self.copy_early(items, hash);
        true
    }

    /// Copies the item alone. The rest of its range is as it was when the snapshot began, and the sweep or the first
    /// change of the range copies that.
    fn before_eviction(&mut self, _items: &dyn Visit, hash: KeyHash, key: &[u8], item: &Item<'_>) {
        if self.is_over(self.range(hash)) {
            return;
        }
        let kept = self.kept.len();
        self.add(key, item);
        if self.kept.len() > kept {
            self.settle();
        }
    }

    fn before_flush(&mut self, _items: &dyn Visit) {
        self.fail(SaveError::Flushed);
    }

    fn stalled(&self) -> Duration {
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::tier::{Located, TierConfig};
    use crate::{Marks, Mode, Partition, PartitionConfig, Put, Store};

    /// One value fills a block.
    const VALUE_BYTES: usize = 256 << 10;

    /// A partition of 1,024 ranges, each with an item that fills a block.
    struct Filled(Vec<u8>);

    impl Filled {
        const RANGE_BITS: u32 = 10;

        fn new() -> Filled {
            Filled(vec![b'v'; VALUE_BYTES])
        }

        /// Returns one hash of each range.
        fn hashes() -> impl Iterator<Item = KeyHash> {
            (0..1 << Filled::RANGE_BITS).map(|range: u64| KeyHash(range << (64 - Filled::RANGE_BITS)))
        }
    }

    impl Visit for Filled {
        fn range_bits(&self) -> u32 {
            Filled::RANGE_BITS
        }

        fn visit(&self, hashes: RangeInclusive<u64>, each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>)) {
            let marks = Marks::default();
            let item = Item { value: &self.0, flags: 0, cas: 1, expires: None, last_access: 0, marks };
            each(KeyHash(*hashes.start()), b"key", &item);
        }
    }

    fn copier(items: &Filled, output: SyncSender<Piece>, kept_bytes_max: usize) -> Copier {
        Copier::new(items, 1, Moment::default(), output, Duration::ZERO, kept_bytes_max)
    }

    /// A disk with simulated time.
    #[derive(Debug)]
    struct Disk {
        pieces: Receiver<Piece>,
        now: Duration,
        /// The time that operations waited for it.
        waited: Duration,
        /// It writes a block in this time.
        block_time: Duration,
        /// When it takes the next block.
        free_at: Duration,
        records: u32,
    }

    /// A disk, shared with the clock that advances its time.
    #[derive(Debug, Clone)]
    struct Shared(Arc<Mutex<Disk>>);

    impl Shared {
        fn new(pieces: Receiver<Piece>, block_time: Duration) -> Shared {
            let zero = Duration::ZERO;
            Shared(Arc::new(Mutex::new(Disk {
                pieces,
                now: zero,
                waited: zero,
                block_time,
                free_at: zero,
                records: 0,
            })))
        }

        fn pass(&self, time: Duration) {
            let disk = &mut *self.0.lock().unwrap();
            disk.now += time;
            while disk.free_at <= disk.now {
                match disk.pieces.try_recv() {
                    Ok(Piece::Block(block)) => disk.records += block.records(),
                    _ => disk.free_at = disk.now,
                }
                disk.free_at += disk.block_time;
            }
        }

        fn waited(&self) -> Duration {
            self.0.lock().unwrap().waited
        }

        fn records(&self) -> u32 {
            self.0.lock().unwrap().records
        }
    }

    impl Clock for Shared {
        fn now(&self) -> Duration {
            self.0.lock().unwrap().now
        }

        fn sleep(&self, time: Duration) {
            self.0.lock().unwrap().waited += time;
            self.pass(time);
        }
    }

    /// Changes come faster than the disk writes, at this interval, and many times as many as can be kept.
    fn check_pace(change_time: Duration, changes_per_step: usize) {
        const BLOCK_TIME: Duration = Duration::from_millis(10);
        let items = Filled::new();
        let (output, pieces) = sync_channel(1);
        let mut copier = copier(&items, output, KEPT_BYTES_MIN);
        let disk = Shared::new(pieces, BLOCK_TIME);
        copier.clock = Box::new(disk.clone());
        // From the opposite end to the sweep.
        for (at, hash) in Filled::hashes().collect::<Vec<_>>().into_iter().rev().enumerate() {
            let before = disk.waited();
            copier.before_change(&items, hash);
            let waited = disk.waited() - before;
            assert!(waited <= STALL_MAX, "one change waited for {waited:?}");
            assert!(copier.failure.is_none(), "{:?} after {} records", copier.failure, disk.records());
            disk.pass(change_time);
            if at % changes_per_step == 0 {
                copier.step(&items);
            }
        }
        while copier.step(&items) != Step::Complete {
            disk.pass(BLOCK_TIME);
        }
        disk.pass(2 * BLOCK_TIME);
        assert_eq!(disk.records() as usize, Filled::hashes().count());
    }

    #[test]
    fn changes_that_come_faster_than_the_disk_writes_slow_down_to_its_pace() {
        check_pace(Duration::from_millis(5), 1);
    }

    #[test]
    fn changes_of_many_connections_between_two_steps_slow_down_to_the_pace_of_the_disk() {
        check_pace(Duration::from_millis(5), 500);
        check_pace(Duration::from_micros(5), 500);
    }

    /// Sessions let others run after a change that waited, and change nothing more in a turn that has waited for this
    /// long.
    #[test]
    fn changes_of_sessions_that_make_way_keep_the_pace_of_the_disk_and_hold_a_turn_for_a_bounded_time() {
        const TURN_MAX: Duration = Duration::from_millis(20);
        let items = Filled::new();
        let (output, pieces) = sync_channel(1);
        let mut copier = copier(&items, output, KEPT_BYTES_MIN);
        let disk = Shared::new(pieces, Duration::from_millis(10));
        copier.clock = Box::new(disk.clone());
        let mut waited_before = Duration::ZERO;
        for hash in Filled::hashes().collect::<Vec<_>>().into_iter().rev().take(500) {
            if copier.stalled() >= TURN_MAX {
                copier.step(&items);
                assert_eq!(copier.stalled(), Duration::ZERO);
                waited_before = disk.waited();
            }
            copier.before_change(&items, hash);
            assert_eq!(copier.stalled(), disk.waited() - waited_before, "what the caller is told is what it waited");
            assert!(copier.stalled() < TURN_MAX + STALL_MAX, "{:?}", copier.stalled());
            assert!(copier.failure.is_none(), "{:?} after {} records", copier.failure, disk.records());
        }
        assert!(disk.waited() > Duration::from_secs(4), "{:?}", disk.waited());
    }

    /// Each long item evicts many small ones, most of them in ranges that were not visited.
    #[test]
    fn an_item_that_evicts_many_others_waits_no_longer_than_any_change_and_the_snapshot_has_them_all() {
        let config = PartitionConfig::new(Mode::Cache, 32 << 20);
        let mut cache = Partition::with_secret(config, [1, 2]).unwrap();
        let put = |cache: &mut Partition, key: u32, value: &[u8]| {
            let text = key.to_string();
            let key = cache.key(text.as_bytes()).unwrap();
            cache.put(&key, value, Put::default()).unwrap();
        };
        (1..).find(|&key| {
            put(&mut cache, key, &[b'v'; 100]);
            cache.stats().evicted_log > 0
        });
        let before = cache.stats();
        let (output, pieces) = sync_channel(1);
        let mut copier = Copier::new(&cache, 1, Moment::default(), output, Duration::ZERO, KEPT_BYTES_MIN);
        let disk = Shared::new(pieces, Duration::from_millis(10));
        copier.clock = Box::new(disk.clone());
        cache.watch(Box::new(copier));
        // A few at once, and then as many bytes as the disk takes.
        for (value_bytes, count) in [(1 << 20, 3), (64 << 10, 200)] {
            let value = vec![b'l'; value_bytes];
            for key in 0..count {
                let waited_before = disk.waited();
                put(&mut cache, u32::MAX - value_bytes as u32 - key, &value);
                let waited = disk.waited() - waited_before;
                assert!(waited <= STALL_MAX, "one item of {value_bytes} bytes waited for {waited:?}");
                assert_eq!(cache.stalled(), waited);
                let mut copier = Copier::take(&mut cache, 1).unwrap();
                assert!(copier.failure.is_none(), "{:?} after {} records", copier.failure, disk.records());
                assert!(copier.effort.stall <= STALL_MAX, "{:?}", copier.effort);
                copier.step(&cache);
                cache.watch(copier);
                disk.pass(Duration::from_millis(1));
            }
        }
        assert!(cache.stats().evicted_log > before.evicted_log + before.items / 4, "few were evicted");
        let mut copier = Copier::take(&mut cache, 1).unwrap();
        while copier.step(&cache) != Step::Complete {
            disk.pass(Duration::from_millis(10));
        }
        disk.pass(Duration::from_millis(20));
        assert_eq!(u64::from(disk.records()), before.items, "each item that was there is there once");
    }

    /// Items that only the tier has, all of which are read for the second time between two steps. The disk is slower.
    #[test]
    fn reads_bring_items_back_from_the_tier_only_if_they_need_not_wait_for_the_disk() {
        const ITEMS: u32 = 4_000;
        let config = PartitionConfig::new(Mode::Cache, 32 << 20);
        let mut cache = Partition::with_secret(config, [1, 2]).unwrap();
        // Its blocks are not written, so that all records can be read.
        assert!(cache.attach_tier(TierConfig { writes_max: 40, ..TierConfig::new(128 << 20, 1) }));
        let key_of = |key: u32| key.to_string().into_bytes();
        for key in 0..ITEMS {
            let key = key_of(key);
            let key = cache.key(&key).unwrap();
            cache.put(&key, &[b'v'; 16 << 10], Put::default()).unwrap();
        }
        let cold: Vec<_> = (0..ITEMS)
            .map(key_of)
            .filter(|key| {
                let key = cache.key(key).unwrap();
                cache.tier().unwrap().locate(key.hash(), 0) == Located::Here
            })
            .collect();
        assert!(cold.len() > 1_000, "{} items are in the tier", cold.len());
        let before = cache.stats();
        let (output, pieces) = sync_channel(1);
        let mut copier = Copier::new(&cache, 1, Moment::default(), output, Duration::ZERO, KEPT_BYTES_MIN);
        let disk = Shared::new(pieces, Duration::from_millis(10));
        copier.clock = Box::new(disk.clone());
        cache.watch(Box::new(copier));
        for reads in 0..2 {
            for key in &cold {
                let key = cache.key(key).unwrap();
                assert!(cache.get(&key).is_some_and(|item| item.value.len() == 16 << 10), "{reads} reads before");
                assert_eq!(cache.stalled(), Duration::ZERO, "{reads} reads before");
                disk.pass(Duration::from_micros(10));
            }
        }
        let recalled = cache.tier().unwrap().stats().recalled;
        assert!((1..cold.len() as u64 / 2).contains(&recalled), "{recalled} of {} items are back", cold.len());
        // Their number is limited by the room that changes need.
        let mut copier = Copier::take(&mut cache, 1).unwrap();
        assert!(copier.failure.is_none() && copier.kept.len() <= BLOCKS_KEPT_MAX, "{} blocks", copier.kept.len());
        while copier.step(&cache) != Step::Complete {
            disk.pass(Duration::from_millis(10));
        }
        disk.pass(Duration::from_millis(20));
        assert_eq!(u64::from(disk.records()), before.items, "each item that was in memory is there once");
    }

    /// Changes of long values while the disk takes nothing.
    #[test]
    fn a_disk_that_hangs_holds_a_core_for_a_bounded_time_and_memory() {
        let items = Filled::new();
        let (output, pieces) = sync_channel(1);
        let mut copier = copier(&items, output, KEPT_BYTES_MAX);
        // The first block that it writes is the last.
        let disk = Shared::new(pieces, Duration::MAX / 2);
        copier.clock = Box::new(disk.clone());
        disk.pass(Duration::ZERO);
        let mut changed = Filled::hashes();
        // A burst while little is kept: its operations wait for a small part of the time.
        for hash in changed.by_ref().take(BLOCKS_KEPT_MAX + 16) {
            copier.before_change(&items, hash);
        }
        assert!((STALL_MIN..2 * STALL_MIN).contains(&disk.waited()), "{:?}", disk.waited());
        assert!(copier.failure.is_none());
        assert!(copier.kept.len() > BLOCKS_KEPT_MAX, "what cannot wait is kept");
        // Up to a limit of time, and then of memory.
        for hash in changed {
            assert_eq!(copier.step(&items), Step::Full);
            copier.before_change(&items, hash);
            assert!(disk.waited() <= HANG, "{:?}", disk.waited());
            disk.pass(STALL_MAX);
            if copier.failure.is_some() {
                break;
            }
            assert!(copier.kept_bytes <= KEPT_BYTES_MAX, "{} bytes", copier.kept_bytes);
        }
        assert_eq!(disk.waited(), HANG);
        assert!(matches!(copier.failure, Some(SaveError::TooSlow)), "{:?}", copier.failure);
        assert!(copier.kept.is_empty());
    }

    #[test]
    fn cores_share_what_may_be_kept() {
        assert_eq!([1, 4, 8, 64].map(kept_bytes_max).map(|bytes| bytes >> 20), [64, 64, 32, 16]);
    }
}
