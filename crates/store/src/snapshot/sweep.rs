//! Copying a partition while it changes, so that what is copied is the state of one instant.

use std::any::Any;
use std::collections::VecDeque;
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
/// Longest time that operations wait for the disk between two steps, all together.
pub const STALL_MAX: Duration = Duration::from_millis(1);
/// Most bytes of blocks that a core keeps when the disk is slow, before the snapshot is given up.
pub const KEPT_BYTES_MAX: usize = 64 << 20;
/// How often a waiting operation asks.
const STALL_STEP: Duration = Duration::from_micros(100);
/// How often operations ask between two steps, all together. Sleeps are counted and not timed: a thread that the system wakes late has waited once.
const STALL_STEPS_MAX: u32 = (STALL_MAX.as_micros() / STALL_STEP.as_micros()) as u32;
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
    /// How often operations may still ask the disk before the next step.
    stall_steps: u32,
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
    /// Of a partition as it is now, which its core stood still for `pause` to see. Items that expired by `taken_at` are left out.
    pub fn new(items: &dyn Visit, snapshot: usize, taken_at: Moment, output: SyncSender<Piece>, pause: Duration) -> Copier {
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
            stall_steps: STALL_STEPS_MAX,
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
                Ok(()) => self.kept_bytes -= bytes,
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
        let begun = Instant::now();
        while self.stall_steps > 0 && !self.push_out() && self.kept.len() > BLOCKS_KEPT_MAX {
            self.stall_steps -= 1;
            std::thread::sleep(STALL_STEP);
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.fail(SaveError::TooSlow);
        }
        self.effort.stall = self.effort.stall.max(begun.elapsed());
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
        self.stall_steps = STALL_STEPS_MAX;
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
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::{Model, Put, Store as _};

    /// A block each.
    const VALUE_BYTES: usize = 256 << 10;

    /// Changes of long values while the disk takes nothing.
    #[test]
    fn a_disk_that_hangs_holds_a_core_for_a_bounded_time_and_memory() {
        let mut store = Model::new();
        let keys: Vec<String> = (0..400).map(|number| format!("key{number}")).collect();
        for key in &keys {
            let key = store.key(key.as_bytes()).unwrap();
            store.put(&key, &vec![b'v'; VALUE_BYTES], Put::default()).unwrap();
        }
        let (output, _pieces) = sync_channel(1);
        let mut copier = Copier::new(&store, 1, Moment::default(), output, Duration::ZERO);
        let mut changed = keys.iter().map(|key| store.key(key.as_bytes()).unwrap().hash());
        // A burst: all of its operations together wait as long as one may.
        for hash in changed.by_ref().take(BLOCKS_KEPT_MAX + 16) {
            copier.before_change(&store, hash);
        }
        assert_eq!((copier.stall_steps, copier.failure.is_none()), (0, true));
        assert!(copier.kept.len() > BLOCKS_KEPT_MAX, "what cannot wait is kept");
        assert!(matches!(copier.step(&store), Step::Full));
        assert_eq!(copier.stall_steps, STALL_STEPS_MAX);
        // Up to a limit of memory.
        for hash in changed {
            copier.before_change(&store, hash);
            assert!(copier.kept_bytes <= KEPT_BYTES_MAX, "{} bytes", copier.kept_bytes);
        }
        assert!(matches!(copier.failure, Some(SaveError::TooSlow)), "{:?}", copier.failure);
        assert!(copier.kept.is_empty());
    }

    #[test]
    fn a_disk_that_is_slow_gets_all_of_it_in_the_end() {
        let mut store = Model::new();
        for number in 0..100 {
            let key = format!("key{number}");
            let key = store.key(key.as_bytes()).unwrap();
            store.put(&key, &vec![b'v'; VALUE_BYTES], Put::default()).unwrap();
        }
        let (output, pieces) = sync_channel(1);
        let mut copier = Copier::new(&store, 1, Moment::default(), output, Duration::ZERO);
        for number in 0..100 {
            let key = format!("key{number}");
            copier.before_change(&store, store.key(key.as_bytes()).unwrap().hash());
        }
        let (mut records, mut is_complete) = (0, false);
        while !is_complete {
            is_complete = matches!(copier.step(&store), Step::Complete);
            while let Ok(Piece::Block(block)) = pieces.try_recv() {
                records += block.records();
            }
        }
        assert_eq!((records, copier.kept_bytes), (100, 0));
    }
}
