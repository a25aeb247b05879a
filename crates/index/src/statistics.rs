//! The structure of an index in numbers.

use crate::guard::Guard;
use crate::index::{Index, retry};
use crate::node::{Entry, Shape};
use crate::walk::Stop;

/// The structure of an index in numbers. With concurrent writes, the numbers are of different moments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
    /// Items in the leaves that were counted.
    pub items: usize,
    /// Trees: the first layer, and one for each slice of eight bytes that several long keys share.
    pub layers: usize,
    /// Interior nodes, 1,088 bytes each.
    pub interior_nodes: usize,
    /// Leaves of 4, 12 and 28 entries: 128, 256 and 512 bytes each.
    pub leaves: [usize; 3],
    /// Nodes on the longest path from the root to a leaf.
    pub depth_max: usize,
    /// Share of used entries in leaves.
    pub leaf_fill: f64,
    /// Keys and values in blocks, because they do not fit into a leaf.
    pub blocks: usize,
    /// The result of [`Index::memory_bytes`].
    pub memory_bytes: usize,
}

impl Statistics {
    /// Bytes of memory per item; 0 if there are no items.
    pub fn bytes_per_item(&self) -> f64 {
        if self.items == 0 { 0.0 } else { self.memory_bytes as f64 / self.items as f64 }
    }
}

/// What is known of the structure without reading it. With concurrent writes, the numbers are of different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outline {
    /// Trees: the first layer, and one for each slice of eight bytes that several long keys share.
    pub(crate) layers: usize,
    /// Levels of the first layer: 1 if its root is a leaf. Removals may leave fewer below some nodes.
    pub(crate) levels: usize,
    /// Leaves of 4, 12 and 28 entries in the tree, and those that wait to be freed.
    pub(crate) leaves: [usize; 3],
    /// Interior nodes, likewise.
    pub(crate) interior_nodes: usize,
}

impl Index {
    /// A few counters, however many items there are.
    pub(crate) fn outline(&self, guard: &Guard) -> Outline {
        let levels = retry(|| {
            let link = self.anchor.link(guard);
            let root = link.child()?.stable()?;
            link.check().map(|()| root.level() + 1)
        });
        let nodes = |shape| self.anchor.memory.nodes(shape);
        let [small, middle, large] = [Shape::Leaf4, Shape::Leaf12, Shape::Leaf28].map(nodes);
        // The anchor is none of the tree's.
        let leaves = [small.saturating_sub(1), middle, large];
        Outline { layers: 1 + self.layers.sum(), levels, leaves, interior_nodes: nodes(Shape::Interior) }
    }

    /// Computes all numbers by reading all nodes: about a second for 10 million items.
    pub fn statistics(&self, guard: &Guard) -> Statistics {
        let mut all = Statistics { memory_bytes: self.memory_bytes(), ..Statistics::default() };
        let (mut entries, mut places) = (0, 0);
        let visit = |stop: &Stop<'_>| {
            all.depth_max = all.depth_max.max(stop.depth + 1);
            all.layers += usize::from(stop.is_root_of_layer);
            let Some(leaf) = &stop.leaf else {
                all.interior_nodes += 1;
                return;
            };
            all.leaves[stop.control.shape() as usize] += 1;
            entries += stop.control.count();
            places += stop.control.shape().capacity();
            for entry in (0..leaf.count()).map(|at| leaf.entry(at)) {
                all.items += usize::from(!matches!(entry, Entry::Layer));
                all.blocks += usize::from(entry.block().is_some());
            }
        };
        self.walk(guard, visit, || {});
        all.leaf_fill = entries as f64 / places.max(1) as f64;
        all
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let guard = crate::pin();
        self.free_blocks(&guard);
    }
}

impl Index {
    #[allow(unsafe_code)]
    fn free_blocks<'a>(&'a self, guard: &'a Guard) {
        let visit = |stop: &Stop<'a>| {
            let Some(leaf) = &stop.leaf else { return };
            for block in (0..leaf.count()).filter_map(|at| leaf.entry(at).block()) {
                // SAFETY: only `drop` calls this, so no other thread uses the index; each block is in one leaf, which
                // is visited once.
                unsafe { block.free(&self.anchor.memory) };
            }
        };
        self.walk(guard, visit, || {});
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::random::Random;

    use super::*;
    use crate::range::{Order, Range};
    use crate::snapshot::Builder;

    /// What is counted as it changes is what a walk finds: after insertions and removals, and after a build.
    #[test]
    fn the_outline_is_that_of_the_nodes() {
        fn agrees(index: &Index, what: &str) {
            let guard = crate::pin();
            let (outline, all) = (index.outline(&guard), index.statistics(&guard));
            assert_eq!(outline.layers, all.layers, "{what}");
            assert!(outline.levels >= index.levels_by_walk(&guard), "{what}");
            // Retired nodes may still count: threads of other tests may hold guards.
            assert!(outline.interior_nodes >= all.interior_nodes, "{what}");
            assert!(outline.leaves.iter().zip(all.leaves).all(|(counted, found)| *counted >= found), "{what}");
        }
        let (index, mut random) = (Index::new(16 << 20).expect("room"), Random::new(7));
        agrees(&index, "empty");
        let mut keys = Vec::new();
        for number in 0..3000u64 {
            let mut key = vec![b'k'; 8 * random.below(6) as usize];
            key.extend_from_slice(&random.below(1 << 20).to_be_bytes()[4..]);
            index.insert(&key, b"value", &crate::pin()).expect("room");
            keys.push(key);
            if number % 500 == 0 {
                agrees(&index, "growing");
            }
        }
        let built = Index::new(16 << 20).expect("room");
        let mut builder = Builder::new(&built);
        index.scan(Range::ALL, Order::Ascending, usize::MAX, &crate::pin(), |key, value| {
            builder.push(key, value).expect("ascending, and room");
        });
        builder.finish().expect("room");
        assert!(built.outline(&crate::pin()).layers > 1);
        agrees(&built, "built");
        for (at, key) in keys.iter().enumerate() {
            index.remove(key, &crate::pin());
            if at % 500 == 0 {
                agrees(&index, "shrinking");
            }
        }
        agrees(&index, "emptied");
        assert_eq!(index.outline(&crate::pin()).layers, 1);
    }

    /// Keys in order leave 27 of 28 places of a leaf used, and a root with 65 leaves is split. A layer adds its own nodes.
    #[test]
    fn the_depth_is_that_of_the_deepest_leaf() {
        let (index, guard) = (Index::new(16 << 20).expect("room"), crate::pin());
        let mut items = 0u64;
        for (more, depth) in [(0, 1), (28, 1), (29, 2), (1700, 2), (1800, 3), (3000, 3)] {
            for number in items..more {
                index.insert(&number.to_be_bytes(), b"value", &guard).expect("room");
            }
            items = more;
            let depths = (index.statistics(&guard).depth_max, index.outline(&guard).levels);
            assert_eq!(depths, (depth, depth), "{items} items");
        }
        // Two keys that share four slices: four layers of a leaf each.
        for last in [b"a", b"b"] {
            index.insert(&[&5u64.to_be_bytes()[..], &[b'k'; 24], last].concat(), b"value", &guard).expect("room");
        }
        assert_eq!((index.statistics(&guard).depth_max, index.outline(&guard).levels), (3 + 4, 3));
    }

    impl Index {
        /// Nodes on the way down the first layer.
        fn levels_by_walk(&self, guard: &Guard) -> usize {
            let mut levels = 0;
            self.walk(
                guard,
                |stop| {
                    if stop.layer == 0 {
                        levels = levels.max(stop.depth + 1)
                    }
                },
                || {},
            );
            levels
        }
    }
}
