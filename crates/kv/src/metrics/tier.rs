//! Statistics of a core's tier, and of the operations that wait for it.

use std::collections::BTreeMap;

use dunlin_store::tier::TierStats;
use serde::{Deserialize, Serialize};

use super::latency::LatencyHistogram;
use super::queue::{add_all, add_lengths};
use crate::tier::DeskStats;

/// Statistics of a tier: [`TierStats`], and what waits for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TierSnapshot {
    /// Counters and sizes of the tier, by the names of [`TierStats`].
    pub counts: BTreeMap<String, u64>,
    /// Operations that waited and were served.
    pub served: u64,
    /// Operations that found no place in the queue.
    pub refused: u64,
    /// Operations for which nobody waited any longer when it was their turn.
    pub abandoned: u64,
    /// Reads in progress.
    pub reading: u64,
    /// Waiting operations of each level, the fastest first, and at last those above the share of their client.
    pub lengths: Vec<u64>,
    /// How long operations waited, by the class of their rank: 0 and 1, 2 and 3, 4 to 7, and so on.
    pub waits: Vec<WaitSnapshot>,
}

/// How long operations of a class of ranks waited, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitSnapshot {
    /// In the queue.
    pub queued: LatencyHistogram,
    /// For the device.
    pub read: LatencyHistogram,
}

impl TierSnapshot {
    pub(crate) fn new(tier: &TierStats, desk: DeskStats) -> TierSnapshot {
        let counts = [
            ("items", tier.items),
            ("bytes", tier.bytes),
            ("bytes_max", tier.bytes_max),
            ("memory_bytes", tier.memory_bytes),
            ("hits", tier.hits),
            ("reads", tier.reads),
            ("read_bytes", tier.read_bytes),
            ("writes", tier.writes),
            ("write_bytes", tier.write_bytes),
            ("stored", tier.stored),
            ("recalled", tier.recalled),
            ("dropped", tier.dropped),
            ("unsuited", tier.unsuited),
            ("evicted", tier.evicted),
            ("read_errors", tier.read_errors),
            ("corrupt", tier.corrupt),
            ("write_errors", tier.write_errors),
            ("lost", tier.lost),
        ];
        TierSnapshot {
            counts: counts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            served: desk.served,
            refused: desk.refused,
            abandoned: desk.abandoned,
            reading: desk.reading as u64,
            lengths: desk.lengths.into_iter().map(|length| length as u64).collect(),
            waits: desk
                .waits
                .into_iter()
                .map(|waits| WaitSnapshot { queued: waits.queued, read: waits.read })
                .collect(),
        }
    }

    /// Returns a counter by its name; zero if there is none.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Adds those of another core.
    pub fn add(&mut self, other: &TierSnapshot) {
        for (name, value) in &other.counts {
            let sum = self.counts.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*value);
        }
        self.served = self.served.saturating_add(other.served);
        self.refused = self.refused.saturating_add(other.refused);
        self.abandoned = self.abandoned.saturating_add(other.abandoned);
        self.reading = self.reading.saturating_add(other.reading);
        add_lengths(&mut self.lengths, &other.lengths);
        add_all(&mut self.waits, &other.waits, |sum, waits| {
            sum.queued.add(&waits.queued);
            sum.read.add(&waits.read);
        });
    }
}
