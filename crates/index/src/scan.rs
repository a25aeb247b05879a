//! Scans: a cursor that copies one leaf at a time.
//!
//! A cursor has a frame for the layer it is in: the copy of a leaf, its position there, and the bounds of this leaf's
//! slices. It steps to the next leaf through the leaf's holder if that is unchanged, and otherwise starts again at the
//! key where the leaf ends. So each key is seen as of one moment of the scan, and no key is skipped.
//!
//! Of the layers above, a cursor remembers the leaves to which it comes back, without their contents: it copies such a
//! leaf again, and starts again behind the layer if the leaf has changed. Layers without further entries are forgotten.
//! So thousands of nested layers with one entry each, which two long keys make, take no memory.

use crate::guard::Guard;
use crate::index::{Index, Reached, reach, retry};
use crate::node::{Conflict, Control, Entry, LeafCopy, Link, Node};
use crate::range::{Gap, Order, Range};
use crate::slice::{Slice, shortest};
use crate::value::Value;

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
    /// The innermost layer; `None` at the end.
    frame: Option<Frame<'a>>,
    /// The layers above to which the cursor comes back, innermost last.
    above: Vec<Above<'a>>,
    /// The contents of the last leaf in `above`, in case the cursor comes back soon: most layers are small.
    kept: Option<LeafCopy<'a>>,
    /// The key visited last: the prefix of the frame's layer, then the slice of its entry and the suffix.
    key: Vec<u8>,
    /// Length of the key visited last.
    len: usize,
    /// How many layers it may still enter.
    layers_left: usize,
    /// Whether it has ended because there were more.
    is_spent: bool,
}

/// Items that a range removal removes under one guard, and bytes of their keys after which no further one is added.
const REMOVED_PER_PAGE: usize = 256;
const REMOVED_KEY_BYTES: usize = 64 << 10;
/// The same of a count.
const COUNTED_PER_PAGE: usize = 4096;
const COUNTED_KEY_BYTES: usize = 256 << 10;

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

/// A place in a leaf.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    /// Bytes of keys before this layer.
    path: usize,
    /// Entries before the cursor.
    at: usize,
    /// Where the leaf was found, and the bounds of that holder.
    link: Link<'a>,
    outer: Fences,
    fences: Fences,
}

/// The layer that the cursor is in.
#[derive(Debug)]
struct Frame<'a> {
    leaf: LeafCopy<'a>,
    place: Place<'a>,
}

/// A layer above it.
#[derive(Debug, Clone, Copy)]
struct Above<'a> {
    node: Node<'a>,
    control: Control,
    place: Place<'a>,
}

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
        part.last = Some(cursor.key[..len].to_vec());
        part
    }

    /// Opens a cursor before the first item of a range.
    pub fn cursor<'a>(&'a self, range: Range<'_>, order: Order, guard: &'a Guard) -> Cursor<'a> {
        self.cursor_within(range, order, guard, usize::MAX)
    }

    /// As [`Index::cursor`], for one that ends before it enters more than `layers` layers below the first.
    pub(crate) fn cursor_within<'a>(
        &'a self,
        range: Range<'_>,
        order: Order,
        guard: &'a Guard,
        layers: usize,
    ) -> Cursor<'a> {
        let (start, end) = match order {
            Order::Ascending => (range.low, range.high),
            Order::Descending => (range.high, range.low),
        };
        let end = (!end.ends_nothing(order)).then(|| (kind(end), end.key().to_vec()));
        let mut cursor = Cursor {
            index: self,
            guard,
            order,
            end,
            frame: None,
            above: Vec::new(),
            kept: None,
            key: Vec::with_capacity(64),
            len: 0,
            layers_left: layers,
            is_spent: false,
        };
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
            let frame = self.frame.as_mut()?;
            let path = frame.place.path;
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
                    break Value::in_block(block);
                }
                Entry::Layer => {
                    self.key.truncate(path + 8);
                    self.enter_layer(at);
                }
            }
        };
        if self.is_beyond_end() {
            self.clear();
            return None;
        }
        Some((&self.key[..self.len], value))
    }

    /// Whether it has ended early, because it would have entered too many layers.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent
    }

    fn clear(&mut self) {
        self.frame = None;
        self.above.clear();
    }

    #[inline]
    fn is_beyond_end(&self) -> bool {
        is_beyond(&self.end, &self.key[..self.len], self.order)
    }

    /// Visits up to `limit` entries of the last frame, as long as they are inline: the common case in scans of short
    /// items.
    #[inline(always)]
    fn visit_inline(&mut self, limit: usize, visit: &mut impl FnMut(&[u8], &[u8])) -> usize {
        let Cursor { order, end, frame, key, .. } = self;
        let Some(frame) = frame else { return 0 };
        let path = frame.place.path;
        if key.len() < path + 8 {
            key.resize(path + 8, 0);
        }
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
            self.clear();
            self.key.clear();
            self.descend(self.index.anchor.link(self.guard), gap, 0)
        });
    }

    /// Moves the cursor into a gap of a layer, before which keys have `path` bytes, and of the layers below it.
    fn descend(&mut self, mut link: Link<'a>, mut gap: Gap<'_>, mut path: usize) -> Result<(), Conflict> {
        loop {
            let rest = gap.key();
            let bits = slice_beside(gap, self.order);
            let mut frame = Frame::reach(link, bits, self.order, path)?;
            let Some(at) = frame.move_into(gap) else {
                self.frame = Some(frame);
                return Ok(());
            };
            // This frame's cursor passes the layer, whichever way it goes.
            frame.pass(at, self.order);
            let deeper = Link { holder: frame.leaf.node, control: frame.leaf.control, at };
            if !self.leave_for_deeper(frame) {
                return Ok(());
            }
            self.key.extend_from_slice(&rest[..8]);
            (link, gap, path) = (deeper, gap.with_key(&rest[8..]), path + 8);
        }
    }

    /// Leaves a leaf for a layer below it. Returns false if the cursor has entered as many as it may.
    fn leave_for_deeper(&mut self, frame: Frame<'a>) -> bool {
        let Some(left) = self.layers_left.checked_sub(1) else {
            self.is_spent = true;
            self.clear();
            return false;
        };
        self.layers_left = left;
        if frame.next(self.order).is_some() || frame.fence(self.order).is_some() {
            let Frame { leaf, place } = frame;
            self.above.push(Above { node: leaf.node, control: leaf.control, place });
            self.kept = Some(leaf);
        }
        true
    }

    /// Goes to the first item, in scan order, of the layer that entry `at` of the frame refers to. `key` ends with its
    /// slice.
    fn enter_layer(&mut self, at: usize) {
        let Some(frame) = self.frame.take() else { return };
        let link = Link { holder: frame.leaf.node, control: frame.leaf.control, at };
        let path = frame.place.path + 8;
        let (first, whole): (Gap<'_>, EndKind) = match self.order {
            Order::Ascending => (Gap::Before(&[]), |key| Gap::After(key)),
            Order::Descending => (Gap::AfterPrefix(&[]), |key| Gap::AfterPrefix(key)),
        };
        if self.leave_for_deeper(frame) && self.descend(link, first, path).is_err() {
            // The leaf has changed since it was copied. All longer keys with this prefix are still to come.
            let key = std::mem::take(&mut self.key);
            self.seek(whole(&key));
        }
    }

    /// Leaves the leaf of the frame, whose entries were all visited.
    fn next_leaf(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        let Some(bits) = frame.fence(self.order) else { return self.leave_layer() };
        if frame.step(self.order).is_ok() {
            return;
        }
        let path = frame.place.path;
        let (bytes, len) = shortest(bits);
        let mut key = std::mem::take(&mut self.key);
        key.truncate(path);
        key.extend_from_slice(&bytes[..len]);
        self.seek(Gap::Before(&key));
    }

    /// Goes back to the innermost layer above that has more entries.
    fn leave_layer(&mut self) {
        let Some(Above { node, control, place }) = self.above.pop() else { return self.clear() };
        let kept = self.kept.take().filter(|leaf| leaf.node == node && leaf.control == control);
        if let Ok(leaf) = kept.map_or_else(|| node.copy(control), Ok) {
            self.frame = Some(Frame { leaf, place });
            return;
        }
        // It has changed. All longer keys with this prefix were visited.
        let mut key = std::mem::take(&mut self.key);
        key.truncate(place.path + 8);
        self.seek(match self.order {
            Order::Ascending => Gap::AfterPrefix(&key),
            Order::Descending => Gap::After(&key),
        });
    }
}

impl<'a> Frame<'a> {
    /// The next entry.
    #[inline(always)]
    fn next(&self, order: Order) -> Option<usize> {
        match order {
            Order::Ascending => (self.place.at < self.leaf.count()).then_some(self.place.at),
            Order::Descending => self.place.at.checked_sub(1),
        }
    }

    /// Where its leaf ends; `None` if the layer ends there, too.
    fn fence(&self, order: Order) -> Option<u64> {
        match order {
            Order::Ascending => self.place.fences.high,
            Order::Descending => self.place.fences.low,
        }
    }

    /// Moves the cursor past entry `at`.
    #[inline(always)]
    fn pass(&mut self, at: usize, order: Order) {
        self.place.at = if order == Order::Ascending { at + 1 } else { at };
    }

    /// Descends from the root of a layer to the leaf that `bits` belongs to, and copies it.
    fn reach(link: Link<'a>, bits: u64, order: Order, path: usize) -> Result<Frame<'a>, Conflict> {
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
        Ok(Frame { leaf: node.copy(control)?, place: Place { path, at: 0, link, outer, fences } })
    }

    /// Moves the frame's cursor into a gap. Returns the entry of the layer that contains the gap, if there is one.
    fn move_into(&mut self, gap: Gap<'_>) -> Option<usize> {
        let (leaf, at, rest) = (&self.leaf, &mut self.place.at, gap.key());
        if let Gap::AfterPrefix(prefix) = gap
            && prefix.len() <= 8
        {
            let last = Slice { bits: Slice::last_with_prefix(prefix), class: u8::MAX };
            *at = leaf.rank(last);
            return None;
        }
        let slice = Slice::of(rest);
        *at = leaf.rank(slice);
        if *at == leaf.count() || leaf.slice(*at) != slice {
            return None;
        }
        match leaf.entry(*at) {
            Entry::Layer => return Some(*at),
            Entry::Long(block) => *at += usize::from(gap.with_key(&rest[8..]).is_behind(block.suffix())),
            Entry::Value(_) => *at += usize::from(matches!(gap, Gap::After(_))),
        }
        None
    }

    /// Steps to the adjacent leaf, if it has the same holder, and that is unchanged.
    fn step(&mut self, order: Order) -> Result<(), Conflict> {
        let Frame { leaf, place } = self;
        let Link { holder, control, at } = place.link;
        let at = match order {
            _ if control.is_leaf() => return Err(Conflict),
            Order::Ascending if at + 1 < control.count() => at + 1,
            Order::Descending if at > 0 => at - 1,
            _ => return Err(Conflict),
        };
        place.link.at = at;
        place.fences = place.outer.narrowed(holder.fences(control, at));
        let node = place.link.child()?;
        let next = node.stable()?;
        place.link.check()?;
        if !next.is_leaf() {
            return Err(Conflict);
        }
        prefetch_ahead(place.link, LEAVES_AHEAD, order);
        leaf.replace(node, next)?;
        place.at = if order == Order::Ascending { 0 } else { next.count() };
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dunlin_net::random::Random;

    use super::*;
    use crate::error::KEY_BYTES_MAX;

    /// Two keys of 64 KiB that differ at the end make 8,192 layers, through which a cursor passes without a trace.
    #[test]
    fn layers_with_one_entry_take_no_memory_of_a_cursor() {
        let index = Index::new(16 << 20).expect("room");
        for last in [b'k', b'l'] {
            let key = [&vec![b'k'; KEY_BYTES_MAX - 1][..], &[last]].concat();
            index.insert(&key, b"value", &crate::pin()).expect("room");
        }
        let guard = crate::pin();
        for order in [Order::Ascending, Order::Descending] {
            let mut cursor = index.cursor(Range::ALL, order, &guard);
            for _ in 0..2 {
                assert_eq!(cursor.advance().map(|(key, _)| key.len()), Some(KEY_BYTES_MAX));
                assert_eq!(cursor.above.capacity(), 0, "{order:?}");
                assert!(cursor.key.capacity() <= 2 * KEY_BYTES_MAX, "{order:?}");
            }
            assert!(cursor.advance().is_none());
            for (layers, is_enough) in [(KEY_BYTES_MAX / 8 - 1, true), (KEY_BYTES_MAX / 8 - 2, false), (0, false)] {
                let mut cursor = index.cursor_within(Range::ALL, order, &guard, layers);
                assert_eq!((cursor.advance().is_some(), cursor.is_spent()), (is_enough, !is_enough), "{layers}");
            }
        }
        // A layer with further entries is remembered in a few words.
        index.insert(&vec![b'k'; 4001], b"value", &guard).expect("room");
        index.insert(&[&vec![b'k'; 4000][..], b"z"].concat(), b"value", &guard).expect("room");
        let mut cursor = index.cursor(Range::ALL, Order::Ascending, &guard);
        for (len, above) in [(4001, 0), (KEY_BYTES_MAX, 1), (KEY_BYTES_MAX, 1), (4001, 0)] {
            assert_eq!(cursor.advance().map(|(key, _)| key.len()), Some(len));
            assert_eq!(cursor.above.len(), above);
        }
        assert!(cursor.advance().is_none());
        assert!(size_of::<Above<'_>>() <= 128);
    }

    /// Keys of few slices, so that layers stand in layers, with several entries each.
    fn key(random: &mut Random, last: u8) -> Vec<u8> {
        let mut key = Vec::new();
        for _ in 0..random.below(6) {
            key.extend_from_slice([&b"aaaaaaaa"[..], b"bbbbbbbb", b"cccccccc"][random.below(3) as usize]);
        }
        key.extend((0..random.below(3)).map(|_| b'a' + random.below(4) as u8));
        key.push(last);
        key
    }

    /// Whatever changes behind, before and at a cursor, also in layers to which it comes back, it visits each key that
    /// stays, once and in order.
    #[test]
    fn a_cursor_comes_back_to_layers_that_have_changed() {
        for seed in 0..40 {
            let (mut random, index) = (Random::new(seed), Index::new(16 << 20).expect("room"));
            let staying: BTreeSet<Vec<u8>> = (0..300).map(|_| key(&mut random, b'!')).collect();
            for key in &staying {
                index.insert(key, b"value", &crate::pin()).expect("room");
            }
            let guard = crate::pin();
            for order in [Order::Ascending, Order::Descending] {
                let (mut cursor, mut visited) = (index.cursor(Range::ALL, order, &guard), Vec::new());
                while let Some((found, _)) = cursor.advance() {
                    visited.push(found.to_vec());
                    for _ in 0..random.below(8) {
                        let other = key(&mut random, b'?');
                        if random.chance(0.5) {
                            index.insert(&other, b"another value", &guard).expect("room");
                        } else {
                            index.remove(&other, &guard);
                        }
                    }
                }
                let is_in_order = |pair: &[Vec<u8>]| (pair[0] < pair[1]) == (order == Order::Ascending);
                assert!(visited.windows(2).all(is_in_order), "seed {seed}, {order:?}");
                visited.retain(|key| key.ends_with(b"!"));
                visited.sort();
                assert!(visited.iter().eq(&staying), "seed {seed}, {order:?}: {} keys", visited.len());
            }
            index.verify(&guard).expect("sound");
        }
    }
}
