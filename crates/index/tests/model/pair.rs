//! An index and a `BTreeMap` that must always agree.

use std::collections::BTreeMap;
use std::ops::Bound;

use dunlin_index::{Gap, Index, Order, Range, Scan, pin};
use dunlin_net::random::Random;

use crate::work::{Keys, value};

type Item = (Vec<u8>, Vec<u8>);

pub struct Pair {
    pub index: Index,
    pub model: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Frequency of each operation, in a hundred; the rest are look-ups.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub inserts: u64,
    pub removals: u64,
    pub scans: u64,
    /// In ten thousand.
    pub range_removals: u64,
}

impl Pair {
    pub fn new() -> Pair {
        Pair { index: Index::new(1 << 32).expect("room"), model: BTreeMap::new() }
    }

    pub fn step(&mut self, random: &mut Random, keys: Keys, mix: Mix) {
        let chance = random.below(100);
        if chance < mix.inserts {
            match random.below(16) {
                0 => self.insert_burst(random, keys),
                _ => self.insert(keys.key(random), value(random)),
            }
        } else if chance < mix.inserts + mix.removals {
            self.remove(&keys.key(random));
        } else if chance < mix.inserts + mix.removals + mix.scans {
            self.scan(random, keys);
        } else if random.below(10_000) < mix.range_removals {
            self.remove_range(random, keys);
        } else {
            self.get_burst(random, keys);
        }
    }

    pub fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let guard = pin();
        let old = self.index.insert(&key, &value, &guard).expect("room");
        assert_eq!(old.map(|old| old.to_vec()), self.model.insert(key.clone(), value), "insert of {key:?}");
    }

    /// In the order of the burst: a duplicate key gets the later value.
    fn insert_burst(&mut self, random: &mut Random, keys: Keys) {
        let guard = pin();
        let items: Vec<Item> = (0..random.below(70)).map(|_| (keys.key(random), value(random))).collect();
        let burst: Vec<(&[u8], &[u8])> = items.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        let mut done = 0;
        self.index.insert_burst(&burst, &guard, |at, old| {
            let (key, value) = &items[at];
            let expected = self.model.insert(key.clone(), value.clone());
            assert_eq!(
                (at, old.expect("room").map(|old| old.to_vec())),
                (done, expected),
                "insert of {key:?} in a burst"
            );
            done += 1;
        });
        assert_eq!(done, items.len());
    }

    pub fn remove(&mut self, key: &[u8]) {
        let guard = pin();
        let old = self.index.remove(key, &guard);
        assert_eq!(old.map(|old| old.to_vec()), self.model.remove(key), "removal of {key:?}");
    }

    fn get_burst(&self, random: &mut Random, keys: Keys) {
        let guard = pin();
        let keys: Vec<Vec<u8>> = (0..random.below(40)).map(|_| keys.key(random)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut values = vec![None; keys.len()];
        self.index.get_burst(&keys, &guard, &mut values);
        for (key, value) in keys.iter().zip(values) {
            let expected = self.model.get(*key).map(Vec::as_slice);
            assert_eq!(value.as_deref(), expected, "look-up of {key:?} in a burst");
            assert_eq!(self.index.get(key, &guard).as_deref(), expected, "look-up of {key:?}");
        }
    }

    fn scan(&self, random: &mut Random, keys: Keys) {
        let guard = pin();
        // Some of more than descend together.
        let count = if random.below(100) == 0 { 40 } else { 1 + random.below(3) * random.below(3) };
        let bounds: Vec<(Vec<u8>, Vec<u8>)> = (0..count).map(|_| (keys.key(random), keys.key(random))).collect();
        let scans: Vec<Scan<'_>> = bounds.iter().map(|(low, high)| some_scan(random, low, high)).collect();
        let mut found: Vec<Vec<Item>> = vec![Vec::new(); scans.len()];
        let also: Vec<Vec<u8>> = (0..random.below(70)).map(|_| keys.key(random)).collect();
        let (also, mut values): (Vec<&[u8]>, _) = (also.iter().map(Vec::as_slice).collect(), vec![None; also.len()]);
        self.index
            .burst(&also, &scans, &guard, &mut values, |at, key, value| found[at].push((key.to_vec(), value.to_vec())));
        for (key, value) in also.iter().zip(values) {
            assert_eq!(value.as_deref(), self.model.get(*key).map(Vec::as_slice), "look-up of {key:?} beside scans");
        }
        for (scan, found) in scans.iter().zip(found) {
            let (mut alone, Scan { range, order, limit }) = (Vec::new(), *scan);
            self.index.scan(range, order, limit, &guard, |key, value| alone.push((key.to_vec(), value.to_vec())));
            assert_eq!(alone, found, "alone, {scan:?}");
            let expected = self.expected(scan.range);
            let expected: Vec<Item> = match scan.order {
                Order::Ascending => expected.take(scan.limit).collect(),
                Order::Descending => expected.rev().take(scan.limit).collect(),
            };
            assert_eq!(found, expected, "{scan:?}");
        }
        let range = scans[0].range;
        assert_eq!(self.index.count(range, &guard), self.expected(range).count(), "count of {range:?}");
    }

    /// By the model's own bounds, except for prefixes, which it does not support.
    fn expected(&self, range: Range<'_>) -> impl DoubleEndedIterator<Item = Item> {
        let low = match range.low {
            Gap::Before(key) => Bound::Included(key),
            Gap::After(key) => Bound::Excluded(key),
            Gap::AfterPrefix(_) => Bound::Unbounded,
        };
        let items = self.model.range::<[u8], _>((low, Bound::Unbounded));
        items.filter(move |(key, _)| range.contains(key)).map(|(key, value)| (key.clone(), value.clone()))
    }

    fn remove_range(&mut self, random: &mut Random, keys: Keys) {
        let (low, high) = (keys.key(random), keys.key(random));
        let range = Range { low: some_gap(random, &low), high: some_gap(random, &high) };
        let expected = self.expected(range).count();
        // First a part of it.
        let limit = 1 + random.below(40) as usize;
        let part: Vec<Vec<u8>> = self.expected(range).take(limit).map(|(key, _)| key).collect();
        let (removed, last) = self.index.remove_part(range, limit);
        assert_eq!(removed, part.len(), "removal of {limit} of {range:?}");
        assert_eq!(last.as_ref(), part.last().filter(|_| removed == limit), "the last of {limit} of {range:?}");
        part.iter().for_each(|key| _ = self.model.remove(key));
        let rest = Range { low: last.as_ref().map_or(range.low, |last| Gap::After(last)), ..range };
        assert_eq!(self.index.remove_range(rest), expected - removed, "removal of {rest:?}");
        self.model.retain(|key, _| !range.contains(key));
    }

    pub fn compare_all(&self) {
        let guard = pin();
        assert_eq!(self.index.verify(&guard), Ok(self.model.len()));
        let mut expected = self.model.iter();
        let visited = self.index.scan(Range::ALL, Order::Ascending, usize::MAX, &guard, |key, value| {
            assert_eq!(Some((key, value)), expected.next().map(|(key, value)| (key.as_slice(), value.as_slice())));
        });
        let mut expected = self.model.iter().rev();
        let backwards = self.index.scan(Range::ALL, Order::Descending, usize::MAX, &guard, |key, value| {
            assert_eq!(Some((key, value)), expected.next().map(|(key, value)| (key.as_slice(), value.as_slice())));
        });
        assert_eq!((visited, backwards), (self.model.len(), self.model.len()));
        let statistics = self.index.statistics(&guard);
        assert_eq!(statistics.items, self.model.len());
    }
}

fn some_scan<'k>(random: &mut Random, low: &'k [u8], high: &'k [u8]) -> Scan<'k> {
    let range = match random.below(8) {
        0 => Range::ALL,
        1 => Range::prefix(&low[..low.len() / 2]),
        2 => Range::from(low),
        3 => Range::between(low, high),
        // Also with inverted bounds.
        _ => Range { low: some_gap(random, low), high: some_gap(random, high) },
    };
    let order = if random.below(2) == 0 { Order::Ascending } else { Order::Descending };
    Scan { range, order, limit: random.below(200) as usize }
}

fn some_gap<'k>(random: &mut Random, key: &'k [u8]) -> Gap<'k> {
    match random.below(3) {
        0 => Gap::Before(key),
        1 => Gap::After(key),
        _ => Gap::AfterPrefix(key),
    }
}
