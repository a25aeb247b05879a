//! The ordered maps that an index is compared with, from keys of `KEY` bytes to numbers.

use std::collections::BTreeMap;

/// Operations of a map on one item.
pub(super) trait Map<const KEY: usize> {
    fn get(&self, key: &[u8; KEY]) -> Option<u64>;
    fn put(&mut self, key: [u8; KEY], value: u64);
    /// The sum of the values of up to `items` keys, from `from` on, and how many there were.
    fn sum(&self, from: &[u8; KEY], items: usize) -> (u64, usize);
}

/// Adds up the first values of an iterator.
#[inline(always)]
fn sum(values: impl Iterator<Item = u64>, items: usize) -> (u64, usize) {
    values.take(items).fold((0, 0), |(sum, count), value| (sum.wrapping_add(value), count + 1))
}

impl<const KEY: usize> Map<KEY> for BTreeMap<[u8; KEY], u64> {
    #[inline(always)]
    fn get(&self, key: &[u8; KEY]) -> Option<u64> {
        BTreeMap::get(self, key).copied()
    }

    #[inline(always)]
    fn put(&mut self, key: [u8; KEY], value: u64) {
        self.insert(key, value);
    }

    #[inline(always)]
    fn sum(&self, from: &[u8; KEY], items: usize) -> (u64, usize) {
        sum(self.range(*from..).map(|(_, value)| *value), items)
    }
}

/// `scc::TreeIndex`, a B+ tree.
pub(super) struct Scc<const KEY: usize>(pub scc::TreeIndex<[u8; KEY], u64>);

impl<const KEY: usize> Map<KEY> for &Scc<KEY> {
    #[inline(always)]
    fn get(&self, key: &[u8; KEY]) -> Option<u64> {
        self.0.peek_with(key, |_, value| *value)
    }

    #[inline(always)]
    fn put(&mut self, key: [u8; KEY], value: u64) {
        self.0.upsert_sync(key, value);
    }

    #[inline(always)]
    fn sum(&self, from: &[u8; KEY], items: usize) -> (u64, usize) {
        let guard = scc::Guard::new();
        sum(self.0.range(*from.., &guard).map(|(_, value)| *value), items)
    }
}

#[cfg(feature = "rivals")]
pub(super) use rivals::{Congee, Masstree, SkipMap};

#[cfg(feature = "rivals")]
mod rivals {
    use super::super::SUMMED;
    use super::super::keys::NUMBER_BYTES;
    use super::*;

    /// `crossbeam_skiplist::SkipMap`.
    pub struct SkipMap<const KEY: usize>(pub crossbeam_skiplist::SkipMap<[u8; KEY], u64>);

    impl<const KEY: usize> Map<KEY> for &SkipMap<KEY> {
        #[inline(always)]
        fn get(&self, key: &[u8; KEY]) -> Option<u64> {
            self.0.get(key).map(|entry| *entry.value())
        }

        #[inline(always)]
        fn put(&mut self, key: [u8; KEY], value: u64) {
            self.0.insert(key, value);
        }

        #[inline(always)]
        fn sum(&self, from: &[u8; KEY], items: usize) -> (u64, usize) {
            sum(self.0.range(*from..).map(|entry| *entry.value()), items)
        }
    }

    /// `masstree`, with values in its nodes.
    pub struct Masstree(pub masstree::MassTree15Inline<u64>);

    impl<const KEY: usize> Map<KEY> for &Masstree {
        #[inline(always)]
        fn get(&self, key: &[u8; KEY]) -> Option<u64> {
            self.0.get_with_guard(key, &self.0.guard())
        }

        #[inline(always)]
        fn put(&mut self, key: [u8; KEY], value: u64) {
            self.0.insert_with_guard(&key, value, &self.0.guard());
        }

        #[inline(always)]
        fn sum(&self, from: &[u8; KEY], items: usize) -> (u64, usize) {
            let (mut sum, mut count) = (0u64, 0);
            let (low, high) = (masstree::RangeBound::Included(from), masstree::RangeBound::Unbounded);
            let add = |value: u64| {
                (sum, count) = (sum.wrapping_add(value), count + 1);
                count < items
            };
            self.0.scan_values(low, high, add, &self.0.guard());
            (sum, count)
        }
    }

    /// `congee`, an adaptive radix tree. Its keys have 8 bytes.
    pub struct Congee(pub congee::U64Congee<usize>);

    impl Map<NUMBER_BYTES> for &Congee {
        #[inline(always)]
        fn get(&self, key: &[u8; NUMBER_BYTES]) -> Option<u64> {
            self.0.get(u64::from_be_bytes(*key), &congee::epoch::pin()).map(|value| value as u64)
        }

        #[inline(always)]
        fn put(&mut self, key: [u8; NUMBER_BYTES], value: u64) {
            let inserted = self.0.insert(u64::from_be_bytes(key), value as usize, &congee::epoch::pin());
            // A value that is not stored is missed by a later look-up, which ends the measurement.
            drop(inserted);
        }

        #[inline(always)]
        fn sum(&self, from: &[u8; NUMBER_BYTES], items: usize) -> (u64, usize) {
            let mut found = [([0; NUMBER_BYTES], 0); SUMMED as usize];
            let found = &mut found[..items];
            let count = self.0.range(u64::from_be_bytes(*from), u64::MAX, found, &congee::epoch::pin());
            sum(found[..count].iter().map(|(_, value)| *value as u64), items)
        }
    }
}
