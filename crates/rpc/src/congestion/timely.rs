//! Timely: a rate from round-trip times and their gradient (Mittal et al., SIGCOMM 2015), with eRPC's parameters (paper, section 5.2.2).
//!
//! Below `t_low` the rate grows, above `t_high` it falls whatever happens, and between them the *gradient* of round-trip times decides:
//! growing times mean a growing queue. "ECN or Delay" (Zhu et al., CoNEXT 2016) shows that the gradient alone has no fixed point: any
//! queue length will do, and any division of the link. Its patch adds a term for the queue's length itself: [`Gradient::Patched`].
//!
//! A loss means nothing to Timely: the retransmission timeout is its own back-off.

use std::time::Duration;

use super::{Algorithm, Allowance, Sample, bits_per_second, bytes_per_nano, check_rates, refuse};
use crate::config::ConfigError;

/// How round trips between `t_low` and `t_high` change the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gradient {
    /// As in Timely, and as eRPC runs it: grow while the gradient is not positive, else shrink in proportion to it.
    #[default]
    Original,
    /// As in "ECN or Delay", section 4.3: shrink in proportion to the queue, weighted by the gradient.
    Patched,
}

/// Parameters of Timely. The defaults are eRPC's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelyConfig {
    /// Rate of this host's link, in bits per second: where a session begins, and what it never exceeds. Default 25 Gbit/s.
    pub link_rate: u64,
    /// Least rate of a session, in bits per second. Default 120 Mbit/s.
    pub rate_min: u64,
    /// Round trip of an empty network. Default 2 us.
    pub rtt_min: Duration,
    /// Below this the rate grows. Default 50 us.
    pub t_low: Duration,
    /// Above this the rate falls. Default 1 ms.
    pub t_high: Duration,
    /// Weight of a new gradient in their moving average. Default 0.46.
    pub alpha: f64,
    /// Strength of a decrease. Default 0.26.
    pub beta: f64,
    /// Step of an increase, in bits per second and `rtt_min`. Default 40 Mbit/s.
    pub step: u64,
    /// After so many falling round trips in a row, steps are five times as long. Default 5.
    pub hyper_after: u32,
    /// Default [`Gradient::Original`].
    pub gradient: Gradient,
}

impl Default for TimelyConfig {
    fn default() -> Self {
        TimelyConfig {
            link_rate: 25_000_000_000,
            rate_min: 120_000_000,
            rtt_min: Duration::from_micros(2),
            t_low: Duration::from_micros(50),
            t_high: Duration::from_millis(1),
            alpha: 0.46,
            beta: 0.26,
            step: 40_000_000,
            hyper_after: 5,
            gradient: Gradient::Original,
        }
    }
}

impl TimelyConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_rates(self.link_rate, self.rate_min)?;
        if self.rtt_min.is_zero() || self.t_low < self.rtt_min || self.t_high < self.t_low || self.t_high.as_secs() >= 1 {
            let value = (self.rtt_min, self.t_low, self.t_high);
            return refuse("timely rtt_min, t_low, t_high", value, "choose 0 < rtt_min <= t_low <= t_high < 1 s");
        }
        if !(self.alpha > 0.0 && self.alpha <= 1.0 && self.beta > 0.0 && self.beta < 1.0) {
            return refuse("timely alpha, beta", (self.alpha, self.beta), "choose above 0 and at most 1; beta below 1");
        }
        Ok(())
    }
}

/// Steps are this much longer in hyperactive increase.
const HYPER_STEPS: f64 = 5.0;
/// One update takes at most this share of the rate.
const SHARE_MIN: f64 = 0.5;

/// State of one session. Times in nanoseconds, rates in bytes per nanosecond.
#[derive(Debug)]
pub(crate) struct Timely {
    rate: f64,
    rate_max: f64,
    rate_min: f64,
    step: f64,
    rtt_min: f64,
    t_low: f64,
    t_high: f64,
    alpha: f64,
    beta: f64,
    gradient: Gradient,
    hyper_after: u32,
    last_rtt: f64,
    /// Moving average of the differences between round trips.
    trend: f64,
    /// Falling round trips in a row.
    falling: u32,
    updated: u64,
}

impl Timely {
    pub(super) fn new(config: &TimelyConfig, now: u64) -> Timely {
        let rtt_min = config.rtt_min.as_nanos() as f64;
        Timely {
            rate: bytes_per_nano(config.link_rate),
            rate_max: bytes_per_nano(config.link_rate),
            rate_min: bytes_per_nano(config.rate_min),
            step: bytes_per_nano(config.step),
            rtt_min,
            t_low: config.t_low.as_nanos() as f64,
            t_high: config.t_high.as_nanos() as f64,
            alpha: config.alpha,
            beta: config.beta,
            gradient: config.gradient,
            hyper_after: config.hyper_after,
            last_rtt: rtt_min,
            trend: 0.0,
            falling: 0,
            updated: now,
        }
    }

    /// The next rate. `scale` is the part of a minimal round trip since the last update, at most 1: many answers in one round trip
    /// together change as much as one.
    fn next_rate(&self, rtt: f64, scale: f64) -> f64 {
        let step = self.step * scale;
        let cut = self.beta * scale;
        if rtt < self.t_low {
            return self.rate + step;
        }
        if rtt > self.t_high {
            return self.rate * (1.0 - cut * (1.0 - self.t_high / rtt));
        }
        let gradient = self.trend / self.rtt_min;
        match self.gradient {
            Gradient::Original if gradient > 0.0 => self.rate * (1.0 - cut * gradient),
            Gradient::Original if self.falling >= self.hyper_after => self.rate + HYPER_STEPS * step,
            Gradient::Original => self.rate + step,
            Gradient::Patched => {
                let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
                let excess = (rtt - self.t_low) / self.t_low;
                self.rate * (1.0 - cut * weight * excess) + step * (1.0 - weight)
            }
        }
    }
}

impl Algorithm for Timely {
    fn on_answer(&mut self, sample: &Sample) {
        let rtt = sample.rtt as f64;
        if rtt < self.rtt_min {
            // A retransmission whose first copy was answered.
            return;
        }
        let difference = rtt - self.last_rtt;
        self.falling = if difference < 0.0 { self.falling.saturating_add(1) } else { 0 };
        self.trend = (1.0 - self.alpha) * self.trend + self.alpha * difference;
        let scale = (sample.now.saturating_sub(self.updated) as f64 / self.rtt_min).min(1.0);
        let next = self.next_rate(rtt, scale).max(self.rate * SHARE_MIN);
        self.rate = next.clamp(self.rate_min, self.rate_max);
        (self.last_rtt, self.updated) = (rtt, sample.now);
    }

    fn spacing(&self, bytes: u32) -> u64 {
        (f64::from(bytes) / self.rate) as u64
    }

    fn is_unlimited(&self) -> bool {
        self.rate >= self.rate_max
    }

    fn allowance(&self) -> Allowance {
        if self.is_unlimited() { Allowance::Unlimited } else { Allowance::Rate(bits_per_second(self.rate)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    fn timely(gradient: Gradient) -> Timely {
        Timely::new(&TimelyConfig { gradient, ..TimelyConfig::default() }, 0)
    }

    /// One answer per 10 us, a whole step each.
    fn answers(timely: &mut Timely, rtts: &[u64]) {
        for rtt in rtts {
            let now = timely.updated + 10 * MICRO;
            timely.on_answer(&Sample { now, rtt: rtt * MICRO, is_marked: false, credits: 32, bytes: 1000 });
        }
    }

    #[test]
    fn short_round_trips_leave_it_at_the_link_rate() {
        for gradient in [Gradient::Original, Gradient::Patched] {
            let mut timely = timely(gradient);
            answers(&mut timely, &[5, 49, 20, 3, 49]);
            assert!(timely.is_unlimited());
            assert_eq!(timely.spacing(3125), 1000, "25 Gbit/s are 3.125 bytes per nanosecond");
        }
    }

    #[test]
    fn growing_round_trips_lower_the_rate_and_falling_ones_raise_it() {
        let mut timely = timely(Gradient::Original);
        answers(&mut timely, &[60, 70, 80, 90]);
        let low = timely.rate;
        assert!(low < 0.2 * timely.rate_max, "a gradient above 1 halves the rate each time: {low}");
        answers(&mut timely, &[80]);
        let before = timely.rate;
        answers(&mut timely, &[75, 70, 65]);
        assert!(timely.rate > before);
        let before = timely.rate;
        // By now five have fallen in a row.
        answers(&mut timely, &[64]);
        assert!((timely.rate - before - HYPER_STEPS * timely.step).abs() < 1e-9);
    }

    #[test]
    fn one_update_takes_half_at_most_and_the_least_rate_stays() {
        let mut timely = timely(Gradient::Original);
        answers(&mut timely, &[50_000]);
        assert!(timely.rate >= 0.5 * timely.rate_max);
        answers(&mut timely, &[60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900]);
        assert!(timely.rate >= timely.rate_min);
    }

    #[test]
    fn the_patch_finds_a_queue_too_long_although_it_does_not_grow() {
        let (mut original, mut patched) = (timely(Gradient::Original), timely(Gradient::Patched));
        for timely in [&mut original, &mut patched] {
            answers(timely, &[200; 2_000]);
        }
        assert!(original.is_unlimited(), "a constant queue is all right with the gradient");
        assert!(patched.rate < 0.2 * patched.rate_max, "{}", patched.rate);
    }
}
