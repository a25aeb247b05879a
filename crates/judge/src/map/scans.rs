//! Checks of a scan's bounds, its limit and the order of its items.

use std::cmp::Ordering;
use std::ops::Bound;

use super::history::{Direction, Scan, Text};

/// A key and its value.
pub type Item = (Vec<u8>, Vec<u8>);
/// The lower and the upper bound of keys.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl Scan {
    /// Returns why no map at all could give these items as the result of the scan, if that is so.
    pub(super) fn fault(&self, items: &[Item]) -> Option<String> {
        if let Some(limit) = self.limit.filter(|limit| items.len() > *limit) {
            return Some(format!("{} items, with a limit of {limit}", items.len()));
        }
        if let Some((key, _)) = items.iter().find(|(key, _)| !contains(self.range(), key)) {
            return Some(format!("{} is out of bounds", Text(key)));
        }
        items.windows(2).find_map(|pair| {
            let (one, next) = (&pair[0].0, &pair[1].0);
            match self.direction.compare(one, next) {
                Ordering::Less => None,
                Ordering::Equal => Some(format!("{} is there twice", Text(one))),
                Ordering::Greater => Some(format!("{} is in front of {}", Text(one), Text(next))),
            }
        })
    }

    /// Returns the range of keys that the scan covered: if it has as many items as its limit, the keys up to its last
    /// item, else all within its bounds. `None` if no key can be in the range.
    pub(super) fn covered<'a>(&'a self, items: &'a [Item]) -> Option<Range<'a>> {
        let (from, to) = self.range();
        let is_cut = self.limit == Some(items.len());
        let range = match (is_cut, items.last(), self.direction) {
            (false, ..) => (from, to),
            (true, None, _) => return None,
            (true, Some((last, _)), Direction::Forward) => (from, Bound::Included(&last[..])),
            (true, Some((last, _)), Direction::Backward) => (Bound::Included(&last[..]), to),
        };
        (!is_empty(range)).then_some(range)
    }

    /// Returns the value that the scan showed for a key.
    pub(super) fn shown<'a>(&self, items: &'a [Item], key: &[u8]) -> Option<&'a [u8]> {
        let place = items.binary_search_by(|(other, _)| self.direction.compare(other, key)).ok()?;
        Some(&items[place].1)
    }

    fn range(&self) -> Range<'_> {
        (self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }
}

impl Direction {
    /// Compares two keys by which comes first.
    fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            Direction::Forward => one.cmp(other),
            Direction::Backward => other.cmp(one),
        }
    }
}

fn contains((from, to): Range<'_>, key: &[u8]) -> bool {
    let is_above = match from {
        Bound::Included(bound) => key >= bound,
        Bound::Excluded(bound) => key > bound,
        Bound::Unbounded => true,
    };
    is_above
        && match to {
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
            Bound::Unbounded => true,
        }
}

fn is_empty(range: Range<'_>) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}
