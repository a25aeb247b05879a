//! The control word of a node: lock, version, and everything needed before another word of the node is read.

/// Sizes of nodes. A leaf that is the root of a layer starts small and grows; all others have 28 entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Leaf4,
    Leaf12,
    Leaf28,
    Interior,
}

impl Shape {
    pub(crate) const ALL: [Shape; 4] = [Shape::Leaf4, Shape::Leaf12, Shape::Leaf28, Shape::Interior];

    /// Entries of a leaf, children of an interior node.
    pub(crate) const fn capacity(self) -> usize {
        match self {
            Shape::Leaf4 => 4,
            Shape::Leaf12 => 12,
            Shape::Leaf28 => 28,
            Shape::Interior => 64,
        }
    }

    /// Whole cache lines: the header's line, then four pairs a line, or eight lines of keys and eight of children.
    pub(crate) const fn words(self) -> usize {
        8 + 2 * self.capacity()
    }

    pub(crate) const fn bytes(self) -> usize {
        8 * self.words()
    }

    /// The next larger leaf.
    pub(crate) fn larger(self) -> Option<Shape> {
        match self {
            Shape::Leaf4 => Some(Shape::Leaf12),
            Shape::Leaf12 => Some(Shape::Leaf28),
            Shape::Leaf28 | Shape::Interior => None,
        }
    }
}

/// Bit 0: locked; 1: obsolete; 2 to 8: entries or children; 9 and 10: shape; 11 to 16: level; 17 to 63: version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control(pub(super) u64);

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const COUNT_SHIFT: u32 = 2;
const COUNT_MASK: u64 = 0x7f;
const SHAPE_SHIFT: u32 = 9;
const LEVEL_SHIFT: u32 = 11;
const LEVEL_MASK: u64 = 0x3f;
const VERSION: u64 = 1 << 17;

impl Control {
    /// The control word of a new, empty node, locked. `level` is 0 for a leaf; it saturates at 63, which no tree
    /// reaches.
    pub(super) fn new(shape: Shape, level: usize) -> Control {
        Control(LOCKED | (shape as u64) << SHAPE_SHIFT | (level as u64).min(LEVEL_MASK) << LEVEL_SHIFT)
    }

    pub(super) fn locked(self) -> Control {
        Control(self.0 | LOCKED)
    }

    pub(super) fn unlocked(self) -> Control {
        Control(self.0 & !LOCKED)
    }

    pub(super) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(super) fn obsolete(self) -> Control {
        Control(self.0 | OBSOLETE)
    }

    /// Neither locked nor obsolete.
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (LOCKED | OBSOLETE) == 0
    }

    /// Neither locked nor obsolete, and of this level.
    #[inline(always)]
    pub(crate) fn is_plain_at(self, level: usize) -> bool {
        self.0 & (LEVEL_MASK << LEVEL_SHIFT | LOCKED | OBSOLETE) == (level as u64) << LEVEL_SHIFT
    }

    pub(super) fn is_obsolete(self) -> bool {
        self.0 & OBSOLETE != 0
    }

    /// The next version. It has 47 bits: a reader would have to pause for 2^47 changes of one node to be deceived.
    pub(super) fn next_version(self) -> Control {
        Control(self.0.wrapping_add(VERSION))
    }

    pub(super) fn with_count(self, count: usize) -> Control {
        debug_assert!(count <= self.shape().capacity());
        Control(self.0 & !(COUNT_MASK << COUNT_SHIFT) | (count as u64) << COUNT_SHIFT)
    }

    /// Entries of a leaf, children of an interior node. At most the capacity of the shape.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        (self.0 >> COUNT_SHIFT & COUNT_MASK) as usize
    }

    #[inline(always)]
    pub(crate) fn shape(self) -> Shape {
        Shape::ALL[(self.0 >> SHAPE_SHIFT & 3) as usize]
    }

    #[inline(always)]
    pub(crate) fn has_shape(self, shape: Shape) -> bool {
        self.0 >> SHAPE_SHIFT & 3 == shape as u64
    }

    #[inline(always)]
    pub(crate) fn is_leaf(self) -> bool {
        !self.has_shape(Shape::Interior)
    }

    pub(crate) fn is_full(self) -> bool {
        self.count() == self.shape().capacity()
    }

    /// 0 for a leaf; for an interior node, one more than the level of its highest child when it was made.
    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        (self.0 >> LEVEL_SHIFT & LEVEL_MASK) as usize
    }
}
