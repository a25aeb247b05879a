//! Maps a hash to its home line in the index, also while the index grows.
//!
//! Lines are in hash order: home `i` of `n` has the hashes from `i * 2^64 / n` on. So in an index with more lines,
//! every item is at the same place or behind it, and a growing index can be rewritten in place from its end to its
//! start. The frontier marks the progress: homes below it use the old number of lines, all others the new one.

/// The number of lines, now and after growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Lines before growing, or while not growing.
    pub lines: usize,
    /// Lines after growing; the same while not growing.
    pub lines_next: usize,
    /// Homes below it are still placed by the old number of lines.
    pub frontier: usize,
}

#[inline(always)]
fn scale(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

impl Geometry {
    pub(crate) fn new(lines: usize) -> Geometry {
        Geometry { lines, lines_next: lines, frontier: lines }
    }

    pub(crate) fn is_growing(&self) -> bool {
        self.lines != self.lines_next
    }

    #[inline(always)]
    pub(crate) fn home(&self, hash: u64) -> usize {
        let home = scale(hash, self.lines);
        if home < self.frontier { home } else { scale(hash, self.lines_next) }
    }

    /// Begins to grow.
    pub(crate) fn grow(&mut self, lines_next: usize) {
        assert!(!self.is_growing() && lines_next > self.lines, "an index grows once at a time");
        self.lines_next = lines_next;
    }

    /// Moves the frontier down by one home, which now uses the new number of lines. At 0, growing has ended.
    pub(crate) fn advance(&mut self) {
        self.frontier -= 1;
        if self.frontier == 0 {
            *self = Geometry::new(self.lines_next);
        }
    }

    /// Returns the homes that hashes of one old home may have with the new number of lines.
    pub(crate) fn homes_next(&self, old_home: usize) -> std::ops::RangeInclusive<usize> {
        let scaled = |home: usize| (home as u128 * self.lines_next as u128 / self.lines as u128) as usize;
        scaled(old_home)..=scaled(old_home + 1).min(self.lines_next - 1)
    }

    /// Returns the homes of a range of hashes: those placed by the old number of lines, then the others.
    pub(crate) fn homes(&self, first: u64, last: u64) -> [std::ops::Range<usize>; 2] {
        // The first hash beyond the frontier.
        let split = ((self.frontier as u128) << 64).div_ceil(self.lines as u128);
        let old = if u128::from(first) < split {
            let last = last.min((split - 1) as u64);
            scale(first, self.lines)..scale(last, self.lines) + 1
        } else {
            0..0
        };
        let new = if u128::from(last) >= split {
            let first = u128::from(first).max(split) as u64;
            scale(first, self.lines_next)..scale(last, self.lines_next) + 1
        } else {
            0..0
        };
        [old, new]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn homes_move_up_in_order_and_ranges_have_them(lines in 1..5000usize, more in 1..5000usize, done in 0..5000usize, mut hashes in prop::collection::vec(any::<u64>(), 3)) {
            let old = Geometry::new(lines);
            let mut geometry = old;
            geometry.grow(lines + more);
            for _ in 0..done % lines {
                geometry.advance();
            }
            prop_assert!(geometry.is_growing());
            hashes.sort_unstable();
            let hash = hashes[1];
            let home = geometry.home(hash);
            prop_assert!(home >= old.home(hash) && home < lines + more);
            prop_assert!(home == old.home(hash) || geometry.homes_next(old.home(hash)).contains(&home));
            let [in_old, in_new] = geometry.homes(hashes[0], hashes[2]);
            let range = if old.home(hash) < geometry.frontier { in_old } else { in_new };
            prop_assert!(range.contains(&home));
            for _ in 0..geometry.frontier {
                geometry.advance();
            }
            prop_assert_eq!(geometry, Geometry::new(lines + more));
            prop_assert_eq!(geometry.homes(0, u64::MAX), [0..lines + more, 0..0]);
        }
    }
}
