//! Timely: a rate from round-trip times and their gradient (Mittal et al., SIGCOMM 2015), with eRPC's parameters
//! (paper, section 5.2.2).
//!
//! Below `t_low` the rate grows, above `t_high` it always falls, and in between the *gradient* of round-trip times
//! decides: growing times mean a growing queue. "ECN or Delay" (Zhu et al., CoNEXT 2016) shows that the gradient alone
//! has no fixed point: any queue length and any division of the link are stable. Its patch adds a term for the queue
//! length itself: [`Gradient::Patched`].
//!
//! Timely ignores losses: the retransmission timeout is a back-off of its own.
//!
//! One rule is ours: a session that is not limited becomes limited only if round trips stay long. Software reads the
//! clocks here, and a process that was descheduled for a moment makes every packet in flight late, once. A queue lasts:
//! packets sent afterwards are late too.

use std::time::Duration;

use super::rate::{Rate, bytes_per_nano, check_rates};
use super::{Algorithm, Allowance, Sample, refuse};
use crate::config::ConfigError;

/// How round trips between `t_low` and `t_high` change the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gradient {
    /// As in Timely, and as eRPC runs it: grow while the gradient is not positive, otherwise shrink in proportion to
    /// it.
    #[default]
    Original,
    /// As in "ECN or Delay", section 4.3: shrink in proportion to the queue, weighted by the gradient.
    Patched,
}

/// Parameters of Timely. The defaults are eRPC's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelyConfig {
    /// Rate of this host's link, in bits per second: the initial and the maximum rate of a session. Default 25 Gbit/s.
    pub link_rate: u64,
    /// Minimum rate of a session, in bits per second. Default 120 Mbit/s.
    pub rate_min: u64,
    /// Round trip in an empty network. Default 2 us.
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
    /// After this many falling round trips in a row, steps are five times as long. Default 5.
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
        if self.rtt_min.is_zero() || self.t_low < self.rtt_min || self.t_high < self.t_low || self.t_high.as_secs() >= 1
        {
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
/// One update reduces the rate by at most this share.
const SHARE_MIN: f64 = 0.5;

/// State of one session. Times in nanoseconds, rates in bytes per nanosecond.
#[derive(Debug)]
pub(crate) struct Timely {
    rate: Rate,
    step: f64,
    rtt_min: f64,
    t_low: f64,
    t_high: f64,
    alpha: f64,
    beta: f64,
    gradient: Gradient,
    hyper_after: u32,
    last_rtt: f64,
    /// Moving average of the differences between successive round trips.
    trend: f64,
    /// Falling round trips in a row.
    falling: u32,
    updated: u64,
    /// When a late answer came while nothing was limited: answers of packets sent before it show no more than that one.
    late_at: u64,
}

impl Timely {
    pub(super) fn new(config: &TimelyConfig, now: u64) -> Timely {
        let rtt_min = config.rtt_min.as_nanos() as f64;
        Timely {
            rate: Rate::of_link(config.link_rate, config.rate_min),
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
            late_at: 0,
        }
    }

    /// Whether a long round trip shows that a queue lasts: the packet must have been sent soon after an answer was
    /// late.
    fn is_lasting(&mut self, sample: &Sample) -> bool {
        let sent = sample.now.saturating_sub(sample.rtt);
        if sent < self.late_at {
            return false;
        }
        let is_lasting = self.late_at > 0 && (sent - self.late_at) as f64 <= self.t_low;
        self.late_at = sample.now;
        is_lasting
    }

    /// The next rate. `scale` is the time since the last update in minimal round trips, at most 1: many answers in one
    /// round trip together change as much as one.
    fn next_rate(&self, rtt: f64, scale: f64) -> f64 {
        let rate = self.rate.get();
        let step = self.step * scale;
        let cut = self.beta * scale;
        if rtt < self.t_low {
            return rate + step;
        }
        if rtt > self.t_high {
            return rate * (1.0 - cut * (1.0 - self.t_high / rtt));
        }
        let gradient = self.trend / self.rtt_min;
        match self.gradient {
            Gradient::Original if gradient > 0.0 => rate * (1.0 - cut * gradient),
            Gradient::Original if self.falling >= self.hyper_after => rate + HYPER_STEPS * step,
            Gradient::Original => rate + step,
            Gradient::Patched => {
                let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
                let excess = (rtt - self.t_low) / self.t_low;
                rate * (1.0 - cut * weight * excess) + step * (1.0 - weight)
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
        if self.is_unlimited() && rtt >= self.t_low && !self.is_lasting(sample) {
            return;
        }
        let difference = rtt - self.last_rtt;
        self.falling = if difference < 0.0 { self.falling.saturating_add(1) } else { 0 };
        self.trend = (1.0 - self.alpha) * self.trend + self.alpha * difference;
        let scale = (sample.now.saturating_sub(self.updated) as f64 / self.rtt_min).min(1.0);
        self.rate.set(self.next_rate(rtt, scale).max(self.rate.get() * SHARE_MIN));
        (self.last_rtt, self.updated) = (rtt, sample.now);
    }

    fn spacing(&self, bytes: u32) -> u64 {
        self.rate.spacing(bytes)
    }

    fn is_unlimited(&self) -> bool {
        self.rate.is_unlimited()
    }

    fn allowance(&self) -> Allowance {
        self.rate.allowance()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    fn timely(gradient: Gradient) -> Timely {
        Timely::new(&TimelyConfig { gradient, ..TimelyConfig::default() }, 0)
    }

    /// Answers one packet after the other, each a whole step.
    fn answers(timely: &mut Timely, rtts: &[u64]) {
        for rtt in rtts {
            let now = timely.updated.max(timely.late_at) + rtt * MICRO;
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
    fn a_pause_of_a_process_limits_nothing_and_a_queue_does() {
        let mut timely = timely(Gradient::Original);
        let mut answer = |now: u64, rtt: u64| {
            let (now, rtt) = (now * MICRO, rtt * MICRO);
            timely.on_answer(&Sample { now, rtt, is_marked: false, credits: 32, bytes: 1000 });
            timely.is_unlimited()
        };
        // Everything in flight is late, whether its answers come at once or one by one.
        assert!(answer(5_000, 4_000) && answer(5_000, 3_990) && answer(5_002, 3_900));
        // Another pause, much later.
        assert!(answer(9_000, 3_000));
        // Packets sent then are late too.
        assert!(!answer(9_200, 190));
    }

    #[test]
    fn growing_round_trips_lower_the_rate_and_falling_ones_raise_it() {
        let mut timely = timely(Gradient::Original);
        answers(&mut timely, &[60, 70, 80, 90]);
        let low = timely.rate.get();
        assert!(low < 0.2 * timely.rate.max(), "a gradient above 1 halves the rate each time: {low}");
        answers(&mut timely, &[80]);
        let before = timely.rate.get();
        answers(&mut timely, &[75, 70, 65]);
        assert!(timely.rate.get() > before);
        let before = timely.rate.get();
        // By now five round trips in a row have fallen.
        answers(&mut timely, &[64]);
        assert!((timely.rate.get() - before - HYPER_STEPS * timely.step).abs() < 1e-9);
    }

    #[test]
    fn one_update_takes_half_at_most_and_the_least_rate_stays() {
        let mut timely = timely(Gradient::Original);
        answers(&mut timely, &[50_000, 50_000]);
        assert!(!timely.is_unlimited() && timely.rate.get() >= 0.5 * timely.rate.max());
        answers(&mut timely, &[60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900, 60, 900]);
        assert!(timely.rate.get() >= bytes_per_nano(TimelyConfig::default().rate_min));
    }

    #[test]
    fn the_patch_finds_a_queue_too_long_although_it_does_not_grow() {
        let (mut original, mut patched) = (timely(Gradient::Original), timely(Gradient::Patched));
        for timely in [&mut original, &mut patched] {
            answers(timely, &[200; 2_000]);
        }
        assert!(original.is_unlimited(), "a constant queue is all right with the gradient");
        assert!(patched.rate.get() < 0.2 * patched.rate.max(), "{}", patched.rate.get());
    }
}
