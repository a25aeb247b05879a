//! The rate of a session, for algorithms that limit one: between a minimum and the rate of the link, at which it limits
//! nothing.

use super::{Allowance, refuse};
use crate::config::ConfigError;

/// A rate within its bounds, all in bytes per nanosecond.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    now: f64,
    min: f64,
    max: f64,
}

impl Rate {
    /// Creates it from the rate of the link and the minimum, in bits per second.
    pub fn of_link(link_rate: u64, rate_min: u64) -> Rate {
        let max = bytes_per_nano(link_rate);
        Rate { now: max, min: bytes_per_nano(rate_min), max }
    }

    pub fn get(&self) -> f64 {
        self.now
    }

    pub fn max(&self) -> f64 {
        self.max
    }

    /// Sets the rate, clamped to its bounds.
    pub fn set(&mut self, rate: f64) {
        self.now = rate.clamp(self.min, self.max);
    }

    /// Nanoseconds that a packet of `bytes` takes at this rate.
    pub fn spacing(&self, bytes: u32) -> u64 {
        (f64::from(bytes) / self.now) as u64
    }

    pub fn is_unlimited(&self) -> bool {
        self.now >= self.max
    }

    pub fn allowance(&self) -> Allowance {
        if self.is_unlimited() { Allowance::Unlimited } else { Allowance::Rate(self.now * 8e9) }
    }
}

/// Bytes per nanosecond of a rate in bits per second.
pub(super) fn bytes_per_nano(bits_per_second: u64) -> f64 {
    bits_per_second as f64 / 8e9
}

/// Checks both bounds.
pub(super) fn check_rates(link_rate: u64, rate_min: u64) -> Result<(), ConfigError> {
    if rate_min < 1_000_000 || link_rate < rate_min || link_rate > 10_000_000_000_000 {
        return refuse(
            "congestion rate_min, link_rate",
            (rate_min, link_rate),
            "choose 1 Mbit/s <= min <= link <= 10 Tbit/s",
        );
    }
    Ok(())
}
