//! Lowest rank first.

use std::collections::{BTreeMap, VecDeque};

use super::Waiting;
use super::ageing::{Ageing, Turns};

/// Stale arrivals that are kept, beyond as many as there are operations.
const GONE_MIN: usize = 64;

/// Operations by rank, equal ranks in order of arrival.
#[derive(Debug)]
pub(super) struct Exact<T> {
    waiting: BTreeMap<Place, Waiting<T>>,
    /// Number of the next operation.
    next: u64,
    aged: Option<Aged>,
}

/// Rank, then number.
type Place = (u64, u64);

/// Places in order of arrival, each with the number of operations served when it came. Places that have left the queue
/// are removed when they are the majority.
#[derive(Debug)]
struct Aged {
    turns: Turns,
    arrivals: VecDeque<(Place, u64)>,
}

impl<T> Exact<T> {
    pub fn new(ageing: Option<Ageing>) -> Self {
        let aged = ageing.map(|ageing| Aged { turns: Turns::new(ageing), arrivals: VecDeque::new() });
        Exact { waiting: BTreeMap::new(), next: 0, aged }
    }

    pub fn push(&mut self, waiting: Waiting<T>, served: u64) {
        let place = (waiting.tag.rank, self.next);
        self.next += 1;
        self.waiting.insert(place, waiting);
        let Some(aged) = &mut self.aged else { return };
        aged.arrivals.push_back((place, served));
        if aged.arrivals.len() > 2 * self.waiting.len() + GONE_MIN {
            aged.arrivals.retain(|(place, _)| self.waiting.contains_key(place));
            super::shrink(&mut aged.arrivals);
        }
    }

    pub fn pop(&mut self, served: u64) -> Option<Waiting<T>> {
        let old = self.aged.as_mut().and_then(|aged| aged.next(&self.waiting, served));
        match old {
            Some(place) => self.waiting.remove(&place),
            None => self.waiting.pop_first().map(|(_, waiting)| waiting),
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Aged {
    /// The oldest operation, if it is old and this is its turn.
    fn next<T>(&mut self, waiting: &BTreeMap<Place, Waiting<T>>, served: u64) -> Option<Place> {
        while let Some((place, since)) = self.arrivals.front().copied() {
            if !waiting.contains_key(&place) {
                self.arrivals.pop_front();
                super::shrink(&mut self.arrivals);
                continue;
            }
            return self.turns.is_for_oldest(since, served).then_some(place);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PLACES_KEPT, Tag};
    use super::*;

    #[test]
    fn arrivals_give_their_memory_back() {
        let mut queue = Exact::new(Some(Ageing::default()));
        let waiting = |rank| Waiting { tag: Tag { rank, cost: 1, client: 1 }, item: () };
        // The first one stays, so the ones behind it do, too.
        queue.push(waiting(9), 0);
        (0..100_000).for_each(|_| queue.push(waiting(1), 0));
        (0..100_000).for_each(|_| _ = queue.pop(0));
        queue.push(waiting(1), 0);
        let places = queue.aged.as_ref().unwrap().arrivals.capacity();
        assert!(places <= 2 * PLACES_KEPT, "{places} places for {} operations", queue.len());
    }
}
