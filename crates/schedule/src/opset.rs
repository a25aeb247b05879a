//! Opsets: the operations of a multiget on each data partition.

use crate::Policy;

/// The operations of one multiget on one data partition (thesis, section 3.1.1). A partition is a replica group, not a
/// replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opset {
    /// Number of the partition.
    pub partition: u32,
    /// Operations, at least 1.
    pub ops: u32,
    /// Sum of their estimated costs, at least 1.
    pub cost: u64,
    /// The rank from [`Policy::rank`]; lower ranks are served first. 0 until then.
    pub rank: u64,
}

/// A multiget, split by partition. Keep and clear it between multigets, so that splitting allocates nothing in steady
/// state.
///
/// ```
/// use dunlin_schedule::{Opsets, Policy};
///
/// let mut multiget = Opsets::new(128);
/// for (partition, cost) in [(7, 1), (90, 1), (7, 1)] {
///     multiget.add(partition, cost);
/// }
/// multiget.rank(&Policy::ShortestBottleneck);
/// assert_eq!(multiget.as_slice().iter().map(|opset| opset.rank).collect::<Vec<_>>(), [2, 2]);
/// ```
#[derive(Debug, Clone)]
pub struct Opsets {
    opsets: Vec<Opset>,
    /// For each partition, the index of its opset plus one; 0 if it has none.
    places: Vec<u32>,
}

impl Opsets {
    /// For a cluster with this many partitions. Takes 4 bytes for each.
    pub fn new(partitions: u32) -> Self {
        Opsets { opsets: Vec::new(), places: vec![0; partitions as usize] }
    }

    /// Clears the multiget. Takes time proportional to its opsets, not to the partitions.
    pub fn clear(&mut self) {
        for opset in self.opsets.drain(..) {
            self.places[opset.partition as usize] = 0;
        }
    }

    /// Adds an operation of at least cost 1, and returns the index of its opset in [`Opsets::as_slice`].
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn add(&mut self, partition: u32, cost: u32) -> usize {
        let cost = u64::from(cost.max(1));
        let place = &mut self.places[partition as usize];
        if *place == 0 {
            self.opsets.push(Opset { partition, ops: 0, cost: 0, rank: 0 });
            *place = self.opsets.len() as u32;
        }
        let place = *place as usize - 1;
        let opset = &mut self.opsets[place];
        opset.ops = opset.ops.saturating_add(1);
        opset.cost = opset.cost.saturating_add(cost);
        place
    }

    /// Assigns each opset its rank.
    pub fn rank(&mut self, policy: &Policy) {
        policy.rank(&mut self.opsets);
    }

    /// As [`Policy::rank_part`].
    pub fn rank_part(&mut self, policy: &Policy, elsewhere: u64) {
        policy.rank_part(&mut self.opsets, elsewhere);
    }

    /// The opsets, in the order in which their partitions were first added. All have operations.
    pub fn as_slice(&self) -> &[Opset] {
        &self.opsets
    }

    /// Adds to the cost of an opset. Use it for costs beyond those of the operations, such as the backlog of their
    /// servers.
    ///
    /// # Panics
    /// If there is no opset at that index.
    pub fn add_cost(&mut self, place: usize, more: u64) {
        let cost = &mut self.opsets[place].cost;
        *cost = cost.saturating_add(more);
    }
}

/// Cost of the bottleneck: the opset with the highest cost. 0 without opsets.
pub(crate) fn bottleneck(opsets: &[Opset]) -> u64 {
    opsets.iter().map(|opset| opset.cost).max().unwrap_or(0)
}

/// Cost of the whole multiget.
pub(crate) fn total(opsets: &[Opset]) -> u64 {
    opsets.iter().fold(0, |total: u64, opset| total.saturating_add(opset.cost))
}

impl Opset {
    /// By how much work it can be delayed without delaying its multiget, whose bottleneck costs `bottleneck`.
    pub fn slack(&self, bottleneck: u64) -> u64 {
        bottleneck.saturating_sub(self.cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_partition_are_one_opset() {
        let mut multiget = Opsets::new(4);
        let places: Vec<usize> = [3, 1, 3, 3].into_iter().map(|partition| multiget.add(partition, 2)).collect();
        assert_eq!(places, [0, 1, 0, 0]);
        let [large, small] = multiget.as_slice() else { panic!("two opsets") };
        assert_eq!((large.partition, large.ops, large.cost), (3, 3, 6));
        assert_eq!((small.partition, small.ops, small.cost), (1, 1, 2));
        let bottleneck = bottleneck(multiget.as_slice());
        assert_eq!((large.slack(bottleneck), small.slack(bottleneck), total(multiget.as_slice())), (0, 4, 8));
    }

    #[test]
    fn clearing_forgets_everything() {
        let mut multiget = Opsets::new(2);
        multiget.add(0, 5);
        multiget.clear();
        assert!(multiget.as_slice().is_empty());
        multiget.add(0, 0);
        assert_eq!(multiget.as_slice(), [Opset { partition: 0, ops: 1, cost: 1, rank: 0 }]);
    }

    #[test]
    fn a_hundred_thousand_keys_are_one_multiget() {
        let mut multiget = Opsets::new(8192);
        (0..100_000).for_each(|key| _ = multiget.add(key % 8192, u32::MAX));
        assert_eq!(multiget.as_slice().len(), 8192);
        assert_eq!(total(multiget.as_slice()), 100_000 * u64::from(u32::MAX));
        multiget.add_cost(0, u64::MAX);
        assert_eq!((bottleneck(multiget.as_slice()), total(multiget.as_slice())), (u64::MAX, u64::MAX));
    }
}
