//! DCQCN: a rate from the marks of switches (Zhu et al., SIGCOMM 2015).
//!
//! A marked packet lowers the rate by a share that depends on how often packets are marked, at most once per interval.
//! Without marks the rate returns in steps, driven by a timer and a byte counter: half the way back to where it was
//! (fast recovery), then beyond (additive increase), then faster (hyper increase). What NICs do with congestion
//! notification packets, servers here do with a bit in the answer. Elapsed timer periods are computed when an answer
//! comes, so no timers run.

use std::time::Duration;

use dunlin_net::clock::nanos;

use super::rate::{Rate, bytes_per_nano, check_rates};
use super::{Algorithm, Allowance, Sample, refuse};
use crate::config::ConfigError;

/// Parameters of DCQCN. The defaults are those of its paper, with the timers of "ECN or Delay" (section 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DcqcnConfig {
    /// Rate of this host's link, in bits per second: the initial and the maximum rate of a session. Default 25 Gbit/s.
    pub link_rate: u64,
    /// Minimum rate of a session, in bits per second. Default 40 Mbit/s.
    pub rate_min: u64,
    /// Marks within this time count as one. Default 50 us.
    pub mark_interval: Duration,
    /// Weight of a new observation in the estimate of congestion. Default 1/256.
    pub gain: f64,
    /// Time without a mark that counts as an observation. Default 55 us.
    pub alpha_timer: Duration,
    /// Time after which the rate makes a step up. Default 55 us.
    pub increase_timer: Duration,
    /// Bytes after which the rate makes a step up, too. Default 10 MB.
    pub increase_bytes: u64,
    /// Steps of fast recovery. Default 5.
    pub recovery_steps: u32,
    /// Step of additive increase, in bits per second. Default 40 Mbit/s.
    pub additive_step: u64,
    /// Step of hyper increase, in bits per second. Default 400 Mbit/s.
    pub hyper_step: u64,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        DcqcnConfig {
            link_rate: 25_000_000_000,
            rate_min: 40_000_000,
            mark_interval: Duration::from_micros(50),
            gain: 1.0 / 256.0,
            alpha_timer: Duration::from_micros(55),
            increase_timer: Duration::from_micros(55),
            increase_bytes: 10_000_000,
            recovery_steps: 5,
            additive_step: 40_000_000,
            hyper_step: 400_000_000,
        }
    }
}

impl DcqcnConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_rates(self.link_rate, self.rate_min)?;
        if self.alpha_timer.is_zero() || self.increase_timer.is_zero() || self.increase_bytes == 0 {
            let value = (self.alpha_timer, self.increase_timer, self.increase_bytes);
            return refuse("dcqcn alpha_timer, increase_timer, increase_bytes", value, "choose more than 0");
        }
        if !(self.gain > 0.0 && self.gain <= 1.0) {
            return refuse("dcqcn gain", self.gain, "choose above 0 and at most 1");
        }
        Ok(())
    }
}

/// At most this many periods of a timer are made up for: after more of them nothing changes any more.
const PERIODS_MAX: u64 = 4096;

/// State of one session. Times in nanoseconds, rates in bytes per nanosecond.
#[derive(Debug)]
pub(crate) struct Dcqcn {
    rate: Rate,
    /// The rate before it was cut, to which it returns.
    target: f64,
    additive_step: f64,
    hyper_step: f64,
    /// Estimate of congestion: the share of observations with a mark.
    alpha: f64,
    gain: f64,
    mark_interval: u64,
    alpha_timer: u64,
    increase_timer: u64,
    increase_bytes: u64,
    recovery_steps: u32,
    cut_at: Option<u64>,
    alpha_at: u64,
    timer_at: u64,
    bytes: u64,
    /// Steps since the last cut, by the timer and by the byte counter.
    timer_steps: u32,
    byte_steps: u32,
}

impl Dcqcn {
    pub(super) fn new(config: &DcqcnConfig, now: u64) -> Dcqcn {
        Dcqcn {
            rate: Rate::of_link(config.link_rate, config.rate_min),
            target: bytes_per_nano(config.link_rate),
            additive_step: bytes_per_nano(config.additive_step),
            hyper_step: bytes_per_nano(config.hyper_step),
            alpha: 1.0,
            gain: config.gain,
            mark_interval: nanos(config.mark_interval),
            alpha_timer: nanos(config.alpha_timer),
            increase_timer: nanos(config.increase_timer),
            increase_bytes: config.increase_bytes,
            recovery_steps: config.recovery_steps,
            cut_at: None,
            alpha_at: now,
            timer_at: now,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
        }
    }

    fn cut(&mut self, now: u64) {
        self.target = self.rate.get();
        self.rate.set(self.rate.get() * (1.0 - self.alpha / 2.0));
        self.alpha = (1.0 - self.gain) * self.alpha + self.gain;
        (self.cut_at, self.alpha_at, self.timer_at) = (Some(now), now, now);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    fn step_up(&mut self) {
        let (most, least) = (self.timer_steps.max(self.byte_steps), self.timer_steps.min(self.byte_steps));
        if least > self.recovery_steps {
            self.target += self.hyper_step;
        } else if most > self.recovery_steps {
            self.target += self.additive_step;
        }
        self.target = self.target.min(self.rate.max());
        let next = (self.rate.get() + self.target) / 2.0;
        // Halving the distance would never reach the maximum.
        self.rate.set(if next > 0.999 * self.rate.max() { self.rate.max() } else { next });
    }
}

/// Whole periods since `*since`, which is advanced by them.
fn periods(since: &mut u64, now: u64, period: u64) -> u64 {
    let count = now.saturating_sub(*since) / period;
    *since += count * period;
    count.min(PERIODS_MAX)
}

impl Algorithm for Dcqcn {
    fn on_answer(&mut self, sample: &Sample) {
        let calm = periods(&mut self.alpha_at, sample.now, self.alpha_timer);
        self.alpha *= (1.0 - self.gain).powi(calm as i32);
        if sample.is_marked && self.cut_at.is_none_or(|at| sample.now.saturating_sub(at) >= self.mark_interval) {
            return self.cut(sample.now);
        }
        if self.is_unlimited() {
            return;
        }
        for _ in 0..periods(&mut self.timer_at, sample.now, self.increase_timer) {
            self.timer_steps = self.timer_steps.saturating_add(1);
            self.step_up();
        }
        self.bytes += u64::from(sample.bytes);
        if self.bytes >= self.increase_bytes {
            self.bytes = 0;
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.step_up();
        }
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

    fn answer(dcqcn: &mut Dcqcn, micros: u64, marked: bool) {
        dcqcn.on_answer(&Sample { now: micros * MICRO, rtt: 10 * MICRO, is_marked: marked, credits: 32, bytes: 1000 });
    }

    #[test]
    fn the_first_mark_halves_the_rate_and_others_soon_after_do_nothing() {
        let mut dcqcn = Dcqcn::new(&DcqcnConfig::default(), 0);
        answer(&mut dcqcn, 10, true);
        assert_eq!(dcqcn.rate.get(), 0.5 * dcqcn.rate.max());
        answer(&mut dcqcn, 59, true);
        assert_eq!(dcqcn.rate.get(), 0.5 * dcqcn.rate.max());
        answer(&mut dcqcn, 60, true);
        assert!(dcqcn.rate.get() < 0.26 * dcqcn.rate.max());
    }

    #[test]
    fn without_marks_it_recovers_then_grows_then_grows_fast() {
        let config = DcqcnConfig { increase_bytes: 100_000, ..DcqcnConfig::default() };
        let mut dcqcn = Dcqcn::new(&config, 0);
        for micros in [0, 50, 100, 150] {
            answer(&mut dcqcn, micros, true);
        }
        let target = dcqcn.target;
        // Each of the five steps of fast recovery goes half the way.
        for step in 1..=5 {
            answer(&mut dcqcn, 150 + 55 * step, false);
        }
        assert_eq!(dcqcn.target, target);
        assert!(dcqcn.rate.get() > 0.95 * target && dcqcn.rate.get() < target);
        answer(&mut dcqcn, 150 + 55 * 6, false);
        assert!((dcqcn.target - target - dcqcn.additive_step).abs() < 1e-12);
        // Long afterwards the rate is where it was.
        for micros in 0..4_000 {
            answer(&mut dcqcn, 1_000 + 10 * micros, false);
        }
        assert!(dcqcn.is_unlimited());
    }

    #[test]
    fn a_long_silence_is_made_up_for_in_one_answer() {
        let mut dcqcn = Dcqcn::new(&DcqcnConfig::default(), 0);
        for micros in [0, 50, 100, 150, 200, 250] {
            answer(&mut dcqcn, micros, true);
        }
        answer(&mut dcqcn, 60_000_000, false);
        assert!(dcqcn.is_unlimited());
        assert!(dcqcn.alpha < 1e-6);
    }
}
