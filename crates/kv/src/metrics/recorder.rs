//! What one core counts while it works.

use serde::{Deserialize, Serialize};

use super::latency::LatencyHistogram;
use super::operation::{Operation, Outcome};
use super::snapshot::OperationStats;

/// Counters of one core, owned by it alone.
#[derive(Debug)]
pub struct CoreMetrics {
    counts: [[u64; Outcome::ALL.len()]; Operation::ALL.len()],
    latency: Vec<LatencyHistogram>,
    /// Connections of the memcached protocol that this core runs.
    pub connections: ConnectionCounts,
}

impl Default for CoreMetrics {
    fn default() -> Self {
        CoreMetrics {
            counts: Default::default(),
            latency: vec![LatencyHistogram::default(); Operation::ALL.len()],
            connections: ConnectionCounts::default(),
        }
    }
}

impl CoreMetrics {
    /// Counts one operation, where it was done: by the core that owns the key.
    #[inline]
    pub fn count(&mut self, operation: Operation, outcome: Outcome) {
        self.counts[operation as usize][outcome as usize] += 1;
    }

    /// Counts several at once.
    #[inline]
    pub fn count_many(&mut self, operation: Operation, outcome: Outcome, operations: u64) {
        self.counts[operation as usize][outcome as usize] += operations;
    }

    /// Notes how long operations took, from when their requests were received until their responses were written. Once for each kind in a
    /// burst, not for each operation: all of a burst wait for the whole of it.
    #[inline]
    pub fn latency(&mut self, operation: Operation, nanos: u64, operations: u64) {
        self.latency[operation as usize].record(nanos, operations);
    }

    /// How many operations of a kind came to this.
    pub fn counted(&self, operation: Operation, outcome: Outcome) -> u64 {
        self.counts[operation as usize][outcome as usize]
    }

    /// The kinds of operations that there were. Copies the histograms that are not empty, some microseconds each.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, OperationStats)> + '_ {
        Operation::ALL.into_iter().filter_map(|operation| {
            let [hits, misses, conflicts, refused] = Outcome::ALL.map(|outcome| self.counted(operation, outcome));
            let latency = &self.latency[operation as usize];
            let stats = OperationStats { hits, misses, conflicts, refused, latency: latency.clone() };
            (stats.total() + latency.count() > 0).then_some((operation, stats))
        })
    }
}

/// Connections of the memcached protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Open now.
    pub open: u64,
    /// Accepted so far.
    pub accepted: u64,
    /// Turned away because there were too many.
    pub rejected: u64,
    /// Closed because nothing came from them for too long.
    pub timed_out: u64,
    /// Bytes of memory that they hold while they wait.
    pub memory_bytes: u64,
    /// Bytes of memory that they may hold.
    pub memory_bytes_max: u64,
    /// Times one waited for memory that others held.
    pub memory_waits: u64,
    /// Closed because they held memory for too long that others waited for.
    pub memory_kicks: u64,
    /// Bytes received.
    pub read_bytes: u64,
    /// Bytes sent.
    pub written_bytes: u64,
}

impl ConnectionCounts {
    /// Adds those of another core.
    pub fn add(&mut self, other: &ConnectionCounts) {
        self.open = self.open.saturating_add(other.open);
        self.accepted = self.accepted.saturating_add(other.accepted);
        self.rejected = self.rejected.saturating_add(other.rejected);
        self.timed_out = self.timed_out.saturating_add(other.timed_out);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.memory_bytes_max = self.memory_bytes_max.saturating_add(other.memory_bytes_max);
        self.memory_waits = self.memory_waits.saturating_add(other.memory_waits);
        self.memory_kicks = self.memory_kicks.saturating_add(other.memory_kicks);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }
}
