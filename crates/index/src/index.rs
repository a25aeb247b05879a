//! The index: its limits and its reads.

use std::fmt;
use std::marker::PhantomData;

use crossbeam_utils::Backoff;

use crate::counter::Counter;
use crate::error::Refused;
use crate::guard::Guard;
use crate::memory::Memory;
use crate::node::{Anchor, Conflict, Control, Entry, Link, Node, Search, Shape, Target, Task, search};
use crate::slice::Slice;
use crate::value::Value;

/// An ordered map from byte strings to byte strings. All methods may be called from any number of threads at once.
pub struct Index {
    pub(crate) anchor: Anchor,
    pub(crate) items: Counter,
    /// Layers below the first.
    pub(crate) layers: Counter,
}

impl Index {
    /// Makes an empty index that uses at most `budget` bytes of memory. It allocates as needed. Memory of removed nodes
    /// is kept for nodes of the same size; if it is needed for something else, pages without a node return to the
    /// system.
    ///
    /// # Errors
    /// [`Refused::Full`] if the budget has no room for the first nodes, 256 bytes.
    pub fn new(budget: usize) -> Result<Index, Refused> {
        let anchor = Anchor::new(Memory::new(budget)).map_err(|_| Refused::Full { budget })?;
        Ok(Index { anchor, items: Counter::default(), layers: Counter::default() })
    }

    /// Number of items. It may miss concurrent writes.
    pub fn len(&self) -> usize {
        self.items.sum()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a key, if it has one.
    pub fn get<'a>(&'a self, key: &[u8], guard: &'a Guard) -> Option<Value<'a>> {
        retry(|| search(Get { index: self, key, guard }))
    }

    #[inline(always)]
    fn try_get<'a, S: Search>(&'a self, key: &[u8], guard: &'a Guard) -> Result<Option<Value<'a>>, Conflict> {
        let (mut link, mut rest) = (self.anchor.link(guard), key);
        loop {
            let slice = Slice::of(rest);
            let Reached { node, control, .. } = reach_with::<S, _>(link, slice.bits, |_, _| Ok::<_, Conflict>(()))?;
            let Some(at) = node.find::<S>(control, slice) else {
                return node.check(control).map(|()| None);
            };
            match node.entry(control, at)? {
                Entry::Value(value) => return Ok(Some(value)),
                Entry::Long(block) => return Ok((block.suffix() == &rest[8..]).then_some(Value::in_block(block))),
                Entry::Layer => (link, rest) = (Link { holder: node, control, at }, &rest[8..]),
            }
        }
    }

    /// Bytes of all nodes, and of all keys and values outside nodes. Removed memory is included until it is freed.
    /// Freed nodes are not included, but those on a page with nodes in use count against the budget.
    pub fn memory_bytes(&self) -> usize {
        self.anchor.memory.used()
    }

    /// Bytes of free nodes, which also count against the budget: nodes of their size use them first. Those on pages
    /// without a node in use return to the system when the budget has no room for something else.
    pub fn idle_bytes(&self) -> usize {
        self.anchor.memory.idle()
    }

    /// The memory budget in bytes.
    pub fn budget(&self) -> usize {
        self.anchor.memory.budget()
    }
}

/// One attempt.
struct Get<'a, 'k> {
    index: &'a Index,
    key: &'k [u8],
    guard: &'a Guard,
}

impl<'a> Task for Get<'a, '_> {
    type Output = Result<Option<Value<'a>>, Conflict>;

    #[inline(always)]
    fn run<S: Search>(self) -> Result<Option<Value<'a>>, Conflict> {
        self.index.try_get::<S>(self.key, self.guard)
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("items", &self.len())
            .field("memory_bytes", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}

/// Repeats an attempt that met a concurrent change.
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T, Conflict>) -> T {
    let backoff = Backoff::new();
    loop {
        if let Ok(done) = attempt() {
            return done;
        }
        backoff.snooze();
    }
}

/// A leaf, and the place that refers to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached<'g> {
    pub(crate) link: Link<'g>,
    pub(crate) node: Node<'g>,
    pub(crate) control: Control,
}

/// Descends from the root of a layer to the leaf that `bits` belongs to. `visit` sees the link to each interior node
/// and the link from it.
#[inline]
pub(crate) fn reach<'g, E: From<Conflict>>(
    link: Link<'g>,
    bits: u64,
    visit: impl FnMut(Link<'g>, Link<'g>) -> Result<(), E>,
) -> Result<Reached<'g>, E> {
    search(Reach { link, bits, visit, error: PhantomData })
}

struct Reach<'g, V, E> {
    link: Link<'g>,
    bits: u64,
    visit: V,
    error: PhantomData<E>,
}

impl<'g, V: FnMut(Link<'g>, Link<'g>) -> Result<(), E>, E: From<Conflict>> Task for Reach<'g, V, E> {
    type Output = Result<Reached<'g>, E>;

    #[inline(always)]
    fn run<S: Search>(self) -> Result<Reached<'g>, E> {
        reach_with::<S, E>(self.link, self.bits, self.visit)
    }
}

/// Descends as [`reach`] does, in a task.
#[inline(always)]
pub(crate) fn reach_with<'g, S: Search, E: From<Conflict>>(
    mut link: Link<'g>,
    bits: u64,
    mut visit: impl FnMut(Link<'g>, Link<'g>) -> Result<(), E>,
) -> Result<Reached<'g>, E> {
    let target = Target::new(bits);
    loop {
        let node = link.child()?;
        let control = node.stable()?;
        // The node was still the right one when its control word was loaded: a split would have changed the holder.
        link.check()?;
        if control.is_leaf() {
            return Ok(Reached { link, node, control });
        }
        let next = Link { holder: node, control, at: node.route::<S>(&target) };
        visit(link, next)?;
        link = next;
    }
}

const _: () = assert!(Shape::Interior.bytes() == 1088 && Shape::Leaf28.bytes() == 512);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Retired memory that waits for its epoch does not keep the rest mapped.
    #[test]
    fn a_dropped_index_keeps_no_memory() {
        let guard = crate::pin();
        let index = Index::new(1 << 20).expect("room");
        for number in 0..2000u64 {
            index.insert(&number.to_be_bytes(), b"more than eight bytes", &guard).expect("room");
        }
        for number in 0..2000u64 {
            assert!(index.remove(&number.to_be_bytes(), &guard).is_some());
        }
        let memory = Arc::downgrade(&index.anchor.memory);
        drop(index);
        assert_eq!(memory.strong_count(), 0);
        drop(guard);
        (0..10).for_each(|_| crate::pin().flush());
    }
}
