//! Writes: insertion, removal, and how nodes grow and split.
#![allow(unsafe_code)]

use arrayvec::ArrayVec;
use crossbeam_utils::Backoff;

use crate::block::Block;
use crate::error::{Refused, check_lengths};
use crate::guard::Guard;
use crate::index::{Index, Reached, reach, retry};
use crate::memory::{Full, Memory};
use crate::node::{Child, Conflict, Control, Entry, Fixed, Fresh, Link, Locked, Node, Scalar, Shape, Target};
use crate::slice::{LONG, Slice};
use crate::tidy::LEAF_FEW;
use crate::value::{INLINE_BYTES_MAX, Value};

/// Why an attempt ended without the write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    Conflict,
    /// The tree was prepared for the write, which must start again.
    Prepared,
    Full,
}

impl From<Conflict> for Stop {
    fn from(_: Conflict) -> Stop {
        Stop::Conflict
    }
}

impl From<Full> for Stop {
    fn from(_: Full) -> Stop {
        Stop::Full
    }
}

impl Index {
    /// Sets the value of a key and returns the value it had.
    ///
    /// # Errors
    /// [`Refused`] says what is too long, or that the memory budget is used up; then nothing has changed.
    pub fn insert<'a>(&'a self, key: &[u8], value: &[u8], guard: &'a Guard) -> Result<Option<Value<'a>>, Refused> {
        check_lengths(key, value)?;
        let (backoff, mut ready) = (Backoff::new(), Ready::default());
        loop {
            match self.try_insert(key, value, guard, &mut ready) {
                Ok(old) => return Ok(old),
                Err(Stop::Conflict) => backoff.snooze(),
                Err(Stop::Prepared) => {}
                Err(Stop::Full) => return Err(Refused::Full { budget: self.budget() }),
            }
        }
    }

    fn try_insert<'a>(
        &'a self,
        key: &[u8],
        value: &[u8],
        guard: &'a Guard,
        ready: &mut Ready<'a>,
    ) -> Result<Option<Value<'a>>, Stop> {
        let (mut link, mut rest) = (self.anchor.link(guard), key);
        loop {
            let slice = Slice::of(rest);
            let leaf = reach(link, slice.bits, |link, Link { holder: node, control, .. }| {
                let split =
                    if control.is_full() { self.split_interior(link, node, control, slice.bits) } else { Ok(()) };
                // The write itself may still have enough memory.
                if matches!(split, Err(Stop::Full)) { Ok(()) } else { split }
            })?;
            let Reached { node, control, .. } = leaf;
            let Some(at) = node.find::<Scalar>(control, slice) else {
                ready.draft(&self.anchor.memory, rest, value)?;
                return self.insert_new(leaf, slice, guard, ready).map(|()| None);
            };
            match node.entry(control, at)? {
                Entry::Value(old) => {
                    ready.draft(&self.anchor.memory, rest, value)?;
                    return self.overwrite(leaf, at, guard, ready).map(|()| Some(old));
                }
                Entry::Long(block) if block.suffix() == &rest[8..] => {
                    ready.draft(&self.anchor.memory, rest, value)?;
                    return self.overwrite(leaf, at, guard, ready).map(|()| Some(Value::in_block(block)));
                }
                Entry::Long(block) => {
                    ready.chain(&self.anchor.memory, block, &rest[8..], value)?;
                    return self.deepen(leaf, at, slice, block, guard, ready).map(|()| None);
                }
                Entry::Layer => (link, rest) = (Link { holder: node, control, at }, &rest[8..]),
            }
        }
    }

    /// Inserts the draft; the leaf has no entry for its slice.
    fn insert_new(&self, leaf: Reached<'_>, slice: Slice, guard: &Guard, ready: &mut Ready<'_>) -> Result<(), Stop> {
        let Reached { node, control, .. } = leaf;
        let rank = node.rank(control, slice);
        if control.is_full() {
            return Err(self.make_room(leaf, rank, guard));
        }
        // If locking succeeds, all reads of the leaf were valid: the rank, and that the key is absent.
        let mut leaf = node.lock(control)?;
        leaf.insert(rank, ready.keep_draft());
        drop(leaf);
        self.items.add(1);
        Ok(())
    }

    /// Overwrites an entry with the draft.
    fn overwrite(&self, leaf: Reached<'_>, at: usize, guard: &Guard, ready: &mut Ready<'_>) -> Result<(), Stop> {
        let old = leaf.node.entry(leaf.control, at)?.block();
        let mut leaf = leaf.node.lock(leaf.control)?;
        leaf.set(at, ready.keep_draft());
        drop(leaf);
        if let Some(block) = old {
            // SAFETY: its only reference was overwritten under the lock of the leaf, in the version in which it was
            // read.
            unsafe { block.retire(&self.anchor.memory, guard) };
        }
        Ok(())
    }

    /// Removes a key and returns the value it had.
    pub fn remove<'a>(&'a self, key: &[u8], guard: &'a Guard) -> Option<Value<'a>> {
        retry(|| self.try_remove(key, guard))
    }

    fn try_remove<'a>(&'a self, key: &[u8], guard: &'a Guard) -> Result<Option<Value<'a>>, Conflict> {
        let (mut link, mut rest) = (self.anchor.link(guard), key);
        loop {
            let slice = Slice::of(rest);
            let leaf = reach(link, slice.bits, |_, _| Ok::<_, Conflict>(()))?;
            let Reached { node, control, .. } = leaf;
            let Some(at) = node.find::<Scalar>(control, slice) else {
                return node.check(control).map(|()| None);
            };
            let old = match node.entry(control, at)? {
                Entry::Layer => {
                    (link, rest) = (Link { holder: node, control, at }, &rest[8..]);
                    continue;
                }
                Entry::Value(value) => value,
                Entry::Long(block) if block.suffix() == &rest[8..] => Value::in_block(block),
                Entry::Long(_) => return Ok(None),
            };
            self.remove_entry(leaf, at, key, guard)?;
            return Ok(Some(old));
        }
    }

    fn remove_entry(&self, leaf: Reached<'_>, at: usize, key: &[u8], guard: &Guard) -> Result<(), Conflict> {
        let old = leaf.node.entry(leaf.control, at)?.block();
        let mut locked = leaf.node.lock(leaf.control)?;
        locked.remove(at);
        let count = locked.count();
        drop(locked);
        self.items.add(-1);
        if let Some(block) = old {
            // SAFETY: its only reference was removed under the lock of the leaf, in the version in which it was read.
            unsafe { block.retire(&self.anchor.memory, guard) };
        }
        if count == 0 || count <= LEAF_FEW && !leaf.link.control.is_leaf() {
            self.tidy(key, guard);
        }
        Ok(())
    }

    /// Makes room in a full leaf, for an entry that comes after `rank` others.
    #[cold]
    fn make_room(&self, leaf: Reached<'_>, rank: usize, guard: &Guard) -> Stop {
        let made = match leaf.control.shape().larger() {
            Some(shape) => self.grow(leaf, shape, guard),
            None => self.split_leaf(leaf, rank),
        };
        made.err().unwrap_or(Stop::Prepared)
    }

    /// Replaces a leaf by a larger one.
    fn grow(&self, leaf: Reached<'_>, shape: Shape, guard: &Guard) -> Result<(), Stop> {
        let entries = leaf.node.entries(leaf.control)?;
        let larger = Node::create(&self.anchor.memory, shape, 0)?;
        let mut holder = leaf.link.holder.lock(leaf.link.control)?;
        let old = leaf.node.lock(leaf.control)?;
        let mut larger = larger.keep();
        larger.append(&entries);
        holder.set_child(leaf.link.at, larger.node());
        drop((larger, holder));
        // SAFETY: the holder refers to the larger leaf now.
        unsafe { old.retire(&self.anchor.memory, guard) };
        Ok(())
    }

    /// Moves the upper entries to a new leaf. Entries of one slice stay together.
    fn split_leaf(&self, leaf: Reached<'_>, rank: usize) -> Result<(), Stop> {
        let Reached { link, node, control } = leaf;
        let entries = node.entries(control)?;
        // Keys that arrive in order leave full leaves behind.
        let wanted = if rank == entries.len() { rank - 1 } else { entries.len() / 2 };
        let begins = |at: &usize| entries[at - 1].slice.bits != entries[*at].slice.bits;
        let at = (1..=wanted).rev().find(begins).or_else(|| (wanted + 1..entries.len()).find(begins));
        let at = at.expect("a slice has ten entries at most, fewer than a full leaf");
        let mut split = Split::lock(&self.anchor.memory, link, node, control, Shape::Leaf28)?;
        split.right.append(&entries[at..]);
        split.left.truncate(at);
        split.attach(link.at, entries[at].slice.bits);
        Ok(())
    }

    /// Moves the upper children to a new node. `bits` is the target of the descent.
    #[cold]
    fn split_interior(&self, link: Link<'_>, node: Node<'_>, control: Control, bits: u64) -> Result<(), Stop> {
        let children = node.children(control)?;
        let last = children.len() - 1;
        // As for leaves, but each half keeps enough children for routing.
        let at = if node.route::<Scalar>(&Target::new(bits)) == last { last - 7 } else { children.len() / 2 };
        let mut split = Split::lock(&self.anchor.memory, link, node, control, Shape::Interior)?;
        split.right.set_children(&children[at..]);
        split.left.set_children(&children[..at]);
        split.attach(link.at, children[at].least);
        Err(Stop::Prepared)
    }

    /// Replaces the block of a slice that a second long key shares by layers for both keys.
    #[cold]
    fn deepen(
        &self,
        leaf: Reached<'_>,
        at: usize,
        slice: Slice,
        old: Block<'_>,
        guard: &Guard,
        ready: &mut Ready<'_>,
    ) -> Result<(), Stop> {
        let mut leaf = leaf.node.lock(leaf.control)?;
        let chain = ready.keep_chain();
        leaf.set(at, Fixed::layer(slice.bits, chain.root()));
        drop(leaf);
        self.layers.add(chain.nodes.len() as isize);
        chain.keep();
        self.items.add(1);
        // SAFETY: its only reference was overwritten under the lock of the leaf, in the version in which it was read.
        unsafe { old.retire(&self.anchor.memory, guard) };
        Ok(())
    }
}

/// A node being split, with all nodes involved locked.
struct Split<'g> {
    holder: Locked<'g>,
    left: Locked<'g>,
    right: Locked<'g>,
    /// A node above both, if the node was the root of its layer.
    top: Option<Locked<'g>>,
}

impl<'g> Split<'g> {
    fn lock(
        memory: &'g Memory,
        link: Link<'g>,
        node: Node<'g>,
        control: Control,
        shape: Shape,
    ) -> Result<Split<'g>, Stop> {
        if !link.control.is_leaf() && link.control.is_full() {
            // It would have been split on the way down if there had been memory.
            return Err(Stop::Full);
        }
        let right = Node::create(memory, shape, control.level())?;
        let above = control.level() + 1;
        let top = link.control.is_leaf().then(|| Node::create(memory, Shape::Interior, above)).transpose()?;
        let holder = link.holder.lock(link.control)?;
        let left = node.lock(control)?;
        Ok(Split { holder, left, right: right.keep(), top: top.map(Fresh::keep) })
    }

    /// Makes the holder refer to both halves. The holder has room: `lock` has ensured that.
    fn attach(mut self, at: usize, least: u64) {
        let right = Child::new(least, self.right.node());
        match &mut self.top {
            Some(top) => {
                top.set_children(&[Child::new(0, self.left.node()), right]);
                self.holder.set_child(at, top.node());
            }
            None => self.holder.insert_child(at, right),
        }
        // The holder last: a thread that passes it finds the halves unlocked.
        drop((self.right, self.left, self.top, self.holder));
    }
}

/// Objects that an insertion has made outside the tree. They are kept from one attempt to the next, so that other
/// writers of the same leaf cannot make the insertion start over forever.
#[derive(Default)]
struct Ready<'a> {
    /// With the length of the key's rest at that time.
    draft: Option<(usize, Draft<'a>)>,
    /// With the block that it replaces. The guard keeps the block, so no other block has its address.
    chain: Option<(Block<'a>, Chain<'a>)>,
}

impl<'a> Ready<'a> {
    /// Makes the entry of the new key, unless it exists.
    fn draft(&mut self, memory: &'a Memory, rest: &[u8], value: &[u8]) -> Result<(), Full> {
        if self.draft.as_ref().is_none_or(|(left, _)| *left != rest.len()) {
            *self = Ready::default();
            self.draft = Some((rest.len(), Draft::new(memory, rest, value)?));
        }
        Ok(())
    }

    /// Returns the entry, which now belongs to a leaf.
    fn keep_draft(&mut self) -> Fixed {
        self.draft.take().expect("it was made").1.keep()
    }

    /// Makes the layers for the key of a block and a new one, unless they exist.
    fn chain(&mut self, memory: &'a Memory, old: Block<'a>, new: &[u8], value: &[u8]) -> Result<(), Full> {
        if self.chain.as_ref().is_none_or(|(block, _)| *block != old) {
            *self = Ready::default();
            self.chain = Some((old, Chain::new(memory, old, new, value)?));
        }
        Ok(())
    }

    fn keep_chain(&mut self) -> Chain<'a> {
        self.chain.take().expect("it was made").1
    }
}

/// An entry that is not in the tree yet. Its block is freed unless it is kept.
struct Draft<'m> {
    memory: &'m Memory,
    entry: Fixed,
    block: Option<Block<'m>>,
}

impl<'m> Draft<'m> {
    fn new(memory: &'m Memory, rest: &[u8], value: &[u8]) -> Result<Draft<'m>, Full> {
        let slice = Slice::of(rest);
        if slice.class != LONG && value.len() <= INLINE_BYTES_MAX {
            return Ok(Draft { memory, entry: Fixed::inline(slice, value), block: None });
        }
        let block = Block::new(memory, rest.get(8..).unwrap_or_default(), value)?;
        Ok(Draft { memory, entry: Fixed::block(slice, block), block: Some(block) })
    }

    /// Returns the entry, which now belongs to a leaf.
    fn keep(mut self) -> Fixed {
        self.block = None;
        self.entry
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            // SAFETY: it was never put into a leaf.
            unsafe { block.free(self.memory) };
        }
    }
}

/// The layers that two long keys share, and both keys; freed unless it is kept.
struct Chain<'m> {
    memory: &'m Memory,
    /// From the innermost layer outwards.
    nodes: Vec<Node<'m>>,
    innermost: [Draft<'m>; 2],
}

impl<'m> Chain<'m> {
    fn new(memory: &'m Memory, old: Block<'_>, new: &[u8], value: &[u8]) -> Result<Chain<'m>, Full> {
        let suffix = old.suffix();
        // Equal slices in which neither key ends.
        let common = |(a, b): &(&[u8], &[u8])| a == b;
        let longest = (suffix.len().min(new.len()).max(1) - 1) / 8;
        let depth = suffix.chunks(8).zip(new.chunks(8)).take(longest).take_while(common).count();
        let mut innermost =
            [Draft::new(memory, &suffix[8 * depth..], old.value())?, Draft::new(memory, &new[8 * depth..], value)?];
        innermost.sort_unstable_by_key(|draft| draft.entry.slice);
        let mut entries = ArrayVec::<Fixed, 2>::from(innermost.each_ref().map(|draft| draft.entry));
        let mut chain = Chain { memory, nodes: Vec::with_capacity(depth + 1), innermost };
        for above in (0..=depth).rev() {
            let mut leaf = Node::create(memory, Shape::Leaf4, 0)?.keep();
            leaf.append(&entries);
            chain.nodes.push(leaf.node());
            if above > 0 {
                entries.clear();
                entries.push(Fixed::layer(Slice::of(&suffix[8 * (above - 1)..]).bits, leaf.node()));
            }
        }
        Ok(chain)
    }

    /// The root of the outermost layer.
    fn root(&self) -> Node<'m> {
        *self.nodes.last().expect("there is one layer at least")
    }

    /// Records that a leaf refers to the root now.
    fn keep(mut self) {
        self.nodes.clear();
        self.innermost.iter_mut().for_each(|draft| draft.block = None);
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        for node in self.nodes.drain(..) {
            // SAFETY: no node of the tree ever referred to it.
            unsafe { node.free(self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Even if others write to the same leaf all the time, an insertion makes its layers only once.
    #[test]
    fn layers_are_made_once_for_all_attempts() {
        let index = Index::new(1 << 20).expect("room");
        let (guard, memory) = (crate::pin(), &index.anchor.memory);
        let [old, new] = [1, 2].map(|last| [vec![b'k'; 5000], vec![last]].concat());
        let block = Block::new(memory, &old, b"old").expect("room");
        let mut ready = Ready::default();
        let mut roots = Vec::new();
        for _ in 0..3 {
            ready.chain(memory, block, &new, b"new").expect("room");
            roots.push(ready.chain.as_ref().expect("it was made").1.root());
            assert_eq!(memory.nodes(Shape::Leaf4), 2 + 5000 / 8 + 1);
        }
        assert!(roots.windows(2).all(|pair| pair[0] == pair[1]));
        drop(ready);
        assert_eq!(memory.nodes(Shape::Leaf4), 2);
        // SAFETY: it was never put into a leaf.
        unsafe { block.retire(memory, &guard) };
    }
}
