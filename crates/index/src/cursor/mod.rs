//! Cursors: they copy one leaf at a time.
//!
//! A cursor has a frame for the layer it is in: the copy of a leaf, its position there, and the bounds of this leaf's
//! slices. It steps to the next leaf through the leaf's holder if that is unchanged, and otherwise starts again at the
//! key where the leaf ends. So each key is seen as of one moment of the scan, and no key is skipped.
//!
//! Of the layers above, a cursor remembers the leaves to which it comes back, without their contents: it copies such a
//! leaf again, and starts again behind the layer if the leaf has changed. Layers without further entries are forgotten.
//! So thousands of nested layers with one entry each, which two long keys make, take no memory.

mod descent;

use std::slice::from_mut;

use crate::guard::Guard;
use crate::index::{Index, retry};
use crate::node::{Conflict, Control, Entry, LeafCopy, Link, Node};
use crate::range::{Gap, GapKind, Order, Range};
use crate::scan::Scan;
use crate::slice::{Slice, shortest};
use crate::value::Value;
use descent::Descent;

/// A position in a scan. It keeps everything it has seen alive: for scans of millions of items take a new guard and a
/// new cursor, after the last key, every few thousand items.
#[derive(Debug)]
pub struct Cursor<'a> {
    index: &'a Index,
    guard: &'a Guard,
    order: Order,
    /// Where the scan ends; `None` if it ends at the last key of the index.
    end: Option<(GapKind, Vec<u8>)>,
    /// The innermost layer, unless the cursor is at the end. It stays where it is: copies of leaves are large.
    frame: Frame<'a>,
    is_at_end: bool,
    /// The layers above to which the cursor comes back, innermost last.
    above: Vec<Above<'a>>,
    /// The contents of the last leaf in `above`, in case the cursor comes back soon: most layers are small.
    kept: Option<LeafCopy<'a>>,
    /// The key visited last: the prefix of the frame's layer, then the slice of its entry and the suffix.
    key: Vec<u8>,
    /// Length of the key visited last.
    len: usize,
    /// Maximum number of items that the caller still wants: leaves beyond them are not prefetched.
    wanted: usize,
    /// How many layers it may still enter.
    layers_left: usize,
    /// Whether it has ended because there were more.
    is_spent: bool,
}

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

impl Index {
    /// Opens a cursor before the first item of a range.
    pub fn cursor<'a>(&'a self, range: Range<'_>, order: Order, guard: &'a Guard) -> Cursor<'a> {
        self.cursor_for(Scan { range, order, limit: usize::MAX }, usize::MAX, guard)
    }

    /// Opens a cursor for a scan, which ends before it enters more than `layers` layers below the first.
    pub(crate) fn cursor_for<'a>(&'a self, scan: Scan<'_>, layers: usize, guard: &'a Guard) -> Cursor<'a> {
        let mut cursor = Cursor::new(self, scan, layers, guard);
        cursor.seek(scan.start());
        cursor
    }
}

impl<'a> Cursor<'a> {
    /// It is at the end until it descends.
    #[inline(always)]
    fn new(index: &'a Index, scan: Scan<'_>, layers: usize, guard: &'a Guard) -> Cursor<'a> {
        let (end, link) = (scan.end(), index.anchor.link(guard));
        let (fences, outer) = (Fences::default(), Fences::default());
        let frame = Frame {
            leaf: LeafCopy::empty(link.holder, link.control),
            place: Place { path: 0, at: 0, link, outer, fences },
        };
        Cursor {
            index,
            guard,
            order: scan.order,
            end: (!end.ends_nothing(scan.order)).then(|| (end.kind(), end.key().to_vec())),
            frame,
            is_at_end: true,
            above: Vec::new(),
            kept: None,
            key: Vec::with_capacity(64),
            len: 0,
            wanted: scan.limit,
            layers_left: layers,
            is_spent: false,
        }
    }

    /// Visits up to `limit` of the next items. Returns how many it visited: fewer at the end of the range.
    pub(crate) fn visit(&mut self, limit: usize, mut visit: impl FnMut(&[u8], &[u8])) -> usize {
        let mut visited = 0;
        while visited < limit {
            visited += self.visit_inline(limit - visited, &mut visit);
            self.wanted = limit - visited;
            if visited < limit {
                let Some((key, value)) = self.advance() else { break };
                visit(key, &value);
                visited += 1;
            }
        }
        visited
    }

    /// Returns the next item and steps over it; `None` at the end of the range.
    #[inline]
    pub fn advance(&mut self) -> Option<(&[u8], Value<'a>)> {
        let value = loop {
            if self.is_at_end {
                return None;
            }
            let frame = &mut self.frame;
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

    /// Begins with the key that was visited last.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    fn clear(&mut self) {
        self.is_at_end = true;
        self.above.clear();
    }

    #[inline]
    fn is_beyond_end(&self) -> bool {
        is_beyond(&self.end, &self.key[..self.len], self.order)
    }

    /// Visits up to `limit` entries of the last frame, as long as they are inline: the common case in scans of short
    /// items.
    #[inline(always)]
    pub(crate) fn visit_inline(&mut self, limit: usize, visit: &mut impl FnMut(&[u8], &[u8])) -> usize {
        let Cursor { order, end, frame, key, is_at_end: false, .. } = self else { return 0 };
        let path = frame.place.path;
        if key.len() < path + 8 {
            key.resize(path + 8, 0);
        }
        let mut visited = 0;
        while visited < limit
            && let Some(at) = frame.next(*order)
            && let Some((slice, value, len)) = frame.leaf.inline(at)
        {
            // As an array: a slice would be copied by a call.
            if let Some(bits) = key[path..].first_chunk_mut() {
                *bits = slice.bits.to_be_bytes();
            }
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
    fn descend(&mut self, link: Link<'a>, gap: Gap<'_>, path: usize) -> Result<(), Conflict> {
        let mut descent = Descent::new(link, gap, self.order, path);
        descent::take_turns(from_mut(self), from_mut(&mut descent));
        descent.result()
    }

    /// Leaves the leaf for a layer below it. Returns false if the cursor has entered as many as it may.
    fn leave_for_deeper(&mut self) -> bool {
        let Some(left) = self.layers_left.checked_sub(1) else {
            self.is_spent = true;
            self.clear();
            return false;
        };
        self.layers_left = left;
        let Frame { leaf, place } = &self.frame;
        if self.frame.next(self.order).is_some() || self.frame.fence(self.order).is_some() {
            self.above.push(Above { node: leaf.node, control: leaf.control, place: *place });
            self.kept = Some(leaf.clone());
        }
        true
    }

    /// Goes to the first item, in scan order, of the layer that entry `at` of the frame refers to. `key` ends with its
    /// slice.
    fn enter_layer(&mut self, at: usize) {
        let Frame { leaf, place } = &self.frame;
        let link = Link { holder: leaf.node, control: leaf.control, at };
        let path = place.path + 8;
        let (first, whole): (Gap<'_>, GapKind) = match self.order {
            Order::Ascending => (Gap::Before(&[]), |key| Gap::After(key)),
            Order::Descending => (Gap::AfterPrefix(&[]), |key| Gap::AfterPrefix(key)),
        };
        if self.leave_for_deeper() && self.descend(link, first, path).is_err() {
            // The leaf has changed since it was copied. All longer keys with this prefix are still to come.
            let key = std::mem::take(&mut self.key);
            self.seek(whole(&key));
        }
    }

    /// Leaves the leaf of the frame, whose entries were all visited.
    fn next_leaf(&mut self) {
        let frame = &mut self.frame;
        let Some(bits) = frame.fence(self.order) else { return self.leave_layer() };
        if frame.step(self.order, self.wanted).is_ok() {
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
        let Frame { leaf, place: there } = &mut self.frame;
        *there = place;
        match self.kept.take().filter(|kept| kept.node == node && kept.control == control) {
            Some(kept) => *leaf = kept,
            None if leaf.replace(node, control).is_ok() => {}
            None => self.seek_behind_layer(place.path + 8),
        }
    }

    /// Goes on behind a layer, before which keys have `path` bytes, and which has changed.
    fn seek_behind_layer(&mut self, path: usize) {
        // All longer keys with this prefix were visited.
        let mut key = std::mem::take(&mut self.key);
        key.truncate(path);
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
    fn step(&mut self, order: Order, wanted: usize) -> Result<(), Conflict> {
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
        if leaves_ahead(wanted) == LEAVES_AHEAD {
            prefetch_ahead(place.link, LEAVES_AHEAD, order);
        }
        leaf.replace(node, next)?;
        place.at = if order == Order::Ascending { 0 } else { next.count() };
        Ok(())
    }
}

#[inline]
fn is_beyond(end: &Option<(GapKind, Vec<u8>)>, key: &[u8], order: Order) -> bool {
    end.as_ref().is_some_and(|(gap, bound)| gap(bound).is_behind(key) == (order == Order::Descending))
}

/// How many leaves ahead of the copied one are prefetched at most, and about how many items a leaf has.
const LEAVES_AHEAD: usize = 2;
const LEAF_ITEMS: usize = 20;

/// How many leaves after the one in which a scan begins it needs for so many items.
fn leaves_ahead(wanted: usize) -> usize {
    (wanted.saturating_add(LEAF_ITEMS / 2) / LEAF_ITEMS).min(LEAVES_AHEAD)
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
                let mut cursor = index.cursor_for(Scan { range: Range::ALL, order, limit: 1 }, layers, &guard);
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
