//! Nodes: words that are atomics, read without a lock and validated by the version in the control word.
//!
//! A reader loads the control word ([`Node::stable`]), then other words, then compares the control word
//! ([`Node::check`]). If it is unchanged, all words that were read belong together. A writer locks ([`Node::lock`]) the
//! version it has read, so it never waits while holding a lock.
#![allow(unsafe_code)]

mod compare;
mod control;
mod interior;
mod leaf;
mod version;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::Backoff;

use crate::guard::Guard;
use crate::memory::{Full, Memory, Slot, prefetch};

pub use compare::Vectors;
pub(crate) use compare::{Scalar, Search, Task, search};
pub(crate) use control::{Control, Shape};
pub(crate) use interior::{Child, Target};
pub(crate) use leaf::{Entry, Fixed, LeafCopy};

/// Another thread changed something that was read. Start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conflict;

/// A node that stays allocated for `'g`, in any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node<'g> {
    slot: Slot,
    guard: PhantomData<&'g Guard>,
}

impl<'g> Node<'g> {
    /// Makes a new, empty node. This may take a mutex, map memory and fault a page in: lock other nodes only
    /// afterwards.
    pub(crate) fn create(memory: &'g Memory, shape: Shape, level: usize) -> Result<Fresh<'g>, Full> {
        let node = Node { slot: memory.take_node(shape)?, guard: PhantomData };
        let control = Control::new(shape, level);
        node.word(0).store(control.0, Ordering::Relaxed);
        Ok(Fresh { memory, locked: Some(Locked { node, control: control.unlocked() }) })
    }

    /// # Safety
    /// `to_word` made the word of a node that stays for `'g`: its holder had it in a validated state, and the reader
    /// has been pinned since before.
    #[inline(always)]
    unsafe fn from_word(word: u64) -> Node<'g> {
        let start = std::ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: the word was made from an address that is not null.
        Node { slot: Slot(unsafe { NonNull::new_unchecked(start) }), guard: PhantomData }
    }

    pub(crate) fn to_word(self) -> u64 {
        self.slot.0.as_ptr().expose_provenance() as u64
    }

    /// Word `at` of the node. All nodes have the first 16; the index of later words must be bounded by the count in a
    /// control word of this node.
    #[inline(always)]
    fn word(self, at: usize) -> &'g AtomicU64 {
        #[cfg(test)]
        crate::interleave::point(at == 0);
        debug_assert!(at < 16 || at < Control(self.slot.word(0).load(Ordering::Relaxed)).shape().words());
        // SAFETY: a node has the words of its shape, which does not change while it stays, and it stays for `'g`. Its
        // words are accessed only as atomics.
        unsafe { self.slot.0.add(at).as_ref() }
    }

    /// The line that begins with word `at`. Lines other than the first must be of an interior node.
    #[inline(always)]
    fn line(self, at: usize) -> &'g compare::Line {
        #[cfg(test)]
        crate::interleave::point(false);
        debug_assert!(at.is_multiple_of(8) && at < Shape::Interior.words());
        // SAFETY: as for `word`; nodes consist of whole lines.
        unsafe { self.slot.0.add(at).cast().as_ref() }
    }

    #[inline(always)]
    fn read(self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Waits until the node is not locked. A writer holds a lock for some hundred instructions, unless it is preempted.
    ///
    /// # Errors
    /// The node is no longer in the tree.
    #[inline(always)]
    pub(crate) fn stable(self) -> Result<Control, Conflict> {
        let control = self.control();
        if control.is_plain() { Ok(control) } else { self.wait() }
    }

    /// The control word as it is now.
    #[inline(always)]
    pub(crate) fn control(self) -> Control {
        version::load(self.word(0))
    }

    #[cold]
    fn wait(self) -> Result<Control, Conflict> {
        let backoff = Backoff::new();
        loop {
            let control = self.control();
            if !control.is_locked() {
                return if control.is_obsolete() { Err(Conflict) } else { Ok(control) };
            }
            backoff.snooze();
        }
    }

    /// Whether everything that was read since `control` was loaded belongs together.
    #[inline(always)]
    pub(crate) fn check(self, control: Control) -> Result<(), Conflict> {
        version::check(self.word(0), control)
    }

    /// Locks the node if it has not changed since `control` was loaded.
    pub(crate) fn lock(self, control: Control) -> Result<Locked<'g>, Conflict> {
        version::lock(self.word(0), control).map(|()| Locked { node: self, control })
    }

    /// Prefetches the header's line.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        self.prefetch_word(0);
    }

    /// Prefetches the line of a word, which need not exist.
    #[inline(always)]
    fn prefetch_word(self, at: usize) {
        prefetch(self.slot.0.as_ptr().wrapping_add(at).cast_const().cast());
    }

    /// Frees a node that is not shared.
    ///
    /// # Safety
    /// It was never linked, or no other thread uses the index any more; and it is freed once.
    pub(crate) unsafe fn free(self, memory: &Memory) {
        let shape = Control(self.read(0)).shape();
        // SAFETY: as the caller promises; the shape is the one it was made with.
        unsafe { memory.free_node(self.slot, shape) };
    }
}

/// A new node, locked and not shared. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct Fresh<'g> {
    memory: &'g Memory,
    /// `None` once the node is kept.
    locked: Option<Locked<'g>>,
}

impl<'g> Fresh<'g> {
    /// Returns the node, which belongs to the tree from now on.
    pub(crate) fn keep(mut self) -> Locked<'g> {
        self.locked.take().expect("it is kept once")
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(locked) = self.locked.take() {
            let node = locked.node;
            // Unlocking writes to the node, so it comes first.
            drop(locked);
            // SAFETY: it is not shared, and not kept.
            unsafe { node.free(self.memory) };
        }
    }
}

/// A node that this thread has locked. Dropping it publishes the changes.
#[derive(Debug)]
pub(crate) struct Locked<'g> {
    node: Node<'g>,
    /// The control word after unlocking.
    control: Control,
}

impl<'g> Locked<'g> {
    pub(crate) fn node(&self) -> Node<'g> {
        self.node
    }

    pub(crate) fn count(&self) -> usize {
        self.control.count()
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.control.is_leaf()
    }

    /// Publishes the changes and returns the control word, with which the caller may lock again.
    pub(crate) fn publish(self) -> Control {
        self.control
    }

    fn store(&mut self, at: usize, word: u64) {
        self.node.word(at).store(word, Ordering::Relaxed);
    }

    /// Increments the version, so that readers notice. Called once for each group of changes.
    fn changed(&mut self, count: usize) {
        self.control = self.control.next_version().with_count(count);
    }

    /// Marks the node as removed from the tree, and frees it when no reader can see it.
    ///
    /// # Safety
    /// No other node refers to it any more.
    pub(crate) unsafe fn retire(mut self, memory: &Arc<Memory>, guard: &Guard) {
        self.control = self.control.next_version().obsolete();
        let (slot, shape) = (self.node.slot, self.control.shape());
        drop(self);
        // SAFETY: as the caller promises, readers that are pinned later cannot reach it; a thread that tries to lock it
        // sees that it is obsolete.
        unsafe { memory.retire_node(slot, shape, guard) };
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // If nothing was changed, this is the earlier word, and no reader needs to notice.
        version::unlock(self.node.word(0), self.control);
    }
}

/// The place that refers to a node: child `at` of an interior node, or entry `at` of a leaf, whose value is a layer.
/// `control` is the holder's control word at the time of reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link<'g> {
    pub(crate) holder: Node<'g>,
    pub(crate) control: Control,
    pub(crate) at: usize,
}

impl<'g> Link<'g> {
    /// Whether the holder is unchanged.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Conflict> {
        self.holder.check(self.control)
    }

    /// The node that it refers to. The caller knows that the place holds a node as long as the holder is unchanged.
    #[inline(always)]
    pub(crate) fn child(&self) -> Result<Node<'g>, Conflict> {
        if !self.control.is_leaf() {
            return self.holder.child(self.control, self.at);
        }
        let word = self.holder.read(leaf::value_word(self.at));
        self.check()?;
        // SAFETY: the word belongs to the version that the link was made from, in which it is a node. The guard of `'g`
        // was taken before that version was read, so the node stays.
        Ok(unsafe { Node::from_word(word) })
    }

    /// Prefetches the header of the node that it refers to.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(std::ptr::without_provenance(self.holder.read(self.holder_word()) as usize));
    }

    #[inline(always)]
    fn holder_word(&self) -> usize {
        if self.control.is_leaf() { leaf::value_word(self.at) } else { interior::child_word(self.at) }
    }
}

impl<'g> Locked<'g> {
    /// Makes place `at` refer to another node, which has taken over the contents of the former.
    pub(crate) fn set_child(&mut self, at: usize, child: Node<'g>) {
        let link = Link { holder: self.node, control: self.control, at };
        self.store(link.holder_word(), child.to_word());
        self.changed(self.count());
    }
}

/// The node above all others: a leaf whose only entry is the first layer. It owns its memory.
#[derive(Debug)]
pub(crate) struct Anchor {
    slot: Slot,
    pub(crate) memory: Arc<Memory>,
}

impl Anchor {
    pub(crate) fn new(memory: Memory) -> Result<Anchor, Full> {
        compare::detect();
        let root = Node::create(&memory, Shape::Leaf4, 0)?;
        let mut anchor = Node::create(&memory, Shape::Leaf4, 0)?.keep();
        anchor.insert(0, Fixed::layer(0, root.keep().node()));
        let slot = anchor.node.slot;
        drop(anchor);
        Ok(Anchor { slot, memory: Arc::new(memory) })
    }

    /// The link to the root of the first layer.
    #[inline(always)]
    pub(crate) fn link<'g>(&'g self, _pinned: &'g Guard) -> Link<'g> {
        let holder = Node { slot: self.slot, guard: PhantomData };
        let control = holder.control();
        // It is never obsolete, and a locked one differs from every word that `check` may find later.
        Link { holder, control: control.unlocked(), at: 0 }
    }
}
