//! Interior nodes: up to 64 children in eight groups of eight, and the smallest slice of each.
//!
//! Word 0: control. 1 to 7: pilots, the first keys of groups 1 to 7. 8 to 71: keys. 72 to 135: children. Key `i` is the
//! smallest slice that may be below child `i`. A look-up reads three lines: pilots, one group of keys, one of children.
//! The first key of a group is not compared again.
//!
//! A key stands as the slice before it with its highest bit inverted, so it is below all slices that belong to its
//! child, and words that are not used, the greatest, are below none: the vector instructions of most processors compare
//! signed numbers only, and tell only whether one is greater.

use arrayvec::ArrayVec;

use super::compare::Search;
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

/// A slice in the order of signed numbers, and back.
#[inline(always)]
fn signed(bits: u64) -> u64 {
    bits ^ 1 << 63
}

/// The slice that a look-up wants, in the form of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target(u64);

impl Target {
    #[inline(always)]
    pub(crate) fn new(bits: u64) -> Target {
        Target(signed(bits))
    }
}

/// The word of a key. That of slice 0, which only the first child of a layer has, is not compared.
fn key_word(least: u64) -> u64 {
    signed(least.saturating_sub(1))
}

/// The key of a word. It is wrong for words that are not used, which are read only in other versions of a node.
fn key_of(word: u64) -> u64 {
    signed(word).wrapping_add(1)
}

/// The word of a key that is not used.
const UNUSED: u64 = i64::MAX as u64;

pub(super) fn child_word(at: usize) -> usize {
    CHILDREN + at % CAPACITY
}

impl<'g> Node<'g> {
    /// The group of keys that a slice belongs to. Reads only the header's line.
    #[inline(always)]
    pub(crate) fn route_group<S: Search>(self, target: &Target) -> usize {
        S::below(self.line(0), &target.0)
    }

    /// The child of a group that a slice belongs to.
    #[inline(always)]
    pub(crate) fn route_in<S: Search>(self, group: usize, target: &Target) -> usize {
        8 * group + S::below(self.line(KEYS + 8 * group), &target.0)
    }

    /// The index of the child that a slice belongs to. The caller must validate, as for all reads here.
    #[inline(always)]
    pub(crate) fn route<S: Search>(self, target: &Target) -> usize {
        let group = self.route_group::<S>(target);
        // While the keys arrive.
        self.prefetch_word(CHILDREN + 8 * group);
        self.route_in::<S>(group, target)
    }

    /// Child `at` of an interior node, if the node still matches `control`.
    #[inline(always)]
    pub(crate) fn child(self, control: Control, at: usize) -> Result<Node<'g>, Conflict> {
        let word = self.read(child_word(at));
        self.check(control)?;
        // SAFETY: the word belongs to the version of `control`, which was read under the guard of `'g`.
        Ok(unsafe { Node::from_word(word) })
    }

    /// The smallest slice that may be below child `at`, and that below the next child, if they are in this node.
    pub(crate) fn fences(self, control: Control, at: usize) -> (Option<u64>, Option<u64>) {
        // The first key of a group is a pilot, whose line is near.
        let word = |at: usize| if at.is_multiple_of(8) { at / 8 } else { KEYS + at };
        let key = |at: usize| (0 < at && at < control.count()).then(|| key_of(self.read(word(at))));
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
        let child = |at| Child { least: key_of(self.read(KEYS + at)), word: self.read(child_word(at)) };
        let children = (0..control.count()).map(child).collect();
        self.check(control).map(|()| children)
    }
}

impl Locked<'_> {
    pub(crate) fn set_children(&mut self, children: &[Child]) {
        for at in 0..CAPACITY {
            let (key, child) = children.get(at).map_or((UNUSED, 0), |child| (key_word(child.least), child.word));
            self.store(KEYS + at, key);
            self.store(child_word(at), child);
            if at % 8 == 0 && at > 0 {
                self.store(at / 8, key);
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
            .map(|at| Child { least: key_of(node.read(KEYS + at)), word: node.read(child_word(at)) })
            .collect()
    }
}
