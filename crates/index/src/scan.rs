//! Scans, counts and removals of ranges.

use crate::guard::Guard;
use crate::index::Index;
use crate::range::{Gap, Order, Range};

/// The arguments of a scan: the range, its order, and the maximum number of items.
#[derive(Debug, Clone, Copy)]
pub struct Scan<'k> {
    /// The keys.
    pub range: Range<'k>,
    /// The order of the visits.
    pub order: Order,
    /// Maximum number of items.
    pub limit: usize,
}

impl<'k> Scan<'k> {
    /// The gap where the scan starts.
    pub(crate) fn start(&self) -> Gap<'k> {
        match self.order {
            Order::Ascending => self.range.low,
            Order::Descending => self.range.high,
        }
    }

    /// The gap where it ends.
    pub(crate) fn end(&self) -> Gap<'k> {
        match self.order {
            Order::Ascending => self.range.high,
            Order::Descending => self.range.low,
        }
    }
}

/// Items that a range removal removes under one guard, and bytes of their keys after which no further one is added.
const REMOVED_PER_PAGE: usize = 256;
const REMOVED_KEY_BYTES: usize = 64 << 10;
/// The same of a count.
const COUNTED_PER_PAGE: usize = 4096;
const COUNTED_KEY_BYTES: usize = 256 << 10;

/// The result of one page of work on a range, under one guard.
#[derive(Debug)]
pub(crate) struct Part {
    /// Items that were visited, or removed.
    pub(crate) items: usize,
    /// Bytes of the keys that were visited, and 8 more for each.
    pub(crate) bytes: usize,
    /// The last key that was visited, if the range may have more.
    pub(crate) last: Option<Vec<u8>>,
}

/// The bytes that a key counts in a [`Part`].
fn key_bytes(key: &[u8]) -> usize {
    8 + key.len()
}

impl Index {
    /// Visits up to `limit` items of a range in order, and returns how many it visited.
    pub fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        limit: usize,
        guard: &Guard,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> usize {
        self.cursor_for(Scan { range, order, limit }, usize::MAX, guard).visit(limit, visit)
    }

    /// Counts the items of a range.
    pub fn count(&self, range: Range<'_>, guard: &Guard) -> usize {
        self.scan(range, Order::Ascending, usize::MAX, guard, |_, _| {})
    }

    /// Removes the items of a range, page by page, and returns how many it removed. Concurrently inserted items may
    /// stay.
    pub fn remove_range(&self, range: Range<'_>) -> usize {
        self.remove_part(range, usize::MAX).0
    }

    /// Removes up to `limit` items of a range, the smallest first, and returns how many it removed. If the range may
    /// have more, it also returns the last key that it looked at: the rest of the range is after it. Then it has
    /// removed `limit` items.
    ///
    /// # Panics
    /// If `limit` is 0: there would be no last key.
    pub fn remove_part(&self, range: Range<'_>, limit: usize) -> (usize, Option<Vec<u8>>) {
        assert!(limit > 0, "a part of a range has at least one item");
        let (mut removed, mut low) = (0, range.low);
        let mut last;
        loop {
            let page = self.remove_page(Range { low, ..range }, limit - removed);
            removed += page.items;
            // The visited items are gone, or were inserted again meanwhile and stay. Others may have removed some, so
            // the limit is not always reached yet.
            let Some(key) = page.last else { return (removed, None) };
            if removed == limit {
                return (removed, Some(key));
            }
            last = key;
            low = Gap::After(&last);
        }
    }

    /// Removes the first items of a range, up to `limit`, and up to some bytes of keys.
    pub(crate) fn remove_page(&self, range: Range<'_>, limit: usize) -> Part {
        let guard = crate::pin();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        let mut cursor = self.cursor(range, Order::Ascending, &guard);
        let is_end = loop {
            if keys.len() == REMOVED_PER_PAGE.min(limit) || bytes >= REMOVED_KEY_BYTES {
                break false;
            }
            let Some((key, _)) = cursor.advance() else { break true };
            bytes += key_bytes(key);
            keys.push(key.to_vec());
        };
        let items = keys.iter().filter(|key| self.remove(key, &guard).is_some()).count();
        Part { items, bytes, last: if is_end { None } else { Some(keys.pop().unwrap_or_default()) } }
    }

    /// Counts the first items of a range, up to `limit`, and up to some bytes of keys. Only the last key is copied.
    pub(crate) fn count_page(&self, range: Range<'_>, order: Order, limit: usize) -> Part {
        let guard = crate::pin();
        let mut part = Part { items: 0, bytes: 0, last: None };
        let (limit, mut len) = (COUNTED_PER_PAGE.min(limit), 0);
        let mut cursor = self.cursor(range, order, &guard);
        while part.items < limit && part.bytes < COUNTED_KEY_BYTES {
            let bytes = &mut part.bytes;
            let visited = cursor.visit_inline(limit - part.items, &mut |key, _| {
                *bytes += key_bytes(key);
                len = key.len();
            });
            part.items += visited;
            if part.items == limit {
                break;
            }
            let Some((key, _)) = cursor.advance() else { return part };
            (part.items, part.bytes, len) = (part.items + 1, part.bytes + key_bytes(key), key.len());
        }
        part.last = Some(cursor.key()[..len].to_vec());
        part
    }
}
