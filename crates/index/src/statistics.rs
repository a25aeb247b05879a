//! The structure of an index in numbers.

use crate::guard::Guard;
use crate::index::Index;
use crate::node::Entry;
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

impl Index {
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
