//! `stats cachedump`: a list of items, for people and for memcdump.

use std::io::Write as _;
use std::ops::Range;

use dunlin_store::{UnixSeconds, Visit};

/// Maximum bytes of lines in a list of all cores: memcached lists 2 MiB of each slab class.
pub(super) const LIST_BYTES_MAX: usize = 2 << 20;
/// Maximum number of ranges of hashes that a list covers, of about a bucket each.
pub(super) const RANGES_MAX: u64 = 1 << 16;
/// Ranges that a core visits before its other tasks have their turn: less than a millisecond.
pub(super) const PART_RANGES_MAX: u64 = 512;

/// One core's part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpPart {
    /// A line for each item.
    pub lines: Vec<u8>,
    /// What comes after them.
    pub rest: DumpRest,
}

/// What a core has beyond the lines of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DumpRest {
    /// Nothing.
    #[default]
    Nothing,
    /// Ranges that were not requested.
    Ranges,
    /// Items for which there was no room.
    Items,
}

/// Writes a line for each item in some ranges of hashes: key, length of the value, expiry as a Unix time, or 0 for
/// none. Omits keys that would break the line. At most `items_max` items, unless that is zero, and `bytes_max` bytes
/// plus one line.
pub(super) fn part(
    store: &impl Visit,
    asked: Range<u64>,
    items_max: u32,
    bytes_max: usize,
    now: UnixSeconds,
) -> DumpPart {
    let (mut lines, mut items, mut is_cut) = (Vec::new(), 0u32, false);
    let is_full = |lines: &Vec<u8>, items| lines.len() >= bytes_max || (items_max > 0 && items >= items_max);
    let bits = store.range_bits();
    let width = u64::MAX.checked_shr(bits).unwrap_or(0);
    let ranges = 1u64.checked_shl(bits).unwrap_or(u64::MAX);
    let end = asked.end.min(ranges);
    for range in asked.start..end {
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
            // Writing to a Vec cannot fail.
            let _ = write!(lines, " [{} b; {} s]\r\n", item.value.len(), item.expires.unwrap_or(0));
        });
        if is_cut {
            break;
        }
    }
    let rest = match (is_cut, end < ranges) {
        (true, _) => DumpRest::Items,
        (false, true) => DumpRest::Ranges,
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

    /// A large partition that counts the visited ranges.
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
    fn a_part_visits_the_ranges_that_are_asked_for() {
        let large = Large { visits: Cell::new(0), next: Cell::new(0) };
        for first in (0..RANGES_MAX).step_by(PART_RANGES_MAX as usize) {
            let told = part(&large, first..first + PART_RANGES_MAX, 0, LIST_BYTES_MAX, 0);
            assert_eq!((told.lines.len(), told.rest), (0, DumpRest::Ranges));
            assert_eq!(large.visits.get(), first + PART_RANGES_MAX);
        }
    }
}
