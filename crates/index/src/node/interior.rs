//! Interior nodes: up to 64 children in eight groups of eight, and the smallest slice of each.
//!
//! Word 0: control. 1 to 7: pilots, the first keys of groups 1 to 7. 8 to 71: keys. 72 to 135: children. Key `i` is the
//! smallest slice that may be below child `i`; the first key of the leftmost node of a layer is 0. Keys and pilots that
//! are not used are the greatest. A look-up reads three lines: pilots, one group of keys, one of children.
//!
//! Keys and pilots stand with their highest bit inverted: the vector instructions of most processors compare signed
//! numbers only.

use arrayvec::ArrayVec;

use super::compare::at_most;
use super::{Conflict, Control, Locked, Node, Shape};

const KEYS: usize = 8;
const CHILDREN: usize = 72;
const CAPACITY: usize = Shape::Interior.capacity();

/// A child and the smallest slice that may be below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) least: u64,
    pub(super) word: u64,
}

impl Child {
    pub(crate) fn new(least: u64, node: Node<'_>) -> Child {
        Child { least, word: node.to_word() }
    }
}

/// A slice as a key, and a key as a slice.
#[inline(always)]
fn signed(word: u64) -> u64 {
    word ^ 1 << 63
}

pub(super) fn child_word(at: usize) -> usize {
    CHILDREN + at % CAPACITY
}

impl<'g> Node<'g> {
    /// The group of keys that `bits` belongs to. Reads only the header's line.
    #[inline(always)]
    pub(crate) fn route_group(self, control: Control, bits: u64) -> usize {
        let group = at_most(self.line(0), 1, signed(bits));
        group.min(control.count().saturating_sub(1) / 8)
    }

    /// The child of a group that `bits` belongs to.
    #[inline(always)]
    pub(crate) fn route_in(self, control: Control, group: usize, bits: u64) -> usize {
        let below = at_most(self.line(KEYS + 8 * group), 0, signed(bits));
        (8 * group + below.saturating_sub(1)).min(control.count().saturating_sub(1))
    }

    /// The index of the child that `bits` belongs to. The caller must validate, as for all reads here.
    #[inline(always)]
    pub(crate) fn route(self, control: Control, bits: u64) -> usize {
        self.route_in(control, self.route_group(control, bits), bits)
    }

    /// The smallest slice that may be below child `at`, and that below the next child, if they are in this node.
    pub(crate) fn fences(self, control: Control, at: usize) -> (Option<u64>, Option<u64>) {
        let key = |at: usize| (0 < at && at < control.count()).then(|| signed(self.read(KEYS + at)));
        (key(at), key(at + 1))
    }

    /// Prefetches the lines of a group.
    #[inline(always)]
    pub(crate) fn prefetch_group(self, group: usize) {
        self.prefetch_word(KEYS + 8 * group);
        self.prefetch_word(CHILDREN + 8 * group);
    }

    /// Prefetches all lines of a leaf of full size that is child `at`, if there is one.
    pub(crate) fn prefetch_child(self, control: Control, at: usize) {
        if at < control.count() {
            let start = std::ptr::without_provenance::<u64>(self.read(child_word(at)) as usize);
            for line in 0..Shape::Leaf28.words() / 8 {
                crate::memory::prefetch(start.wrapping_add(8 * line));
            }
        }
    }

    /// All children, if the node still matches `control`.
    pub(crate) fn children(self, control: Control) -> Result<ArrayVec<Child, CAPACITY>, Conflict> {
        let child = |at| Child { least: signed(self.read(KEYS + at)), word: self.read(child_word(at)) };
        let children = (0..control.count()).map(child).collect();
        self.check(control).map(|()| children)
    }
}

impl Locked<'_> {
    pub(crate) fn set_children(&mut self, children: &[Child]) {
        for at in 0..CAPACITY {
            let Child { least, word } = children.get(at).copied().unwrap_or(Child { least: u64::MAX, word: 0 });
            self.store(KEYS + at, signed(least));
            self.store(child_word(at), word);
            if at % 8 == 0 && at > 0 {
                self.store(at / 8, signed(least));
            }
        }
        self.changed(children.len());
    }

    /// Inserts a child after child `at`. There must be room.
    pub(crate) fn insert_child(&mut self, at: usize, child: Child) {
        let mut children = self.own_children();
        children.insert(at + 1, child);
        self.set_children(&children);
    }

    pub(crate) fn remove_child(&mut self, at: usize) {
        let mut children = self.own_children();
        children.remove(at);
        self.set_children(&children);
    }

    pub(crate) fn own_children(&self) -> ArrayVec<Child, CAPACITY> {
        let node = self.node;
        (0..self.count())
            .map(|at| Child { least: signed(node.read(KEYS + at)), word: node.read(child_word(at)) })
            .collect()
    }
}
