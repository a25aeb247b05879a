//! Ranges of keys: two gaps between keys.

use std::cmp::Ordering;

/// A gap in the order of all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap<'k> {
    /// Before a key, whether or not there is such an item.
    Before(&'k [u8]),
    /// Just after a key.
    After(&'k [u8]),
    /// After all keys with this prefix. All keys have the empty prefix.
    AfterPrefix(&'k [u8]),
}

/// A [`Gap`] without its key.
pub(crate) type GapKind = fn(&[u8]) -> Gap<'_>;

impl<'k> Gap<'k> {
    /// Whether a key comes before this gap.
    pub fn is_behind(self, key: &[u8]) -> bool {
        match self {
            Gap::Before(bound) => key < bound,
            Gap::After(bound) => key <= bound,
            Gap::AfterPrefix(prefix) => key < prefix || key.starts_with(prefix),
        }
    }

    /// Compares the places of two gaps. Gaps without any possible key between them are equal.
    pub(crate) fn compare(self, other: Gap<'_>) -> Ordering {
        match (self.first_behind(), other.first_behind()) {
            (Some((key, last)), Some((other, other_last))) => {
                key.iter().chain(last.as_ref()).cmp(other.iter().chain(other_last.as_ref()))
            }
            // Nothing is behind the last gap.
            (first, other) => first.is_none().cmp(&other.is_none()),
        }
    }

    /// The smallest possible key behind the gap, in two parts: some bytes, and perhaps one more. `None` if no key is
    /// behind it.
    pub fn first_behind(self) -> Option<(&'k [u8], Option<u8>)> {
        match self {
            Gap::Before(key) => Some((key, None)),
            Gap::After(key) => Some((key, Some(0))),
            Gap::AfterPrefix(prefix) => {
                let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
                Some((&prefix[..last], Some(prefix[last] + 1)))
            }
        }
    }

    pub(crate) fn key(self) -> &'k [u8] {
        match self {
            Gap::Before(key) | Gap::After(key) | Gap::AfterPrefix(key) => key,
        }
    }

    pub(crate) fn kind(self) -> GapKind {
        match self {
            Gap::Before(_) => |key| Gap::Before(key),
            Gap::After(_) => |key| Gap::After(key),
            Gap::AfterPrefix(_) => |key| Gap::AfterPrefix(key),
        }
    }

    /// The same gap with another key.
    pub(crate) fn with_key<'l>(self, key: &'l [u8]) -> Gap<'l> {
        match self {
            Gap::Before(_) => Gap::Before(key),
            Gap::After(_) => Gap::After(key),
            Gap::AfterPrefix(_) => Gap::AfterPrefix(key),
        }
    }

    /// Whether no key is beyond it, if a scan in this order ends here.
    pub(crate) fn ends_nothing(self, order: Order) -> bool {
        match order {
            Order::Ascending => self == Gap::AfterPrefix(&[]),
            Order::Descending => self == Gap::Before(&[]),
        }
    }
}

/// The keys between two gaps. If `low` is after `high`, there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range<'k> {
    /// Where it begins.
    pub low: Gap<'k>,
    /// Where it ends.
    pub high: Gap<'k>,
}

impl<'k> Range<'k> {
    /// All keys.
    pub const ALL: Range<'static> = Range { low: Gap::Before(&[]), high: Gap::AfterPrefix(&[]) };

    /// A key and all after it.
    pub fn from(key: &'k [u8]) -> Range<'k> {
        Range { low: Gap::Before(key), ..Range::ALL }
    }

    /// All keys with this prefix.
    pub fn prefix(prefix: &'k [u8]) -> Range<'k> {
        Range { low: Gap::Before(prefix), high: Gap::AfterPrefix(prefix) }
    }

    /// From `first` up to `end`, exclusive.
    pub fn between(first: &'k [u8], end: &'k [u8]) -> Range<'k> {
        Range { low: Gap::Before(first), high: Gap::Before(end) }
    }

    /// Whether `low` is after `high`, which makes the range empty, and is often a mistake.
    pub fn is_reversed(self) -> bool {
        self.low.compare(self.high).is_gt()
    }

    /// Whether a key is in the range.
    pub fn contains(self, key: &[u8]) -> bool {
        !self.low.is_behind(key) && self.high.is_behind(key)
    }
}

/// The order in which a scan visits keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ascending, from the smallest.
    Ascending,
    /// Descending, from the greatest.
    Descending,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All short keys of a few bytes, and one more byte than the gaps have.
    fn keys(bytes: &[u8], len_max: usize) -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        let mut begun = 0;
        for _ in 0..len_max {
            let longest = keys.len();
            for at in begun..longest {
                let key = keys[at].clone();
                keys.extend(bytes.iter().map(|byte| [&key[..], &[*byte]].concat()));
            }
            begun = longest;
        }
        keys
    }

    #[test]
    fn a_range_is_reversed_if_a_key_is_between_its_bounds_and_none_within() {
        let (short, long) = (keys(&[0, 1, 255], 2), keys(&[0, 1, 2, 255], 4));
        let gaps: Vec<Gap<'_>> =
            short.iter().flat_map(|key| [Gap::Before(key), Gap::After(key), Gap::AfterPrefix(key)]).collect();
        for &low in &gaps {
            for &high in &gaps {
                let is_between = |key: &Vec<u8>| low.is_behind(key) && !high.is_behind(key);
                let is_reversed = Range { low, high }.is_reversed();
                assert_eq!(is_reversed, long.iter().any(is_between), "{low:?} to {high:?}");
                assert!(!is_reversed || !long.iter().any(|key| Range { low, high }.contains(key)));
            }
        }
    }
}
