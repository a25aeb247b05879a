//! Faults of single packets on a link.

use serde::{Deserialize, Serialize};

use crate::error::SimError;

/// Faults of the packets on a link: probabilities, from 0 to 1, for each packet, and a length limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PacketFaults {
    /// The packet is lost.
    pub loss: f64,
    /// It arrives twice, back to back.
    pub duplicate: f64,
    /// It is late by up to [`PacketFaults::reorder_max_ns`], and others overtake it.
    pub reorder: f64,
    /// It is late by up to [`PacketFaults::delay_max_ns`], and so is everything behind it: the order stays.
    pub delay: f64,
    /// One of its bits is flipped, as if after all checksums.
    pub corrupt: f64,
    /// Longest delay of a reordered packet.
    pub reorder_max_ns: u64,
    /// Longest delay that keeps the order.
    pub delay_max_ns: u64,
    /// Longest packet that passes, in bytes, as on a path that carries less than its ends accept; no limit if absent.
    pub longest: Option<u16>,
}

impl Default for PacketFaults {
    /// No faults; the delays are ready for use: 10 us for reordering and 100 us for delay.
    fn default() -> Self {
        PacketFaults {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            delay: 0.0,
            corrupt: 0.0,
            reorder_max_ns: 10_000,
            delay_max_ns: 100_000,
            longest: None,
        }
    }
}

impl PacketFaults {
    /// Packets are lost with a probability.
    pub fn loss(probability: f64) -> Self {
        PacketFaults { loss: probability, ..PacketFaults::default() }
    }

    /// Packets longer than this many bytes are lost.
    pub fn longest(bytes: u16) -> Self {
        PacketFaults { longest: Some(bytes), ..PacketFaults::default() }
    }

    /// Whether no packet is affected.
    pub fn is_none(&self) -> bool {
        self.longest.is_none() && self.probabilities().iter().all(|(_, p)| *p == 0.0)
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        match self.probabilities().iter().find(|(_, p)| !(0.0..=1.0).contains(p)) {
            Some((name, p)) => Err(SimError::setting(*name, format!("{p} is not a probability from 0 to 1"))),
            None => Ok(()),
        }
    }

    /// Combines with another, independent set of faults.
    pub(crate) fn add(&mut self, more: &PacketFaults) {
        let either = |a: f64, b: f64| 1.0 - (1.0 - a) * (1.0 - b);
        self.loss = either(self.loss, more.loss);
        self.duplicate = either(self.duplicate, more.duplicate);
        self.reorder = either(self.reorder, more.reorder);
        self.delay = either(self.delay, more.delay);
        self.corrupt = either(self.corrupt, more.corrupt);
        self.reorder_max_ns = self.reorder_max_ns.max(more.reorder_max_ns);
        self.delay_max_ns = self.delay_max_ns.max(more.delay_max_ns);
        self.longest = [self.longest, more.longest].into_iter().flatten().min();
    }

    fn probabilities(&self) -> [(&'static str, f64); 5] {
        [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("delay", self.delay),
            ("corrupt", self.corrupt),
        ]
    }
}
