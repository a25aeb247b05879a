//! Multi-level queues: a FIFO queue for each level.

use std::collections::VecDeque;

use super::ageing::{Ageing, Turns};
use super::round_robin::RoundRobin;
use super::thresholds::Thresholds;
use super::{Tag, Waiting};

/// At most 32 levels, one bit each in `occupied`.
#[derive(Debug)]
pub(super) struct MultiLevel<T> {
    levels: Vec<VecDeque<Entry<T>>>,
    /// Bit `i` is set if level `i` has an operation.
    occupied: u32,
    len: usize,
    /// Number of the next operation.
    next: u64,
    /// Maps ranks to levels; without it the rank is the level.
    thresholds: Option<Thresholds>,
    service: Service,
}

#[derive(Debug)]
struct Entry<T> {
    waiting: Waiting<T>,
    /// Operations that had been served when it came.
    since: u64,
    number: u64,
}

#[derive(Debug)]
enum Service {
    Weighted(RoundRobin),
    /// Serves a level only while those before it are empty.
    Strict(Option<Turns>),
}

impl<T> MultiLevel<T> {
    pub fn fifo() -> Self {
        Self::new(1, None, Service::Strict(None))
    }

    pub fn weighted(weights: &[u32]) -> Self {
        Self::new(weights.len(), None, Service::Weighted(RoundRobin::new(weights)))
    }

    pub fn learnt(levels: usize, ageing: Option<Ageing>) -> Self {
        Self::new(levels, Some(Thresholds::new(levels)), Service::Strict(ageing.map(Turns::new)))
    }

    fn new(levels: usize, thresholds: Option<Thresholds>, service: Service) -> Self {
        let levels = std::iter::repeat_with(VecDeque::new).take(levels).collect();
        MultiLevel { levels, occupied: 0, len: 0, next: 0, thresholds, service }
    }

    pub fn push(&mut self, waiting: Waiting<T>, served: u64) {
        let Tag { rank, cost, .. } = waiting.tag;
        let level = match &mut self.thresholds {
            Some(thresholds) => thresholds.level(rank, cost),
            None => usize::try_from(rank).unwrap_or(usize::MAX).min(self.levels.len() - 1),
        };
        self.levels[level].push_back(Entry { waiting, since: served, number: self.next });
        self.next += 1;
        self.occupied |= 1 << level;
        self.len += 1;
    }

    /// Takes an operation that stands first in its level, if this is so of one.
    pub fn take_first_if(&mut self, mut is_so: impl FnMut(&T) -> bool) -> Option<Waiting<T>> {
        let mut lines = self.levels.iter();
        let level = lines.position(|line| line.front().is_some_and(|entry| is_so(&entry.waiting.item)))?;
        self.take(level)
    }

    pub fn pop(&mut self, served: u64) -> Option<Waiting<T>> {
        if self.occupied == 0 {
            return None;
        }
        let level = match &mut self.service {
            Service::Weighted(turns) => {
                let levels = &self.levels;
                turns.next(|level| levels[level].front().map(|entry| entry.waiting.tag.cost))
            }
            Service::Strict(None) => self.occupied.trailing_zeros() as usize,
            Service::Strict(Some(turns)) => {
                let heads = self.levels.iter().enumerate();
                let ages =
                    heads.filter_map(|(level, queue)| queue.front().map(|head| (head.number, head.since, level)));
                match ages.min() {
                    Some((_, since, level)) if turns.is_for_oldest(since, served) => level,
                    _ => self.occupied.trailing_zeros() as usize,
                }
            }
        };
        self.take(level)
    }

    fn take(&mut self, level: usize) -> Option<Waiting<T>> {
        let line = &mut self.levels[level];
        let entry = line.pop_front()?;
        super::shrink(line);
        if line.is_empty() {
            self.occupied &= !(1 << level);
        }
        self.len -= 1;
        Some(entry.waiting)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.levels.iter().map(VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PLACES_KEPT;
    use super::*;

    #[test]
    fn levels_give_their_memory_back() {
        const LEVELS: usize = 8;
        const WAITING: usize = 20_000;
        let mut queue = MultiLevel::weighted(&[1; LEVELS]);
        let tag = |level| Tag { rank: level as u64, cost: 1, client: 1 };
        for level in 0..LEVELS {
            (0..WAITING).for_each(|_| queue.push(Waiting { tag: tag(level), item: () }, 0));
            // A few stay.
            (10..WAITING).for_each(|_| assert!(queue.pop(0).is_some()));
        }
        let places: usize = queue.levels.iter().map(VecDeque::capacity).sum();
        assert!(places <= LEVELS * 2 * PLACES_KEPT, "{places} places for {} operations", queue.len());
    }
}
