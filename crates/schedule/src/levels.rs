//! Choosing the level of an opset in a multi-level queue: intervals of cost, and ratios of rates.

use thiserror::Error;

/// Maximum number of levels of a queue.
pub const LEVELS_MAX: usize = 16;

/// The requester's view of a multi-level queue (thesis, section 3.2.3.2): K levels with strictly decreasing weights,
/// and an interval of costs for each; each interval is wider than the one before by the range factor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    weights: Vec<u32>,
    first: u64,
    range: u64,
    overflow: Overflow,
}

/// The level for a bottleneck whose cost is in no interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The nearest level: the last one if the cost is too high.
    #[default]
    Clamped,
    /// The fastest level. Algorithm 1 of the thesis does this as printed, so that the largest requests overtake all
    /// others.
    Literal,
}

/// Why levels are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LevelsError {
    /// There are none, or too many.
    #[error("{0} levels: choose 1 to {LEVELS_MAX}")]
    Count(usize),
    /// A weight is 0, or not below the previous one.
    #[error("level {0} weighs nothing or no less than the one before: give weights that decrease, such as 4,3,2,1")]
    Weight(usize),
    /// The first interval begins at 0, or the range factor is 0.
    #[error("intervals of cost begin at {first} and widen by {range}: both must be at least 1")]
    Interval {
        /// The beginning of the first interval.
        first: u64,
        /// The range factor.
        range: u64,
    },
}

impl Default for Levels {
    /// The levels of the thesis: K = 4, weights 4, 3, 2, 1, intervals from 1 on, range factor 3.
    fn default() -> Self {
        Levels { weights: vec![4, 3, 2, 1], first: 1, range: 3, overflow: Overflow::Clamped }
    }
}

impl Levels {
    /// Levels with these weights; the first interval holds costs from `first` up to `first * range`, exclusive.
    ///
    /// # Errors
    /// [`LevelsError`].
    pub fn new(weights: Vec<u32>, first: u64, range: u64, overflow: Overflow) -> Result<Self, LevelsError> {
        if weights.is_empty() || weights.len() > LEVELS_MAX {
            return Err(LevelsError::Count(weights.len()));
        }
        let is_wrong = |level: &usize| weights[*level] == 0 || *level > 0 && weights[*level] >= weights[level - 1];
        if let Some(level) = (0..weights.len()).find(is_wrong) {
            return Err(LevelsError::Weight(level + 1));
        }
        if first == 0 || range == 0 {
            return Err(LevelsError::Interval { first, range });
        }
        Ok(Levels { weights, first, range, overflow })
    }

    /// `count` levels with the weights `count`, ..., 2, 1, intervals from 1 on.
    ///
    /// # Errors
    /// [`LevelsError`].
    pub fn uniform(count: usize, range: u64) -> Result<Self, LevelsError> {
        Levels::new((1..=count as u32).rev().collect(), 1, range, Overflow::Clamped)
    }

    /// The same levels with another rule for costs in no interval.
    pub fn with_overflow(self, overflow: Overflow) -> Self {
        Levels { overflow, ..self }
    }

    /// The same levels for costs multiplied by `factor`.
    pub(crate) fn scaled(&self, factor: u32) -> Self {
        Levels { first: self.first.saturating_mul(u64::from(factor)), ..self.clone() }
    }

    /// Weights, from the fastest level on.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// The level whose interval contains `cost`; the fastest is 0.
    pub fn of_cost(&self, cost: u64) -> usize {
        let last = self.weights.len() - 1;
        let mut begin = self.first;
        for level in 0..=last {
            // If the end exceeds all integers, the interval has no end.
            let end = begin.checked_mul(self.range);
            if begin <= cost && end.is_none_or(|end| cost < end) {
                return level;
            }
            begin = end.unwrap_or(u64::MAX);
        }
        match self.overflow {
            Overflow::Clamped if cost >= self.first => last,
            Overflow::Clamped | Overflow::Literal => 0,
        }
    }

    /// Among the levels not faster than `fastest`, the one whose rate has most nearly the same ratio to that of
    /// `fastest` as `cost` has to `bottleneck`. Of two equally near levels, the faster one. `cost` is at most
    /// `bottleneck`.
    pub(crate) fn of_ratio(&self, cost: u64, bottleneck: u64, fastest: usize) -> usize {
        let rate = u128::from(self.weights[fastest]);
        // |cost / bottleneck - weight / rate|, times the denominators, which are the same for all levels: comparisons are exact.
        let error = |level: &usize| {
            (u128::from(cost) * rate).abs_diff(u128::from(self.weights[*level]) * u128::from(bottleneck))
        };
        (fastest..self.weights.len()).min_by_key(error).unwrap_or(fastest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_widen_by_the_range() {
        let levels = Levels::default();
        let of = |cost| levels.of_cost(cost);
        assert_eq!([1, 2, 3, 8, 9, 26, 27, 80].map(of), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!([81, 2000, u64::MAX].map(of), [3; 3], "clamped");
        let literal = levels.clone().with_overflow(Overflow::Literal);
        assert_eq!([80, 81, u64::MAX].map(|cost| literal.of_cost(cost)), [3, 0, 0], "as Algorithm 1 is printed");
    }

    #[test]
    fn the_optimum_of_the_thesis_is_degenerate() {
        // R = 1 makes every interval empty.
        let levels = Levels::uniform(4, 1).unwrap();
        assert_eq!([1, 2, 2000].map(|cost| levels.of_cost(cost)), [3; 3]);
        let literal = levels.with_overflow(Overflow::Literal);
        assert_eq!([1, 2, 2000].map(|cost| literal.of_cost(cost)), [0; 3]);
    }

    #[test]
    fn costs_below_the_first_interval_are_fast() {
        for overflow in [Overflow::Clamped, Overflow::Literal] {
            let levels = Levels::new(vec![4, 3, 2, 1], 5, 3, overflow).unwrap();
            assert_eq!([1, 4, 5, 14, 15].map(|cost| levels.of_cost(cost)), [0, 0, 0, 0, 1]);
        }
    }

    #[test]
    fn scaled_levels_take_scaled_costs() {
        let levels = Levels::default();
        let scaled = levels.scaled(8);
        assert!((1..100).all(|cost| scaled.of_cost(8 * cost) == levels.of_cost(cost)));
        assert!((1..=50).all(|cost| scaled.of_ratio(8 * cost, 400, 1) == levels.of_ratio(cost, 50, 1)));
        assert_eq!(scaled.of_cost(7), 0, "less than the first interval");
    }

    #[test]
    fn intervals_end_with_the_integers() {
        let levels = Levels::new(vec![3, 2, 1], u64::MAX / 2, 2, Overflow::Clamped).unwrap();
        assert_eq!([u64::MAX / 2, u64::MAX - 2, u64::MAX - 1, u64::MAX].map(|cost| levels.of_cost(cost)), [0, 0, 1, 1]);
        assert_eq!(levels.of_ratio(u64::MAX, u64::MAX, 0), 0);
        assert_eq!(levels.of_ratio(1, u64::MAX, 0), 2);
    }

    #[test]
    fn levels_that_make_no_sense_are_refused() {
        let new = |weights: &[u32], first, range| Levels::new(weights.to_vec(), first, range, Overflow::Clamped).err();
        assert_eq!(new(&[], 1, 3), Some(LevelsError::Count(0)));
        assert_eq!(new(&[1; LEVELS_MAX + 1], 1, 3), Some(LevelsError::Count(LEVELS_MAX + 1)));
        assert_eq!(new(&[2, 2], 1, 3), Some(LevelsError::Weight(2)));
        assert_eq!(new(&[2, 0], 1, 3), Some(LevelsError::Weight(2)));
        assert_eq!(new(&[1], 0, 3), Some(LevelsError::Interval { first: 0, range: 3 }));
        assert_eq!(new(&[1], 1, 0), Some(LevelsError::Interval { first: 1, range: 0 }));
    }
}
