//! `stats cachedump`: a list of items for people and for memcdump.

use std::io::Write as _;

use dunlin_store::{UnixSeconds, Visit};

/// Bytes of lines that a list of all cores has at most: memcached tells 2 MiB of each slab class.
pub(super) const LIST_BYTES_MAX: usize = 2 << 20;
/// Longest line, in bytes: the longest key, and what stands around it.
pub(super) const LINE_BYTES_MAX: usize = 320;
/// Turns that make a list at most. So a core goes through 65,536 ranges of hashes, of about a bucket each.
pub(super) const TURNS_MAX: u32 = 128;
/// Ranges that a core goes through before its other tasks have their turn: less than a millisecond.
const TURN_RANGES: u64 = 512;

/// What one core tells of a list in one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpPart {
    /// A line for each item.
    pub lines: Vec<u8>,
    /// What comes behind them.
    pub rest: DumpRest,
}

/// What a core has behind the lines that it told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DumpRest {
    /// Nothing.
    #[default]
    Nothing,
    /// What the next turn tells.
    NextTurn,
    /// Items that had no room.
    Items,
}

/// A line for each item in the ranges of this turn: key, length of the value, expiry as a Unix time or 0 for none. Keys that would break the line
/// are left out. At most `items_max` items, unless that is zero, and `bytes_max` bytes and one line.
pub(super) fn part(store: &impl Visit, turn: u32, items_max: u32, bytes_max: usize, now: UnixSeconds) -> DumpPart {
    let (mut lines, mut items, mut is_cut) = (Vec::new(), 0u32, false);
    let is_full = |lines: &Vec<u8>, items| lines.len() >= bytes_max || (items_max > 0 && items >= items_max);
    let bits = store.range_bits();
    let width = u64::MAX.checked_shr(bits).unwrap_or(0);
    let ranges = 1u64.checked_shl(bits).unwrap_or(u64::MAX);
    let first = u64::from(turn) * TURN_RANGES;
    let end = (first + TURN_RANGES).min(ranges);
    for range in first..end {
        let start = range.checked_shl(u64::BITS - bits).unwrap_or(0);
        store.visit(start..=start | width, &mut |_, key, item| {
            // The store's own clock may be late.
            let is_there = item.expires.is_none_or(|at| at > now);
            let is_line = !key.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0);
            if !is_there || !is_line {
                return;
            }
            if is_full(&lines, items) {
                is_cut = true;
                return;
            }
            items += 1;
            lines.extend_from_slice(b"ITEM ");
            lines.extend_from_slice(key);
            // A Vec takes everything.
            let _ = write!(lines, " [{} b; {} s]\r\n", item.value.len(), item.expires.unwrap_or(0));
        });
        if is_cut {
            break;
        }
    }
    let rest = match (is_cut, end < ranges) {
        (true, _) => DumpRest::Items,
        (false, true) => DumpRest::NextTurn,
        (false, false) => DumpRest::Nothing,
    };
    DumpPart { lines, rest }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::RangeInclusive;

    use dunlin_store::{Item, KeyHash};

    use super::*;

    /// A large partition that counts what is visited.
    struct Large {
        visits: Cell<u64>,
        next: Cell<u64>,
    }

    impl Visit for Large {
        fn range_bits(&self) -> u32 {
            30
        }

        fn visit(&self, hashes: RangeInclusive<u64>, _each: &mut dyn FnMut(KeyHash, &[u8], &Item<'_>)) {
            assert_eq!(*hashes.start(), self.next.get(), "no range is left out or visited twice");
            self.next.set(hashes.end().wrapping_add(1));
            self.visits.set(self.visits.get() + 1);
        }
    }

    #[test]
    fn a_turn_visits_a_bounded_part_and_the_next_one_goes_on_behind_it() {
        let large = Large { visits: Cell::new(0), next: Cell::new(0) };
        for turn in 0..TURNS_MAX {
            let told = part(&large, turn, 0, LIST_BYTES_MAX, 0);
            assert_eq!((told.lines.len(), told.rest), (0, DumpRest::NextTurn));
            assert_eq!(large.visits.get(), u64::from(turn + 1) * TURN_RANGES);
        }
    }
}
