//! The counters of one core.

use serde::{Deserialize, Serialize};

use super::latency::LatencyHistogram;
use super::operation::{Operation, Outcome};
use super::snapshot::OperationStats;

/// Counters of one core, owned exclusively by it.
#[derive(Debug)]
pub struct CoreMetrics {
    counts: [[u64; Outcome::ALL.len()]; Operation::ALL.len()],
    latency: Vec<LatencyHistogram>,
    /// The core's memcached connections.
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
    /// Counts one operation, where it was executed: on the core that owns the key.
    #[inline]
    pub fn count(&mut self, operation: Operation, outcome: Outcome) {
        self.counts[operation as usize][outcome as usize] += 1;
    }

    /// Counts several operations at once.
    #[inline]
    pub fn count_many(&mut self, operation: Operation, outcome: Outcome, operations: u64) {
        self.counts[operation as usize][outcome as usize] += operations;
    }

    /// Records the latency of operations, from the arrival of their requests until their responses were written. Once
    /// for each kind in a burst, not for each operation: all operations of a burst wait for the whole of it.
    #[inline]
    pub fn latency(&mut self, operation: Operation, nanos: u64, operations: u64) {
        self.latency[operation as usize].record(nanos, operations);
    }

    /// Returns the number of operations of a kind with this outcome.
    pub fn counted(&self, operation: Operation, outcome: Outcome) -> u64 {
        self.counts[operation as usize][outcome as usize]
    }

    /// Returns the kinds of operations that occurred. Copies the histograms that are not empty, which takes some
    /// microseconds each.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, OperationStats)> + '_ {
        Operation::ALL.into_iter().filter_map(|operation| {
            let [hits, misses, conflicts, refused] = Outcome::ALL.map(|outcome| self.counted(operation, outcome));
            let latency = &self.latency[operation as usize];
            let stats = OperationStats { hits, misses, conflicts, refused, latency: latency.clone() };
            (stats.total() + latency.count() > 0).then_some((operation, stats))
        })
    }
}

/// Counters of memcached connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Open now.
    pub open: u64,
    /// Accepted so far.
    pub accepted: u64,
    /// Rejected because of the limit.
    pub rejected: u64,
    /// Closed because they were idle for too long.
    pub timed_out: u64,
    /// Bytes of memory that they hold while they wait.
    pub memory_bytes: u64,
    /// Bytes of memory that they may hold.
    pub memory_bytes_max: u64,
    /// Times that one waited for memory held by others.
    pub memory_waits: u64,
    /// Closed because they held memory for too long while others waited for it.
    pub memory_kicks: u64,
    /// Bytes received.
    pub read_bytes: u64,
    /// Bytes sent.
    pub written_bytes: u64,
}

impl ConnectionCounts {
    /// Adds the counts of another core.
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
