//! Copying a partition while it changes, so that what is copied is the state of one instant.

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

/// Most ranges of hashes that are visited between two bursts.
pub const STEP_RANGES: usize = 256;
/// About how many bytes are copied between two bursts. The last range of a step may exceed it.
pub const STEP_BYTES: usize = 32 << 10;
/// Blocks that a core keeps when the disk is slow, of changes that could not wait, before further changes wait a little.
pub const BLOCKS_KEPT_MAX: usize = 16;
/// How long operations wait for the disk in each [`STALL_MAX`], all together, when little is kept.
pub const STALL_MIN: Duration = Duration::from_millis(1);
/// The same when half of what may be kept is, or more, and how long one operation waits at most. In between it grows with
/// what is kept, so that changes that come faster than the disk writes slow down to its pace, however many come between two
/// steps.
pub const STALL_MAX: Duration = Duration::from_millis(10);
/// How long operations wait, all together, for a disk that takes nothing. Then it hangs, and they wait again only once
/// it has taken a block.
pub const HANG: Duration = Duration::from_secs(1);
/// Most bytes of blocks that one core keeps when the disk is slow, before the snapshot is given up.
pub const KEPT_BYTES_MAX: usize = 64 << 20;
/// Most bytes of blocks that all cores together keep, if that is [`KEPT_BYTES_MIN`] or more for each.
pub const KEPT_BYTES_ALL_MAX: usize = 256 << 20;
/// Bytes of blocks that a core may keep however many there are.
pub const KEPT_BYTES_MIN: usize = 16 << 20;
/// How often a waiting operation asks.
const STALL_STEP: Duration = Duration::from_micros(100);

/// How often waiting operations ask in the time in which a disk hangs. Sleeps are counted and not timed: a thread that the
/// system wakes late has waited once.
const HANG_STEPS: u32 = (HANG.as_micros() / STALL_STEP.as_micros()) as u32;

/// Most bytes of blocks that each of so many cores keeps.
pub fn kept_bytes_max(cores: usize) -> usize {
    (KEPT_BYTES_ALL_MAX / cores.max(1)).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX)
}

/// The time by which operations wait.
trait Clock: fmt::Debug + Send {
    /// Time since any one instant.
    fn now(&self) -> Duration;

    /// Lets so much time pass, or more.
    fn sleep(&self, time: Duration);
}

/// The thread's own.
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

/// Limit of the bits that number the ranges: what is noted of each takes 8 MiB then.
const RANGE_BITS_MAX: u32 = 26;

/// What a core sends to whoever writes the snapshot.
#[derive(Debug)]
pub enum Piece {
    /// Items.
    Block(Block),
    /// There are no more from this core.
    End(Effort),
}

/// What a snapshot cost one core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Longest time it stood still for the others.
    pub pause: Duration,
    /// Ranges that were copied because they were about to change.
    pub copies: u64,
    /// Longest time that one operation waited for the disk.
    pub stall: Duration,
}

/// How far a snapshot of one partition is. The partition tells it of changes, and gives it back for each step.
///
/// Hashes are cut into numbered ranges, about as many as the partition had buckets when it began.
#[derive(Debug)]
pub struct Copier {
    /// Which snapshot it belongs to.
    snapshot: usize,
    range_bits: u32,
    /// All ranges before this one were visited.
    next: usize,
    /// A bit for each range: it was copied before its turn.
    early: Vec<u64>,
    taken_at: Moment,
    block: Block,
    /// Full blocks that the queue has no place for.
    kept: VecDeque<Block>,
    /// Bytes of their records.
    kept_bytes: usize,
    kept_bytes_max: usize,
    /// How long operations may wait for the disk now, and when that was reckoned.
    stall_left: Duration,
    reckoned_at: Duration,
    /// How long they have waited since the last step.
    stalled: Duration,
    /// How often they may still ask before the disk has taken a block.
    hang_steps: u32,
    clock: Box<dyn Clock>,
    output: SyncSender<Piece>,
    failure: Option<SaveError>,
    effort: Effort,
}

/// How a step went.
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
    /// Of a partition as it is now, which its core stood still for `pause` to see. Items that expired by `taken_at` are
    /// left out. Keeps up to
    /// `kept_bytes_max` for a slow disk.
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
            hang_steps: HANG_STEPS,
            clock: Box::new(ThreadClock { began: Instant::now() }),
            output,
            failure: None,
            effort: Effort { pause, ..Effort::default() },
        }
    }

    /// Takes the one of a snapshot back from its partition. Whoever else watches goes on doing so.
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

    /// Gives up; nothing is copied any more.
    fn fail(&mut self, why: SaveError) {
        self.failure.get_or_insert(why);
        self.kept.clear();
        self.kept_bytes = 0;
        self.block = Block::default();
        self.stalled = Duration::ZERO;
    }

    /// Why it was given up.
    pub fn failure(self) -> Option<SaveError> {
        self.failure
    }

    /// What it cost.
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

    /// Moves full blocks to the queue as long as it has place; says whether it had for all.
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
                    // Whoever wrote it has said why it stopped.
                    self.fail(SaveError::Abandoned);
                    return true;
                }
            }
        }
        true
    }

    /// Waits in the middle of an operation for the disk to take a block, but not for long: what it does not take is kept.
    fn stall(&mut self) {
        let begun = self.clock.now();
        self.reckon(begun);
        while self.stall_left >= STALL_STEP && self.hang_steps > 0 && !self.push_out() && self.kept.len() > BLOCKS_KEPT_MAX {
            self.stall_left -= STALL_STEP;
            self.hang_steps -= 1;
            self.stalled += STALL_STEP;
            self.clock.sleep(STALL_STEP);
        }
        if self.kept_bytes > self.kept_bytes_max {
            self.fail(SaveError::TooSlow);
        }
        self.effort.stall = self.effort.stall.max(self.clock.now().saturating_sub(begun));
    }

    /// Adds to the time that operations may wait: a share of the time that has passed, as large as what is kept asks for. Once that is
    /// all of the time, each may wait, whatever those before it did.
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

    fn is_early(&self, range: usize) -> bool {
        self.early[range / 64] & 1 << (range % 64) != 0
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
        let range = (hash.0 >> (64 - self.range_bits)) as usize;
        if range < self.next || self.failure.is_some() || self.is_early(range) {
            return;
        }
        items.visit(self.hashes(range), &mut |_, key, item| self.add(key, item));
        self.early[range / 64] |= 1 << (range % 64);
        self.effort.copies += 1;
        self.push_out();
        if self.kept.len() > BLOCKS_KEPT_MAX {
            self.stall();
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
    use crate::Marks;

    /// A block each.
    const VALUE_BYTES: usize = 256 << 10;

    /// A partition of 1,024 ranges, each with an item that fills a block.
    struct Filled(Vec<u8>);

    impl Filled {
        const RANGE_BITS: u32 = 10;

        fn new() -> Filled {
            Filled(vec![b'v'; VALUE_BYTES])
        }

        /// A hash of each range.
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

    /// A disk in a time of its own.
    #[derive(Debug)]
    struct Disk {
        pieces: Receiver<Piece>,
        now: Duration,
        /// Time that somebody waited for it.
        waited: Duration,
        /// It takes a block in each such time.
        block_time: Duration,
        /// When it takes the next block.
        free_at: Duration,
        records: u32,
    }

    /// A disk, and whoever lets its time pass.
    #[derive(Debug, Clone)]
    struct Shared(Arc<Mutex<Disk>>);

    impl Shared {
        fn new(pieces: Receiver<Piece>, block_time: Duration) -> Shared {
            let zero = Duration::ZERO;
            Shared(Arc::new(Mutex::new(Disk { pieces, now: zero, waited: zero, block_time, free_at: zero, records: 0 })))
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

    /// Changes come faster than the disk writes, each so long after the one before, and there are many times as many as are kept.
    fn check_pace(change_time: Duration, changes_per_step: usize) {
        const BLOCK_TIME: Duration = Duration::from_millis(10);
        let items = Filled::new();
        let (output, pieces) = sync_channel(1);
        let mut copier = copier(&items, output, KEPT_BYTES_MIN);
        let disk = Shared::new(pieces, BLOCK_TIME);
        copier.clock = Box::new(disk.clone());
        // From the other end than the sweep.
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

    /// Sessions that let others run after a change that waited, and change nothing more in a turn that has waited for this long.
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

    /// Changes of long values while the disk takes nothing.
    #[test]
    fn a_disk_that_hangs_holds_a_core_for_a_bounded_time_and_memory() {
        let items = Filled::new();
        let (output, pieces) = sync_channel(1);
        let mut copier = copier(&items, output, KEPT_BYTES_MAX);
        // The first block that it takes is the last.
        let disk = Shared::new(pieces, Duration::MAX / 2);
        copier.clock = Box::new(disk.clone());
        disk.pass(Duration::ZERO);
        let mut changed = Filled::hashes();
        // A burst, while little is kept: its operations wait for a small part of the time.
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
