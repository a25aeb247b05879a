//! The faults to inject, and counts of those injected.

use std::time::Duration;

use crate::error::NetError;

/// What happens to packets. Probabilities are per packet, from 0 to 1, and independent of each other.
///
/// The default injects no faults. Set the fields you want and take the rest from it: `Faults { drop: 0.01,
/// ..Faults::default() }`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// The packet is lost.
    pub drop: f64,
    /// The packet is sent twice. Each copy is then delayed, reordered and corrupted independently.
    pub duplicate: f64,
    /// The packet is held until packets sent later have overtaken it.
    pub reorder: f64,
    /// The packet is held for a time.
    pub delay: f64,
    /// The packet is changed: a bit flipped, a run of bytes overwritten, or the end cut off.
    pub corrupt: f64,
    /// Shortest time by which a packet is delayed.
    pub delay_min: Duration,
    /// Longest time by which a packet is delayed.
    pub delay_max: Duration,
    /// Most packets, to any destination, that overtake a reordered one; at least one does, unless none is sent.
    pub reorder_window: u32,
    /// Longest time for which a reordered packet waits for others to overtake it.
    pub reorder_time_max: Duration,
}

impl Default for Faults {
    /// No faults; when switched on, delays of up to 10 ms, and reordering among 8 packets or for 1 ms.
    fn default() -> Self {
        Faults {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            delay: 0.0,
            corrupt: 0.0,
            delay_min: Duration::ZERO,
            delay_max: Duration::from_millis(10),
            reorder_window: 8,
            reorder_time_max: Duration::from_millis(1),
        }
    }
}

impl Faults {
    /// Whether no fault is switched on.
    pub fn is_none(&self) -> bool {
        self.probabilities().iter().all(|(_, p)| *p == 0.0)
    }

    /// Rejects invalid settings.
    pub(super) fn check(&self) -> Result<(), NetError> {
        for (name, p) in self.probabilities() {
            if !(0.0..=1.0).contains(&p) {
                return Err(NetError::BadSetting { name, why: format!("{p} is not a probability from 0 to 1") });
            }
        }
        if self.delay_min > self.delay_max {
            let why = format!("it is {:?}, more than delay_max, {:?}", self.delay_min, self.delay_max);
            return Err(NetError::BadSetting { name: "delay_min", why });
        }
        if self.reorder_window == 0 {
            return Err(NetError::BadSetting { name: "reorder_window", why: "it must be at least 1 packet".into() });
        }
        Ok(())
    }

    fn probabilities(&self) -> [(&'static str, f64); 5] {
        [
            ("drop", self.drop),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("delay", self.delay),
            ("corrupt", self.corrupt),
        ]
    }
}

/// What was done to packets so far. One packet may be counted in several fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounters {
    /// Packets that were lost.
    pub dropped: u64,
    /// Packets that were sent twice.
    pub duplicated: u64,
    /// Packets (or copies) that were held for others to overtake them.
    pub reordered: u64,
    /// Packets (or copies) that were held for a time.
    pub delayed: u64,
    /// Packets (or copies) that were changed.
    pub corrupted: u64,
    /// Packets sent at once that should have been held, because [`HELD_PACKETS_MAX`](super::HELD_PACKETS_MAX) were held
    /// already.
    pub hold_full: u64,
    /// Held packets whose address the transport rejected when they were due.
    pub undeliverable: u64,
}
