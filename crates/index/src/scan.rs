//! Scans: a cursor that copies one leaf at a time.
//!
//! A cursor has a frame for each layer it is in: the copy of a leaf, its position there, and the bounds of this leaf's
//! slices. It steps to the next leaf through the leaf's holder if that is unchanged, and otherwise starts again at the
//! key where the leaf ends. So each key is seen as of one moment of the scan, and no key is skipped.

use crate::guard::Guard;
use crate::index::{Index, Reached, reach, retry};
use crate::node::{Conflict, Entry, LeafCopy, Link};
use crate::range::{Gap, Order, Range};
use crate::slice::{Slice, shortest};
use crate::value::{Repr, Value};

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
    /// The key where the scan starts.
    pub(crate) fn start(&self) -> &'k [u8] {
        match self.order {
            Order::Ascending => self.range.low.key(),
            Order::Descending => self.range.high.key(),
        }
    }
}

/// A position in a scan. It keeps everything it has seen alive: for scans of millions of items take a new guard and a
/// new cursor, after the last key, every few thousand items.
#[derive(Debug)]
pub struct Cursor<'a> {
    index: &'a Index,
    guard: &'a Guard,
    order: Order,
    /// Where the scan ends; `None` if it ends at the last key of the index.
    end: Option<(EndKind, Vec<u8>)>,
    frames: Vec<Frame<'a>>,
    /// The key visited last: 8 bytes for the layer of each frame but the last, then the slice of its entry and the
    /// suffix.
    key: Vec<u8>,
    /// Length of the key visited last.
    len: usize,
}

/// Items that a range removal removes under one guard, and bytes of their keys after which no further one is added.
const REMOVED_PER_PAGE: usize = 256;
const REMOVED_KEY_BYTES: usize = 64 << 10;

/// A [`Gap`] without its key.
type EndKind = fn(&[u8]) -> Gap<'_>;

/// Bounds of the slices in a node: from the first on, below the second. `None`: unbounded within the layer.
#[derive(Debug, Clone, Copy, Default)]
struct Fences {
    low: Option<u64>,
    high: Option<u64>,
}

impl Fences {
    fn narrowed(self, (low, high): (Option<u64>, Option<u64>)) -> Fences {
        Fences { low: low.or(self.low), high: high.or(self.high) }
    }
}

/// A layer on the path to the cursor.
#[derive(Debug)]
struct Frame<'a> {
    leaf: LeafCopy<'a>,
    /// Entries before the cursor.
    at: usize,
    /// Where the leaf was found, and the bounds of that holder.
    link: Link<'a>,
    outer: Fences,
    fences: Fences,
}

impl Index {
    /// Visits up to `limit` items of a range in order, and returns how many it visited.
    pub fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        limit: usize,
        guard: &Guard,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> usize {
        let mut cursor = self.cursor(range, order, guard);
        let mut visited = 0;
        while visited < limit {
            visited += cursor.visit_inline(limit - visited, &mut visit);
            if visited < limit {
                let Some((key, value)) = cursor.advance() else { break };
                visit(key, &value);
                visited += 1;
            }
        }
        visited
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
    pub fn remove_part(&self, range: Range<'_>, limit: usize) -> (usize, Option<Vec<u8>>) {
        let (mut removed, mut low) = (0, range.low);
        let mut page: Vec<Vec<u8>> = Vec::new();
        let mut last;
        loop {
            let guard = crate::pin();
            page.clear();
            let (rest, most) = (Range { low, ..range }, REMOVED_PER_PAGE.min(limit - removed));
            let (mut cursor, mut bytes) = (self.cursor(rest, Order::Ascending, &guard), 0);
            let is_end = loop {
                if page.len() == most || bytes >= REMOVED_KEY_BYTES {
                    break false;
                }
                let Some((key, _)) = cursor.advance() else { break true };
                bytes += key.len();
                page.push(key.to_vec());
            };
            removed += page.iter().filter(|key| self.remove(key, &guard).is_some()).count();
            if is_end {
                return (removed, None);
            }
            // The visited items are gone, or were inserted again meanwhile and stay. Others may have removed some, so
            // the limit is not always reached yet.
            last = page.pop().unwrap_or_default();
            if removed == limit {
                return (removed, Some(last));
            }
            low = Gap::After(&last);
        }
    }

    /// Opens a cursor before the first item of a range.
    pub fn cursor<'a>(&'a self, range: Range<'_>, order: Order, guard: &'a Guard) -> Cursor<'a> {
        let (start, end) = match order {
            Order::Ascending => (range.low, range.high),
            Order::Descending => (range.high, range.low),
        };
        let end = (!end.ends_nothing(order)).then(|| (kind(end), end.key().to_vec()));
        let (frames, key) = (Vec::with_capacity(4), Vec::with_capacity(64));
        let mut cursor = Cursor { index: self, guard, order, end, frames, key, len: 0 };
        cursor.seek(start);
        cursor
    }
}

pub(crate) fn kind(gap: Gap<'_>) -> EndKind {
    match gap {
        Gap::Before(_) => |key| Gap::Before(key),
        Gap::After(_) => |key| Gap::After(key),
        Gap::AfterPrefix(_) => |key| Gap::AfterPrefix(key),
    }
}

impl<'a> Cursor<'a> {
    /// Returns the next item and steps over it; `None` at the end of the range.
    #[inline]
    pub fn advance(&mut self) -> Option<(&[u8], Value<'a>)> {
        let value = loop {
            let path = 8 * self.frames.len().checked_sub(1)?;
            let frame = self.frames.last_mut()?;
            let Some(at) = frame.next(self.order) else {
                self.next_leaf();
                continue;
            };
            frame.pass(at, self.order);
            let Slice { bits, class } = frame.leaf.slice(at);
            if self.key.len() < path + 8 {
                self.key.resize(path + 8, 0);
            }
            self.key[path..path + 8].copy_from_slice(&bits.to_be_bytes());
            match frame.leaf.entry(at) {
                Entry::Value(value) => {
                    self.len = path + usize::from(class);
                    break value;
                }
                Entry::Long(block) => {
                    self.key.truncate(path + 8);
                    self.key.extend_from_slice(block.suffix());
                    self.len = self.key.len();
                    break Value(Repr::Block(block));
                }
                Entry::Layer => {
                    self.key.truncate(path + 8);
                    self.enter_layer(at);
                }
            }
        };
        if self.is_beyond_end() {
            self.frames.clear();
            return None;
        }
        Some((&self.key[..self.len], value))
    }

    #[inline]
    fn is_beyond_end(&self) -> bool {
        is_beyond(&self.end, &self.key[..self.len], self.order)
    }

    /// Visits up to `limit` entries of the last frame, as long as they are inline: the common case in scans of short
    /// items.
    #[inline(always)]
    fn visit_inline(&mut self, limit: usize, visit: &mut impl FnMut(&[u8], &[u8])) -> usize {
        let Some(path) = self.frames.len().checked_sub(1).map(|layers| 8 * layers) else { return 0 };
        if self.key.len() < path + 8 {
            self.key.resize(path + 8, 0);
        }
        let Cursor { order, end, frames, key, .. } = self;
        let Some(frame) = frames.last_mut() else { return 0 };
        let mut visited = 0;
        while visited < limit
            && let Some(at) = frame.next(*order)
            && let Some((slice, value, len)) = frame.leaf.inline(at)
        {
            key[path..path + 8].copy_from_slice(&slice.bits.to_be_bytes());
            let key = &key[..path + usize::from(slice.class)];
            if is_beyond(end, key, *order) {
                // The cursor will come to this entry again, and end.
                break;
            }
            frame.pass(at, *order);
            visit(key, &value[..len]);
            visited += 1;
        }
        visited
    }

    /// Moves the cursor into a gap, starting from the root.
    fn seek(&mut self, gap: Gap<'_>) {
        retry(|| {
            self.frames.clear();
            self.key.clear();
            self.descend(self.index.anchor.link(self.guard), gap)
        });
    }

    /// Moves the cursor into a gap of a layer and of the layers below it.
    fn descend(&mut self, mut link: Link<'a>, mut gap: Gap<'_>) -> Result<(), Conflict> {
        loop {
            let rest = gap.key();
            let bits = slice_beside(gap, self.order);
            let mut frame = Frame::reach(link, bits, self.order)?;
            let layer = frame.place(gap);
            let deeper = layer.map(|at| {
                // This frame's cursor passes the layer, whichever way it goes.
                frame.pass(at, self.order);
                Link { holder: frame.leaf.node, control: frame.leaf.control, at }
            });
            self.frames.push(frame);
            let Some(deeper) = deeper else { return Ok(()) };
            self.key.extend_from_slice(&rest[..8]);
            (link, gap) = (deeper, gap.with_key(&rest[8..]));
        }
    }

    /// Goes to the first item, in scan order, of the layer that entry `at` of the last frame refers to. `key` ends with
    /// its slice.
    fn enter_layer(&mut self, at: usize) {
        let Some(frame) = self.frames.last() else { return };
        let link = Link { holder: frame.leaf.node, control: frame.leaf.control, at };
        let (first, whole): (Gap<'_>, EndKind) = match self.order {
            Order::Ascending => (Gap::Before(&[]), |key| Gap::After(key)),
            Order::Descending => (Gap::AfterPrefix(&[]), |key| Gap::AfterPrefix(key)),
        };
        if self.descend(link, first).is_err() {
            // The leaf has changed since it was copied. All longer keys with this prefix are still to come.
            let key = std::mem::take(&mut self.key);
            self.seek(whole(&key));
        }
    }

    /// Leaves the leaf of the last frame, whose entries were all visited.
    fn next_leaf(&mut self) {
        let Some(frame) = self.frames.last_mut() else { return };
        let fence = match self.order {
            Order::Ascending => frame.fences.high,
            Order::Descending => frame.fences.low,
        };
        let Some(bits) = fence else {
            self.frames.pop();
            return;
        };
        if frame.step(self.order).is_ok() {
            return;
        }
        self.key.truncate(8 * (self.frames.len() - 1));
        let (bytes, len) = shortest(bits);
        let mut key = std::mem::take(&mut self.key);
        key.extend_from_slice(&bytes[..len]);
        self.seek(Gap::Before(&key));
    }
}

impl<'a> Frame<'a> {
    /// The next entry.
    #[inline(always)]
    fn next(&self, order: Order) -> Option<usize> {
        match order {
            Order::Ascending => (self.at < self.leaf.count()).then_some(self.at),
            Order::Descending => self.at.checked_sub(1),
        }
    }

    /// Moves the cursor past entry `at`.
    #[inline(always)]
    fn pass(&mut self, at: usize, order: Order) {
        self.at = if order == Order::Ascending { at + 1 } else { at };
    }

    /// Descends from the root of a layer to the leaf that `bits` belongs to, and copies it.
    fn reach(link: Link<'a>, bits: u64, order: Order) -> Result<Frame<'a>, Conflict> {
        let (mut outer, mut fences) = (Fences::default(), Fences::default());
        let Reached { link, node, control } = reach(link, bits, |_, next| {
            outer = fences;
            // Valid if the next iteration finds the node unchanged.
            fences = outer.narrowed(next.holder.fences(next.control, next.at));
            if next.control.level() == 1 {
                prefetch_from(next, order);
            }
            Ok::<_, Conflict>(())
        })?;
        Ok(Frame { leaf: node.copy(control)?, at: 0, link, outer, fences })
    }

    /// Moves the frame's cursor into a gap. Returns the entry of the layer that contains the gap, if there is one.
    fn place(&mut self, gap: Gap<'_>) -> Option<usize> {
        let (leaf, rest) = (&self.leaf, gap.key());
        if let Gap::AfterPrefix(prefix) = gap
            && prefix.len() <= 8
        {
            let last = Slice { bits: Slice::last_with_prefix(prefix), class: u8::MAX };
            self.at = leaf.rank(last);
            return None;
        }
        let slice = Slice::of(rest);
        self.at = leaf.rank(slice);
        if self.at == leaf.count() || leaf.slice(self.at) != slice {
            return None;
        }
        match leaf.entry(self.at) {
            Entry::Layer => return Some(self.at),
            Entry::Long(block) => self.at += usize::from(gap.with_key(&rest[8..]).is_behind(block.suffix())),
            Entry::Value(_) => self.at += usize::from(matches!(gap, Gap::After(_))),
        }
        None
    }

    /// Steps to the adjacent leaf, if it has the same holder, and that is unchanged.
    fn step(&mut self, order: Order) -> Result<(), Conflict> {
        let Link { holder, control, at } = self.link;
        let at = match order {
            _ if control.is_leaf() => return Err(Conflict),
            Order::Ascending if at + 1 < control.count() => at + 1,
            Order::Descending if at > 0 => at - 1,
            _ => return Err(Conflict),
        };
        self.link.at = at;
        self.fences = self.outer.narrowed(holder.fences(control, at));
        let node = self.link.child()?;
        let leaf = node.stable()?;
        self.link.check()?;
        if !leaf.is_leaf() {
            return Err(Conflict);
        }
        prefetch_ahead(self.link, LEAVES_AHEAD, order);
        self.leaf.replace(node, leaf)?;
        self.at = if order == Order::Ascending { 0 } else { leaf.count() };
        Ok(())
    }
}

#[inline]
fn is_beyond(end: &Option<(EndKind, Vec<u8>)>, key: &[u8], order: Order) -> bool {
    end.as_ref().is_some_and(|(gap, bound)| gap(bound).is_behind(key) == (order == Order::Descending))
}

/// The slice of the nearest keys that a cursor in this gap may reach: it may be in another leaf than the keys on the
/// other side.
fn slice_beside(gap: Gap<'_>, order: Order) -> u64 {
    let bits = Slice::of(gap.key()).bits;
    match gap {
        Gap::AfterPrefix(prefix) if prefix.len() <= 8 => Slice::last_with_prefix(prefix),
        Gap::Before(key) if order == Order::Descending && key.len() == shortest(bits).1 => bits.saturating_sub(1),
        _ => bits,
    }
}

/// How many leaves ahead of the copied one are prefetched.
const LEAVES_AHEAD: usize = 2;

/// Prefetches the leaf of a link and some after it.
pub(crate) fn prefetch_from(link: Link<'_>, order: Order) {
    for ahead in 0..=LEAVES_AHEAD {
        prefetch_ahead(link, ahead, order);
    }
}

/// Prefetches the leaf that comes `ahead` leaves later.
fn prefetch_ahead(link: Link<'_>, ahead: usize, order: Order) {
    let at = match order {
        Order::Ascending => Some(link.at + ahead),
        Order::Descending => link.at.checked_sub(ahead),
    };
    if let Some(at) = at {
        link.holder.prefetch_child(link.control, at);
    }
}
