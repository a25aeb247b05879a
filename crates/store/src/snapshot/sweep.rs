//! Visiting a partition while it changes, so that what is seen is the state of one instant.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use super::error::SaveError;
use super::record::{Block, Record};
use crate::item::{Item, UnixSeconds};
use crate::store::Store;

/// Most units that are visited between two bursts.
pub const STEP_UNITS: usize = 256;
/// About how many bytes are copied between two bursts. The last unit of a step may exceed it.
pub const STEP_BYTES: usize = 32 << 10;
/// Most blocks that a core keeps when the disk is slow, of changes that could not wait.
pub const BLOCKS_KEPT_MAX: usize = 16;
/// Longest time that one operation waits for the disk. Then the snapshot is given up.
pub const STALL_MAX: Duration = Duration::from_millis(500);
/// How often a waiting operation asks.
const STALL_STEP: Duration = Duration::from_micros(100);

/// A partition that can be visited while it changes.
///
/// Its items are in numbered units, a bucket for instance and what hangs from it. While there is a sweep ([`Swept::sweep`] holds one):
///
/// - the number of units stays, and each key belongs to one of them, whatever becomes of the index;
/// - before anything is changed in a unit the partition calls [`keep`]: before an item is stored, extended, counted, touched, marked, deleted or
///   evicted. Not before it is read, nor before an item is dropped that has expired;
/// - when everything is deleted at once it calls [`spoil`].
pub trait Swept: Store {
    /// How many units there are.
    fn units(&self) -> usize;

    /// Asks the memory for a unit that is visited soon.
    fn prefetch_unit(&self, _unit: usize) {}

    /// Visits all items of a unit. It may leave out those that have expired.
    fn visit(&self, unit: usize, visit: impl FnMut(&[u8], Item<'_>));

    /// Where the partition keeps its sweep.
    fn sweep(&mut self) -> &mut Option<Box<Sweep>>;
}

/// Copies a unit that is about to change, if a sweep is under way that has not come to it. Ask for [`Swept::sweep`] to be `Some` before, in
/// line.
#[cold]
pub fn keep(partition: &mut impl Swept, unit: usize) {
    if !partition.sweep().as_ref().is_some_and(|sweep| sweep.awaits(unit)) {
        return;
    }
    let Some(mut sweep) = partition.sweep().take() else { return };
    partition.visit(unit, |key, item| sweep.add(key, &item));
    sweep.copied_early(unit);
    *partition.sweep() = Some(sweep);
}

/// Gives up the sweep that is under way, if any: everything is about to be deleted without being visited.
pub fn spoil(partition: &mut impl Swept) {
    if let Some(sweep) = partition.sweep() {
        sweep.fail(SaveError::Flushed);
    }
}

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
    /// Units that were copied because they were about to change.
    pub copies: u64,
    /// Longest time that one operation waited for the disk.
    pub stall: Duration,
}

/// How far a snapshot of one partition is. Kept by the partition ([`Swept::sweep`]).
#[derive(Debug)]
pub struct Sweep {
    units: usize,
    /// All units before this one were visited.
    next: usize,
    /// A bit for each unit: it was copied before its turn.
    early: Vec<u64>,
    taken_at: UnixSeconds,
    block: Block,
    /// Full blocks that the queue has no place for.
    kept: VecDeque<Block>,
    output: SyncSender<Piece>,
    failure: Option<SaveError>,
    pub(super) effort: Effort,
}

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to visit.
    More,
    /// The queue is full.
    Full,
    /// Every unit was visited, and all blocks are in the queue.
    Complete,
    /// The sweep was given up.
    Failed,
}

impl Sweep {
    /// Of a partition as it is now. Items that expired by `taken_at` are left out.
    pub(super) fn new(units: usize, taken_at: UnixSeconds, output: SyncSender<Piece>) -> Sweep {
        Sweep {
            units,
            next: 0,
            early: vec![0; units.div_ceil(64)],
            taken_at,
            block: Block::default(),
            kept: VecDeque::new(),
            output,
            failure: None,
            effort: Effort::default(),
        }
    }

    /// How many units the partition had when the sweep began: as many as it has for [`Swept::visit`] until it is over.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Whether a unit must be copied before it changes.
    pub fn awaits(&self, unit: usize) -> bool {
        unit >= self.next && unit < self.units && self.failure.is_none() && !self.is_early(unit)
    }

    fn is_early(&self, unit: usize) -> bool {
        self.early[unit / 64] & 1 << (unit % 64) != 0
    }

    fn copied_early(&mut self, unit: usize) {
        self.early[unit / 64] |= 1 << (unit % 64);
        self.effort.copies += 1;
        self.push_out();
        if self.kept.len() > BLOCKS_KEPT_MAX {
            self.stall();
        }
    }

    /// Gives up; nothing is copied any more.
    pub(super) fn fail(&mut self, why: SaveError) {
        self.failure.get_or_insert(why);
        self.kept.clear();
        self.block = Block::default();
    }

    pub(super) fn take_failure(&mut self) -> Option<SaveError> {
        self.failure.take()
    }

    fn add(&mut self, key: &[u8], item: &Item<'_>) {
        if self.failure.is_some() || item.expires.is_some_and(|at| at <= self.taken_at) {
            return;
        }
        self.block.push(&Record::of(key, item));
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

    /// Visits the next units.
    pub(super) fn step(&mut self, partition: &impl Swept) -> Step {
        if !self.push_out() {
            return Step::Full;
        }
        if self.failure.is_some() {
            return Step::Failed;
        }
        let end = self.units.min(self.next + STEP_UNITS);
        (self.next..end).filter(|unit| !self.is_early(*unit)).for_each(|unit| partition.prefetch_unit(unit));
        let mut bytes = 0;
        while self.next < end && bytes < STEP_BYTES && self.kept.is_empty() {
            let unit = self.next;
            self.next += 1;
            if !self.is_early(unit) {
                partition.visit(unit, |key, item| {
                    bytes += key.len() + item.value.len();
                    self.add(key, &item);
                });
            }
        }
        if self.next == self.units {
            self.close_block();
        }
        match self.push_out() {
            _ if self.failure.is_some() => Step::Failed,
            false => Step::Full,
            true if self.next == self.units => Step::Complete,
            true => Step::More,
        }
    }
}
