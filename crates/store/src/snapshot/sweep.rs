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
/// Most blocks that a core keeps when the disk is slow, of changes that could not wait.
pub const BLOCKS_KEPT_MAX: usize = 16;
/// Longest time that one operation waits for the disk. Then the snapshot is given up.
pub const STALL_MAX: Duration = Duration::from_millis(500);
/// How often a waiting operation asks.
const STALL_STEP: Duration = Duration::from_micros(100);
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
            self.kept.push_back(std::mem::take(&mut self.block));
        }
    }

    /// Moves full blocks to the queue as long as it has place; says whether it had for all.
    fn push_out(&mut self) -> bool {
        while let Some(block) = self.kept.pop_front() {
            match self.output.try_send(Piece::Block(block)) {
                Ok(()) => {}
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

    /// Waits in the middle of an operation until the disk has taken a block.
    fn stall(&mut self) {
        let begun = Instant::now();
        while !self.push_out() && self.kept.len() > BLOCKS_KEPT_MAX {
            if begun.elapsed() >= STALL_MAX {
                self.fail(SaveError::TooSlow);
            } else {
                std::thread::sleep(STALL_STEP);
            }
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
