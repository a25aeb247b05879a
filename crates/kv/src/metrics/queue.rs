//! Statistics of the multi-gets of a core that wait for their turn.

use serde::{Deserialize, Serialize};

use super::latency::LatencyHistogram;

/// Classes of ranks, for metrics: 0 and 1, 2 and 3, 4 to 7, and so on; the last has the rest.
pub const RANK_CLASSES: usize = 12;
/// Most levels and classes of ranks that are read.
const PARTS_MAX: usize = 64;

/// Returns the class of a rank.
pub(crate) fn rank_class(rank: u64) -> usize {
    (rank.max(1).ilog2() as usize).min(RANK_CLASSES - 1)
}

/// Multi-gets that were not answered in the turn in which they came.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// Those that waited and were served.
    pub served: u64,
    /// Those that found no place in the queue.
    pub refused: u64,
    /// Those for which nobody waited any longer when it was their turn.
    pub abandoned: u64,
    /// Those that wait, by level, the fastest first, and at last those above the share of their client.
    pub lengths: Vec<u64>,
    /// How long they waited in all, in nanoseconds, by the class of their rank: 0 and 1, 2 and 3, 4 to 7, and so on.
    pub waits: Vec<LatencyHistogram>,
}

impl QueueSnapshot {
    /// Adds those of another core.
    pub fn add(&mut self, other: &QueueSnapshot) {
        self.served = self.served.saturating_add(other.served);
        self.refused = self.refused.saturating_add(other.refused);
        self.abandoned = self.abandoned.saturating_add(other.abandoned);
        add_lengths(&mut self.lengths, &other.lengths);
        add_all(&mut self.waits, &other.waits, LatencyHistogram::add);
    }
}

/// Adds the lengths of another core's queue, level by level.
pub(super) fn add_lengths(sums: &mut Vec<u64>, others: &[u64]) {
    add_all(sums, others, |sum, other| *sum = sum.saturating_add(*other));
}

/// Adds the parts of another core to those at the same place.
pub(super) fn add_all<T: Default + Clone>(sums: &mut Vec<T>, others: &[T], add: impl Fn(&mut T, &T)) {
    sums.resize(sums.len().max(others.len()).min(PARTS_MAX), T::default());
    for (sum, other) in sums.iter_mut().zip(others) {
        add(sum, other);
    }
}
