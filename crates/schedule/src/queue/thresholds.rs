//! Thresholds between levels, learnt from the operations that arrive.

/// Sizes below this have their own bucket.
const EXACT: u64 = 16;
/// Buckets of each power of two above that: the three bits below the highest one.
const PER_OCTAVE_BITS: u32 = 3;
const BUCKETS: usize = EXACT as usize + ((u64::BITS - EXACT.ilog2()) << PER_OCTAVE_BITS) as usize;
/// Operations after which all work is halved: only the last few windows count. Only waiting operations are counted, so
/// a server that is rarely busy forgets slowly.
const WINDOW: u32 = 1 << 13;
/// What one operation adds to the work, at most. Were it more, a single one could move all others to one level, for as
/// many windows as it takes to halve it.
const COST_MAX: u32 = WINDOW / 64;
/// Thresholds are first recomputed after this many operations, then at doubling intervals up to [`UPDATE_MAX`].
const UPDATE_FIRST: u32 = 16;
const UPDATE_MAX: u32 = 1024;

/// Maps the size of a request to a level, such that all levels have the same amount of work.
///
/// Work is the cost of operations as given by the server ([`super::Tag::cost`]), so a request counts as often as it has
/// operations here.
#[derive(Debug)]
pub(super) struct Thresholds {
    levels: u32,
    /// Allocated for the first operation.
    learnt: Option<Box<Learnt>>,
}

#[derive(Debug)]
struct Learnt {
    work: [u64; BUCKETS],
    level: [u8; BUCKETS],
    /// Operations since work was last halved.
    seen: u32,
    until_update: u32,
    update_every: u32,
}

impl Thresholds {
    pub fn new(levels: usize) -> Self {
        Thresholds { levels: levels as u32, learnt: None }
    }

    /// The level for an operation of this cost in a request of this size. The size is learnt.
    pub fn level(&mut self, size: u64, cost: u32) -> usize {
        let learnt = self.learnt.get_or_insert_with(|| {
            Box::new(Learnt {
                work: [0; BUCKETS],
                level: [0; BUCKETS],
                seen: 0,
                until_update: UPDATE_FIRST,
                update_every: UPDATE_FIRST,
            })
        });
        learnt.count(bucket(size), cost, self.levels);
        usize::from(learnt.level[bucket(size)])
    }
}

impl Learnt {
    fn count(&mut self, bucket: usize, cost: u32, levels: u32) {
        self.work[bucket] += u64::from(cost.clamp(1, COST_MAX));
        self.seen += 1;
        self.until_update -= 1;
        if self.until_update == 0 {
            self.update(levels);
            self.update_every = (2 * self.update_every).min(UPDATE_MAX);
            self.until_update = self.update_every;
        }
    }

    /// A bucket belongs to the level in which the middle of its work lies.
    fn update(&mut self, levels: u32) {
        if self.seen >= WINDOW {
            self.work.iter_mut().for_each(|work| *work /= 2);
            self.seen = 0;
        }
        let total: u64 = self.work.iter().sum();
        let mut before = 0;
        for (work, level) in self.work.iter().zip(&mut self.level) {
            let middle = 2 * before + work;
            *level = (middle * u64::from(levels) / (2 * total).max(1)).min(u64::from(levels) - 1) as u8;
            before += work;
        }
    }
}

fn bucket(size: u64) -> usize {
    if size < EXACT {
        return size as usize;
    }
    let octave = size.ilog2();
    let within = (size >> (octave - PER_OCTAVE_BITS)) & ((1 << PER_OCTAVE_BITS) - 1);
    EXACT as usize + ((octave - EXACT.ilog2()) << PER_OCTAVE_BITS) as usize + within as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn buckets_follow_the_order_of_sizes() {
        let sizes = (0..5000).chain((0..=51).map(|shift| 5000 << shift)).chain([u64::MAX - 1, u64::MAX]);
        let buckets: Vec<usize> = sizes.map(bucket).collect();
        assert!(buckets.is_sorted());
        assert_eq!((buckets[0], bucket(u64::MAX)), (0, BUCKETS - 1));
        assert!(
            (16..100_000u64).all(|size| bucket(size) != bucket(size + size / 7 + 1)),
            "buckets are at most an eighth wide"
        );
    }

    /// Trains thresholds, then returns how the work of each size is spread over the levels.
    fn levels_of(work: &[u64]) -> Vec<usize> {
        let mut thresholds = Thresholds::new(4);
        for _ in 0..20_000 / work.len() {
            work.iter().for_each(|size| _ = thresholds.level(*size, 1));
        }
        work.iter().map(|size| thresholds.level(*size, 1)).collect()
    }

    #[test]
    fn each_level_has_as_much_work() {
        assert_eq!(levels_of(&[1, 30, 200, 2000]), [0, 1, 2, 3]);
        assert_eq!(levels_of(&[1, 2, 3, 4, 5, 6, 7, 8]), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_single_size_has_a_single_level() {
        assert_eq!(levels_of(&[50; 10]).iter().min(), levels_of(&[50; 10]).iter().max());
    }

    #[test]
    fn what_changed_is_learnt_again() {
        let mut thresholds = Thresholds::new(2);
        (0..8 * u64::from(WINDOW)).for_each(|turn| _ = thresholds.level(1 + turn % 2, 1));
        assert_eq!([thresholds.level(1, 1), thresholds.level(2, 1)], [0, 1]);
        // Older work weighs less than that of the last two windows.
        (0..2 * u64::from(WINDOW)).for_each(|turn| _ = thresholds.level(2 + turn % 2, 1));
        assert_eq!([thresholds.level(2, 1), thresholds.level(3, 1)], [0, 1]);
    }

    /// Requests become ten times as large: within 20,000 operations they are spread over most levels again.
    #[test]
    fn a_shift_is_learnt_soon() {
        let mut thresholds = Thresholds::new(8);
        (0..1_000_000u64).for_each(|turn| _ = thresholds.level(1 + turn % 8, 1));
        (0..20_000u64).for_each(|turn| _ = thresholds.level(10 * (1 + turn % 8), 1));
        let levels: BTreeSet<usize> = (1..=8).map(|size| thresholds.level(10 * size, 1)).collect();
        assert!(levels.len() >= 6, "{levels:?}");
    }

    /// A size is placed by its work, not by the number of its operations.
    #[test]
    fn dear_operations_are_more_work() {
        let mut thresholds = Thresholds::new(2);
        (0..20_000u64).for_each(|turn| _ = thresholds.level(1 + turn % 4, if turn % 4 == 3 { 9 } else { 1 }));
        assert_eq!([1, 2, 3, 4].map(|size| thresholds.level(size, 1)), [0, 0, 0, 1]);
        (0..20_000u64).for_each(|turn| _ = thresholds.level(1 + turn % 4, if turn % 4 == 0 { 9 } else { 1 }));
        assert_eq!([1, 2, 3, 4].map(|size| thresholds.level(size, 1)), [0, 1, 1, 1]);
    }

    /// Nor do a few in each window.
    #[test]
    fn one_operation_does_not_make_all_others_one_level_whatever_it_costs() {
        let mut thresholds = Thresholds::new(8);
        for turn in 0..200_000u64 {
            thresholds.level(1 + turn % 64, 1);
            if turn % 4_000 == 0 {
                thresholds.level(1000, u32::MAX);
            }
        }
        let levels: BTreeSet<usize> = (1..=64).map(|size| thresholds.level(size, 1)).collect();
        assert!(levels.len() >= 7, "{levels:?}");
    }

    #[test]
    fn levels_are_within_bounds_whatever_comes() {
        let mut thresholds = Thresholds::new(3);
        let sizes = (0..100_000u64).map(|turn| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (turn % 64));
        assert!(sizes.chain([0, u64::MAX]).all(|size| thresholds.level(size, u32::MAX) < 3));
    }
}
