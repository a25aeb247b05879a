//! Leaves: up to 28 entries, ordered by slice.
//!
//! Word 0: control. Words 1 to 7 as bytes: 28 fingerprints, then 28 kinds. From word 8 on, a pair per entry: bits of
//! the slice, and a word that is the value, a block or the root of a layer, depending on the kind. A look-up reads the
//! header's line, and that of the pair.

use arrayvec::ArrayVec;

use super::compare::{Search, byte};
use super::{Conflict, Control, Locked, Node, Shape};
use crate::block::Block;
use crate::slice::{LONG, Slice};
use crate::value::{INLINE_BYTES_MAX, Value};

const TAG_WORDS: usize = 7;
const CAPACITY: usize = Shape::Leaf28.capacity();
const PAIRS: usize = 8;

/// The kind of an entry. The upper four bits: the class of the slice. The lower four, if the key ends in it: the length
/// of the value, or 9 if the value is in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(u8);

const IN_BLOCK: u8 = 9;

impl Kind {
    /// The key's suffix, and the value, are in a block.
    const LONG: Kind = Kind(LONG << 4);
    /// The word is the root of the tree with the rests of the keys after this slice.
    const LAYER: Kind = Kind(LONG << 4 | 1);

    fn class(self) -> u8 {
        self.0 >> 4
    }
}

/// The content of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'g> {
    /// The key ends in this slice.
    Value(Value<'g>),
    /// The suffix of the only key that continues after this slice, and its value.
    Long(Block<'g>),
    /// The rests of keys after this slice are in their own tree: see [`Link`](super::Link).
    Layer,
}

impl<'g> Entry<'g> {
    /// # Safety
    /// Kind and word belong to the same validated version, and the reader has been pinned since before.
    #[inline(always)]
    unsafe fn new(kind: Kind, word: u64) -> Entry<'g> {
        match kind {
            // SAFETY: as the caller promises, for this kind.
            Kind::LONG => Entry::Long(unsafe { Block::from_word(word) }),
            Kind::LAYER => Entry::Layer,
            Kind(short) if short & 15 == IN_BLOCK => {
                // SAFETY: as above.
                Entry::Value(Value::in_block(unsafe { Block::from_word(word) }))
            }
            Kind(short) => Entry::Value(Value::inline(word, short & 15)),
        }
    }

    /// The block of the entry, if it has one.
    pub(crate) fn block(self) -> Option<Block<'g>> {
        match self {
            Entry::Long(block) => Some(block),
            Entry::Value(value) => value.block(),
            Entry::Layer => None,
        }
    }
}

/// An entry in its form in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) slice: Slice,
    kind: Kind,
    word: u64,
}

impl Fixed {
    /// A value of at most 8 bytes, for a key that ends in its slice.
    pub(crate) fn inline(slice: Slice, value: &[u8]) -> Fixed {
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Fixed { slice, kind: Kind(slice.class << 4 | value.len() as u8), word: u64::from_le_bytes(bytes) }
    }

    /// A key or a value that needs a block.
    pub(crate) fn block(slice: Slice, block: Block<'_>) -> Fixed {
        let kind = if slice.class == LONG { Kind::LONG } else { Kind(slice.class << 4 | IN_BLOCK) };
        Fixed { slice, kind, word: block.to_word() }
    }

    pub(crate) fn layer(bits: u64, root: Node<'_>) -> Fixed {
        Fixed { slice: Slice { bits, class: LONG }, kind: Kind::LAYER, word: root.to_word() }
    }
}

pub(super) fn value_word(at: usize) -> usize {
    PAIRS + 2 * at + 1
}

fn slice_word(at: usize) -> usize {
    PAIRS + 2 * at
}

impl<'g> Node<'g> {
    /// The entries with this fingerprint, as bits. Reads only the header's line.
    #[inline(always)]
    pub(crate) fn candidates<S: Search>(self, control: Control, fingerprint: u8) -> u32 {
        S::equal_bytes(self.line(0), fingerprint) & ((1u32 << (control.count() % 32)) - 1)
    }

    /// Prefetches the line of an entry's pair.
    #[inline(always)]
    pub(crate) fn prefetch_pair(self, at: usize) {
        self.prefetch_word(slice_word(at));
    }

    /// The first candidate with this slice. The caller must validate.
    #[inline(always)]
    pub(crate) fn find_among(self, mut candidates: u32, slice: Slice) -> Option<usize> {
        while candidates != 0 {
            let at = candidates.trailing_zeros() as usize;
            if self.read(slice_word(at)) == slice.bits && self.kind(at).class() == slice.class {
                return Some(at);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// The entry with this slice. The caller must validate.
    #[inline(always)]
    pub(crate) fn find<S: Search>(self, control: Control, slice: Slice) -> Option<usize> {
        self.find_among(self.candidates::<S>(control, Slice::fingerprint(slice.bits)), slice)
    }

    #[inline(always)]
    fn kind(self, at: usize) -> Kind {
        Kind(byte(self.line(0), 8 + CAPACITY + at))
    }

    /// The entry `at`, if the leaf still matches `control`.
    #[inline(always)]
    pub(crate) fn entry(self, control: Control, at: usize) -> Result<Entry<'g>, Conflict> {
        let (kind, word) = (self.kind(at), self.read(value_word(at)));
        self.check(control)?;
        // SAFETY: both belong to the version of `control`, which was read under the guard of `'g`.
        Ok(unsafe { Entry::new(kind, word) })
    }

    fn fixed(self, at: usize) -> Fixed {
        let kind = self.kind(at);
        let slice = Slice { bits: self.read(slice_word(at)), class: kind.class() };
        Fixed { slice, kind, word: self.read(value_word(at)) }
    }

    /// How many entries come before `slice`. The caller must validate.
    pub(crate) fn rank(self, control: Control, slice: Slice) -> usize {
        let (mut low, mut high) = (0, control.count());
        while low < high {
            let middle = (low + high) / 2;
            let there = Slice { bits: self.read(slice_word(middle)), class: self.kind(middle).class() };
            if there < slice { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// All entries in their form in the leaf, if the leaf still matches `control`.
    pub(crate) fn entries(self, control: Control) -> Result<ArrayVec<Fixed, CAPACITY>, Conflict> {
        let entries = (0..control.count()).map(|at| self.fixed(at)).collect();
        self.check(control).map(|()| entries)
    }

    /// A private copy of the leaf, if it still matches `control`.
    pub(crate) fn copy(self, control: Control) -> Result<LeafCopy<'g>, Conflict> {
        let mut copy = LeafCopy::empty(self, control);
        copy.replace(self, control).map(|()| copy)
    }
}

/// A copy of a leaf as of one moment, for scans.
#[derive(Debug, Clone)]
pub(crate) struct LeafCopy<'g> {
    pub(crate) node: Node<'g>,
    pub(crate) control: Control,
    tags: [u8; 8 * TAG_WORDS],
    pairs: [[u64; 2]; CAPACITY],
}

impl<'g> LeafCopy<'g> {
    /// A copy without entries.
    #[inline(always)]
    pub(crate) fn empty(node: Node<'g>, control: Control) -> LeafCopy<'g> {
        LeafCopy { node, control: control.with_count(0), tags: [0; 8 * TAG_WORDS], pairs: [[0; 2]; CAPACITY] }
    }

    /// Copies another leaf into this one, if that still matches `control`. Otherwise the copy is empty.
    pub(crate) fn replace(&mut self, node: Node<'g>, control: Control) -> Result<(), Conflict> {
        (self.node, self.control) = (node, control.with_count(0));
        for (at, word) in self.tags.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = node.read(1 + at).to_le_bytes();
        }
        for (at, pair) in self.pairs[..control.count()].iter_mut().enumerate() {
            *pair = [node.read(slice_word(at)), node.read(value_word(at))];
        }
        node.check(control)?;
        self.control = control;
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.control.count()
    }

    #[inline(always)]
    fn kind(&self, at: usize) -> Kind {
        Kind(self.tags[CAPACITY + at])
    }

    #[inline(always)]
    pub(crate) fn slice(&self, at: usize) -> Slice {
        Slice { bits: self.pairs[at][0], class: self.kind(at).class() }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, at: usize) -> Entry<'g> {
        assert!(at < self.count(), "the leaf has no such entry");
        // SAFETY: the copy was validated when it was made, under the guard of `'g`, and all entries below the count
        // were read.
        unsafe { Entry::new(self.kind(at), self.pairs[at][1]) }
    }

    /// The slice and the value of an entry whose key ends in its slice and whose value is in the leaf.
    #[inline(always)]
    pub(crate) fn inline(&self, at: usize) -> Option<(Slice, [u8; INLINE_BYTES_MAX], usize)> {
        let (kind, [bits, word]) = (self.kind(at), self.pairs[at]);
        let (class, len) = (kind.class(), kind.0 & 15);
        let is_inline = class != LONG && len != IN_BLOCK;
        is_inline.then(|| (Slice { bits, class }, word.to_le_bytes(), usize::from(len)))
    }

    pub(crate) fn fingerprint(&self, at: usize) -> u8 {
        self.tags[at]
    }

    /// How many entries come before `slice`.
    pub(crate) fn rank(&self, slice: Slice) -> usize {
        (0..self.count()).take_while(|&at| self.slice(at) < slice).count()
    }
}

impl Locked<'_> {
    /// Inserts an entry before entry `at`. There must be room.
    pub(crate) fn insert(&mut self, at: usize, entry: Fixed) {
        let count = self.count();
        for from in (at..count).rev() {
            self.copy_pair(from, from + 1);
        }
        self.edit_tags(|fingerprints, kinds| {
            fingerprints.copy_within(at..count, at + 1);
            kinds.copy_within(at..count, at + 1);
        });
        self.put(at, entry);
        self.changed(count + 1);
    }

    /// Overwrites an entry.
    pub(crate) fn set(&mut self, at: usize, entry: Fixed) {
        self.put(at, entry);
        self.changed(self.count());
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let count = self.count();
        for to in at..count - 1 {
            self.copy_pair(to + 1, to);
        }
        self.edit_tags(|fingerprints, kinds| {
            fingerprints.copy_within(at + 1..count, at);
            kinds.copy_within(at + 1..count, at);
        });
        self.changed(count - 1);
    }

    /// Appends entries. There must be room.
    pub(crate) fn append(&mut self, entries: &[Fixed]) {
        let count = self.count();
        for (at, &entry) in (count..).zip(entries) {
            self.put(at, entry);
        }
        self.changed(count + entries.len());
    }

    pub(crate) fn own_entries(&self) -> ArrayVec<Fixed, CAPACITY> {
        (0..self.count()).map(|at| self.node.fixed(at)).collect()
    }

    /// Keeps only the first `count` entries.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.changed(count);
    }

    fn copy_pair(&mut self, from: usize, to: usize) {
        self.store(slice_word(to), self.node.read(slice_word(from)));
        self.store(value_word(to), self.node.read(value_word(from)));
    }

    fn put(&mut self, at: usize, entry: Fixed) {
        self.store(slice_word(at), entry.slice.bits);
        self.store(value_word(at), entry.word);
        self.edit_tags(|fingerprints, kinds| {
            fingerprints[at] = Slice::fingerprint(entry.slice.bits);
            kinds[at] = entry.kind.0;
        });
    }

    fn edit_tags(&mut self, edit: impl FnOnce(&mut [u8], &mut [u8])) {
        let mut bytes = [0; 8 * TAG_WORDS];
        for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = self.node.read(1 + at).to_le_bytes();
        }
        let (fingerprints, kinds) = bytes.split_at_mut(CAPACITY);
        edit(fingerprints, kinds);
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            self.store(1 + at, u64::from_le_bytes(*word));
        }
    }
}
