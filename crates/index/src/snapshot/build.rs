//! Fills an empty index with items in key order, node by node: no descent, no lock, no split.
//!
//! Keys that arrive in order touch only the right edge of the tree. So for each layer the builder keeps what is still
//! open there: the entries of its last leaf, and the nodes that have no holder yet. An item waits for the next one,
//! because that decides whether the two share a layer.
#![allow(unsafe_code)]

use arrayvec::ArrayVec;
use thiserror::Error;

use crate::block::Block;
use crate::error::{Refused, check_lengths};
use crate::guard::{Guard, pin};
use crate::index::{Index, retry};
use crate::memory::Memory;
use crate::node::{Child, Conflict, Entry, Fixed, Link, Node, Shape};
use crate::slice::{LONG, Slice};
use crate::value::INLINE_BYTES_MAX;

const LEAF: usize = Shape::Leaf28.capacity();
const INTERIOR: usize = Shape::Interior.capacity();
/// Nodes of a level that wait for a holder: enough that none is left over as an only child.
const WAITING_MAX: usize = 2 * INTERIOR;

/// Why an index was not built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A key is not above the one before it.
    #[error("the keys are not in ascending order")]
    OutOfOrder,
    /// An item was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The index has items already.
    #[error("only an empty index can be built, and this one has items")]
    NotEmpty,
}

/// Fills an empty index with items in ascending key order, several times faster than insertions in that order. All
/// leaves but the last of each layer are full. Readers see nothing before [`Builder::finish`], and then everything.
/// Dropping it leaves the index empty.
///
/// ```
/// use dunlin_index::{Builder, Index, pin};
///
/// let index = Index::new(1 << 20)?;
/// let mut builder = Builder::new(&index);
/// for number in 0u64..1000 {
///     builder.push(&number.to_be_bytes(), b"value")?;
/// }
/// assert_eq!(builder.finish()?, 1000);
/// assert_eq!(index.get(&7u64.to_be_bytes(), &pin()).as_deref(), Some(&b"value"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder<'a> {
    index: &'a Index,
    memory: &'a Memory,
    /// The open layers; each stands below the last entry of the one before. Empty before the first item.
    layers: Vec<Open<'a>>,
    /// The last item, which is in no layer yet.
    key: Vec<u8>,
    value: Vec<u8>,
    /// Items, including the last.
    items: usize,
    /// Layers below the first that are complete.
    closed: usize,
    /// The root of the first layer, once it is complete.
    root: Option<Node<'a>>,
    /// Why it can go no further.
    failure: Option<BuildError>,
}

/// The right edge of a layer.
#[derive(Default)]
struct Open<'a> {
    /// The entries of the last leaf.
    entries: Vec<(Slice, Content<'a>)>,
    /// By level, leaves first: nodes that no node refers to yet, and the smallest slice of each.
    levels: Vec<Vec<(u64, Node<'a>)>>,
}

/// What an entry refers to, which the builder owns until the entry is in a leaf.
#[derive(Clone, Copy)]
enum Content<'a> {
    Inline([u8; INLINE_BYTES_MAX], u8),
    Block(Block<'a>),
    Layer(Node<'a>),
}

fn fixed(&(slice, content): &(Slice, Content<'_>)) -> Fixed {
    match content {
        Content::Inline(bytes, len) => Fixed::inline(slice, &bytes[..usize::from(len)]),
        Content::Block(block) => Fixed::block(slice, block),
        Content::Layer(root) => Fixed::layer(slice.bits, root),
    }
}

/// How many layers two keys have in common below the first.
fn layers_in_common(one: &[u8], other: &[u8]) -> usize {
    let most = one.len().min(other.len()).saturating_sub(1) / 8;
    if most == 0 {
        return 0;
    }
    let (one, other) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    one.iter().zip(other).take(most).take_while(|(one, other)| one == other).count()
}

impl<'a> Builder<'a> {
    /// Begins to fill an index. Nobody else may write to it meanwhile.
    pub fn new(index: &'a Index) -> Builder<'a> {
        let memory = &*index.anchor.memory;
        let (layers, key, value) = (Vec::new(), Vec::new(), Vec::new());
        Builder { index, memory, layers, key, value, items: 0, closed: 0, root: None, failure: None }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`BuildError`]. Nothing can be added afterwards: all further calls return the same error.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), BuildError> {
        self.guarded(|builder| {
            check_lengths(key, value)?;
            if builder.items > 0 {
                if builder.key.as_slice() >= key {
                    return Err(BuildError::OutOfOrder);
                }
                builder.place(layers_in_common(&builder.key, key))?;
            }
            builder.items += 1;
            builder.key.clear();
            builder.key.extend_from_slice(key);
            builder.value.clear();
            builder.value.extend_from_slice(value);
            Ok(())
        })
    }

    /// Puts everything into the index, and returns the number of items.
    ///
    /// # Errors
    /// [`BuildError`]. The index is as it was.
    pub fn finish(mut self) -> Result<usize, BuildError> {
        self.guarded(|builder| {
            if builder.items == 0 {
                return Ok(());
            }
            builder.place(0)?;
            builder.root = Some(builder.close()?);
            builder.attach(&pin())
        })?;
        Ok(self.items)
    }

    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> Result<(), BuildError>) -> Result<(), BuildError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        work(self).inspect_err(|failure| self.failure = Some(*failure))
    }

    fn full(&self) -> BuildError {
        Refused::Full { budget: self.index.budget() }.into()
    }

    /// Puts the last item into its layer. It has `common` layers below the first in common with the next item: those
    /// stay open.
    fn place(&mut self, common: usize) -> Result<(), BuildError> {
        let depth = common.max(self.layers.len().saturating_sub(1));
        while self.layers.len() <= depth {
            self.layers.push(Open::default());
        }
        let rest = &self.key[8 * depth..];
        let slice = Slice::of(rest);
        let content = if slice.class != LONG && self.value.len() <= INLINE_BYTES_MAX {
            let mut bytes = [0; INLINE_BYTES_MAX];
            bytes[..self.value.len()].copy_from_slice(&self.value);
            Content::Inline(bytes, self.value.len() as u8)
        } else {
            let block = Block::new(self.memory, rest.get(8..).unwrap_or_default(), &self.value);
            Content::Block(block.map_err(|_| self.full())?)
        };
        self.add(slice, content)?;
        while self.layers.len() > common + 1 {
            let root = self.close()?;
            self.closed += 1;
            let at = 8 * (self.layers.len() - 1);
            let bits = Slice::of(&self.key[at..]).bits;
            self.add(Slice { bits, class: LONG }, Content::Layer(root))?;
        }
        Ok(())
    }

    /// Adds an entry to the last layer.
    fn add(&mut self, slice: Slice, content: Content<'a>) -> Result<(), BuildError> {
        // First of all, so that the builder owns it whatever fails.
        let full = self.full();
        let open = self.layers.last_mut().expect("there is a layer when there is an entry");
        open.entries.push((slice, content));
        if open.entries.len() <= LEAF {
            return Ok(());
        }
        // Entries of one slice stay together; there are at most ten.
        let begins = open.entries.iter().position(|(there, _)| there.bits == slice.bits).unwrap_or(LEAF);
        open.end_leaf(begins, Shape::Leaf28, self.memory).ok_or(full)
    }

    /// Ends the last layer, and returns its root.
    fn close(&mut self) -> Result<Node<'a>, BuildError> {
        let full = self.full();
        let open = self.layers.last_mut().expect("there is a layer to close");
        let root = open.end(self.memory).ok_or(full)?;
        self.layers.pop();
        Ok(root)
    }

    /// Makes the anchor refer to the root.
    fn attach(&mut self, guard: &Guard) -> Result<(), BuildError> {
        let root = self.root.expect("it was made just now");
        let index = self.index;
        let old = retry(|| {
            let link = index.anchor.link(guard);
            let old = link.child()?;
            let control = old.stable()?;
            link.check()?;
            if !control.is_leaf() || control.count() > 0 {
                return Ok(None);
            }
            let mut holder = link.holder.lock(link.control)?;
            let old = old.lock(control)?;
            holder.set_child(link.at, root);
            Ok::<_, Conflict>(Some(old))
        });
        let old = old.ok_or(BuildError::NotEmpty)?;
        self.root = None;
        index.items.add(self.items as isize);
        index.layers.add(self.closed as isize);
        // SAFETY: the anchor refers to the new root now.
        unsafe { old.retire(&index.anchor.memory, guard) };
        Ok(())
    }
}

impl<'a> Open<'a> {
    /// Moves the first `count` entries to a leaf. `None` if there is no memory for it; then nothing has changed.
    fn end_leaf(&mut self, count: usize, shape: Shape, memory: &'a Memory) -> Option<()> {
        let mut leaf = Node::create(memory, shape, 0).ok()?.keep();
        leaf.append(&self.entries[..count].iter().map(fixed).collect::<ArrayVec<_, LEAF>>());
        // Everything below the second leaf of a layer is in the first.
        let least = if self.levels.is_empty() { 0 } else { self.entries[0].0.bits };
        let node = leaf.node();
        drop(leaf);
        self.entries.drain(..count);
        self.add_node(0, least, node, memory)
    }

    fn add_node(&mut self, level: usize, least: u64, node: Node<'a>, memory: &'a Memory) -> Option<()> {
        if self.levels.len() == level {
            self.levels.push(Vec::with_capacity(WAITING_MAX));
        }
        self.levels[level].push((least, node));
        if self.levels[level].len() < WAITING_MAX { Some(()) } else { self.end_interior(level, INTERIOR, memory) }
    }

    /// Moves the first `count` nodes of a level to a holder. `None` if there is no memory for it.
    fn end_interior(&mut self, level: usize, count: usize, memory: &'a Memory) -> Option<()> {
        let mut interior = Node::create(memory, Shape::Interior, level + 1).ok()?.keep();
        let children = self.levels[level][..count].iter().map(|&(least, node)| Child::new(least, node));
        interior.set_children(&children.collect::<ArrayVec<_, INTERIOR>>());
        let node = interior.node();
        drop(interior);
        let least = self.levels[level][0].0;
        self.levels[level].drain(..count);
        self.add_node(level + 1, least, node, memory)
    }

    /// Moves everything to nodes, and returns the root, which the caller owns. `None` if there is no memory for it.
    fn end(&mut self, memory: &'a Memory) -> Option<Node<'a>> {
        if !self.entries.is_empty() {
            let shape = match self.entries.len() {
                ..=4 if self.levels.is_empty() => Shape::Leaf4,
                ..=12 if self.levels.is_empty() => Shape::Leaf12,
                _ => Shape::Leaf28,
            };
            self.end_leaf(self.entries.len(), shape, memory)?;
        }
        let mut level = 0;
        while level + 1 < self.levels.len() || self.levels[level].len() > 1 {
            // A level below another one has at least half of what may wait.
            let waiting = self.levels[level].len();
            if waiting > INTERIOR {
                self.end_interior(level, waiting / 2, memory)?;
            }
            self.end_interior(level, self.levels[level].len(), memory)?;
            level += 1;
        }
        self.levels[level].pop().map(|(_, root)| root)
    }
}

impl Drop for Builder<'_> {
    fn drop(&mut self) {
        let mut nodes: Vec<Node<'_>> = self.root.take().into_iter().collect();
        for Open { entries, levels } in std::mem::take(&mut self.layers) {
            for (_, content) in entries {
                match content {
                    Content::Inline(..) => {}
                    // SAFETY: it is in no leaf, and nobody else knows it.
                    Content::Block(block) => unsafe { block.free(self.memory) },
                    Content::Layer(root) => nodes.push(root),
                }
            }
            nodes.extend(levels.into_iter().flatten().map(|(_, node)| node));
        }
        while let Some(node) = nodes.pop() {
            // Nobody else knows the node, so nothing in it changes.
            if let Ok(control) = node.stable() {
                let child = |at| Link { holder: node, control, at }.child().ok();
                if !control.is_leaf() {
                    nodes.extend((0..control.count()).filter_map(child));
                } else if let Ok(leaf) = node.copy(control) {
                    for at in 0..leaf.count() {
                        match leaf.entry(at) {
                            Entry::Layer => nodes.extend(child(at)),
                            entry => {
                                if let Some(block) = entry.block() {
                                    // SAFETY: only this leaf refers to it, and the leaf is freed now.
                                    unsafe { block.free(self.memory) };
                                }
                            }
                        }
                    }
                }
            }
            // SAFETY: it was never linked to the tree, and its only holder is gone.
            unsafe { node.free(self.memory) };
        }
    }
}

impl std::fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("items", &self.items).field("failure", &self.failure).finish_non_exhaustive()
    }
}
