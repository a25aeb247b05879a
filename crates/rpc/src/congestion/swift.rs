//! A window that keeps the queueing delay at a target, after Swift (Kumar et al., SIGCOMM 2020), for a network about
//! which nothing is known.
//!
//! While the round trip of packets stays below the target, the window grows by a packet per round trip; above it, the
//! window shrinks in proportion to the excess, once per round trip. Below one packet, pacing enforces the window: one
//! packet in several round trips. So hundreds of senders share a port without a standing queue, where algorithms that
//! raise rates blindly between rare answers (Timely, DCQCN) overshoot.
//!
//! What differs from Swift:
//!
//! - The target is never below 5/4 of the session's own shortest round trip. So nobody has to configure the length of
//!   paths, and a network with long paths or slow wake-ups is not mistaken for a congested one. On short paths all
//!   senders have the same target, which divides a port fairly among them: a session that began in a full queue, and
//!   never saw the empty path, gets no more than others.
//! - A window far above what the path takes is cut to what it takes at once, instead of by half per round trip: the
//!   packets in flight are the queue, so `window * target / delay` is the right window. Only the first round trip of an
//!   incast is then a bad one. But one answer alone never cuts the window below one packet: a peer that did not run for
//!   50 ms looks like that, and is not congestion.
//! - The window grows faster the longer the queue has been short, so that a session soon has the use of all its credits
//!   again.
//! - ECN marks of switches shrink the window as in DCTCP, by the share of packets marked; without marks nothing
//!   changes.
//! - Losses count only if the packets before them were delayed: others are corruption, and slowing down does not help
//!   against that.

use std::time::Duration;

use super::{Algorithm, Allowance, Sample, refuse};
use crate::config::ConfigError;

/// Parameters of the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwiftConfig {
    /// Target round trip of a session with a large window, or 5/4 of its shortest one if that is more. Default 40 us:
    /// on a path of 6 us at 25 Gbit/s, a queue of a hundred packets of 1 KiB.
    pub target: Duration,
    /// Additional target delay of the smallest windows; in between it falls with the root of the window. Many senders
    /// cause a queue that varies more, and this lets those with small windows gain on those with large ones. Default 50
    /// us.
    pub scaling_range: Duration,
    /// Packets by which the window grows in a round trip. Default 0.25.
    pub increase: f64,
    /// Share of the excess delay by which the window shrinks. Default 0.8.
    pub decrease: f64,
    /// Greatest share of the window that one cut for losses, marks or (below one packet) delays takes. Default 0.5.
    pub decrease_max: f64,
    /// Minimum window, in packets. Default 0.01: a packet in a hundred round trips.
    pub window_min: f64,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        SwiftConfig {
            target: Duration::from_micros(40),
            scaling_range: Duration::from_micros(50),
            increase: 0.25,
            decrease: 0.8,
            decrease_max: 0.5,
            window_min: 0.01,
        }
    }
}

impl SwiftConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.target.is_zero() || self.target.as_secs() >= 1 || self.scaling_range.as_secs() >= 1 {
            let value = (self.target, self.scaling_range);
            return refuse("swift target, scaling_range", value, "choose a target above 0, and both below 1 s");
        }
        let share = |value: f64| value > 0.0 && value < 1.0;
        if !(share(self.decrease) && share(self.decrease_max) && self.increase > 0.0 && self.increase <= 64.0) {
            let value = (self.increase, self.decrease, self.decrease_max);
            return refuse(
                "swift increase, decrease, decrease_max",
                value,
                "choose above 0; shares below 1, packets at most 64",
            );
        }
        if !(0.001..=1.0).contains(&self.window_min) {
            return refuse("swift window_min", self.window_min, "choose 0.001 to 1");
        }
        Ok(())
    }
}

/// Windows, in packets, between which the target falls from its whole scaling range to nothing (Swift, section 3.1).
const SCALING_WINDOW_MIN: f64 = 0.1;
const SCALING_WINDOW_MAX: f64 = 100.0;
/// The shortest round trip may grow by this factor after [`BASE_AGE_NANOS`]: routes change. It grows slowly, because
/// during lasting congestion nobody sees the empty path.
const BASE_GROWTH: f64 = 1.25;
const BASE_AGE_NANOS: u64 = 10_000_000_000;
/// Minimum target, as a multiple of the shortest round trip.
const BASE_SHARE: f64 = 1.25;
/// Round trips count as free of a queue if they exceed the shortest by less than this share of the target's excess.
const CALM_SHARE: f64 = 0.25;
/// The window grows twice as fast after this many round trips with a short queue, and doubles again after as many more,
/// up to a limit.
const CALM_ROUNDS: u32 = 4;
const CALM_DOUBLINGS_MAX: u32 = 5;
/// Weight of a round trip in the share of packets marked (DCTCP's g).
const MARK_GAIN: f64 = 1.0 / 16.0;
/// Windows above one packet are paced a little faster than they are answered, so that answers clock the sending and
/// pacing only spreads bursts.
const PACING_GAIN: f64 = 1.25;
/// For pacing, round trips count as at most this many targets: a longer one tells more about the peer than about the
/// path.
const PACED_RTT_TARGETS: f64 = 2.0;

/// State of one session. Times in nanoseconds, the window in packets.
#[derive(Debug)]
pub(crate) struct Swift {
    window: f64,
    /// The credits of the session as last seen.
    window_max: f64,
    /// While the window limits nothing, it follows the credits.
    is_unlimited: bool,
    config: SwiftConfig,
    target: f64,
    /// Shortest round trip, without a queue; infinite before the first.
    base: f64,
    base_at: u64,
    /// Shortest since `base_at`.
    base_next: f64,
    /// The last round trip.
    rtt: f64,
    /// Packets sent before this time do not lower the window again.
    decreased_at: u64,
    /// When the current round trip began, and what was seen in it.
    round_at: u64,
    answers: u32,
    marks: u32,
    longest: f64,
    /// Round trips in a row with a short queue.
    calm_rounds: u32,
    /// Estimate of the share of packets marked.
    marked_share: f64,
}

impl Swift {
    pub(super) fn new(config: &SwiftConfig, credits: u16, rtt_min: Option<u64>) -> Swift {
        Swift {
            window: f64::from(credits),
            window_max: f64::from(credits),
            is_unlimited: true,
            config: *config,
            target: config.target.as_nanos() as f64,
            base: rtt_min.map_or(f64::INFINITY, |rtt| rtt as f64),
            base_at: 0,
            base_next: f64::INFINITY,
            rtt: 0.0,
            decreased_at: 0,
            round_at: 0,
            answers: 0,
            marks: 0,
            longest: 0.0,
            calm_rounds: 0,
            marked_share: 1.0,
        }
    }

    fn note_credits(&mut self, credits: u16) {
        self.window_max = f64::from(credits.max(1));
        self.window = if self.is_unlimited { self.window_max } else { self.window.min(self.window_max) };
    }

    fn note_base(&mut self, sample: &Sample) {
        let rtt = sample.rtt as f64;
        if sample.now.saturating_sub(self.base_at) >= BASE_AGE_NANOS {
            if self.base_next.is_finite() {
                self.base = self.base_next.min(self.base * BASE_GROWTH);
            }
            (self.base_at, self.base_next) = (sample.now, f64::INFINITY);
        }
        self.base = self.base.min(rtt);
        self.base_next = self.base_next.min(rtt);
    }

    /// Target round trip of a large window.
    fn common_target(&self) -> f64 {
        if self.base.is_finite() { self.target.max(BASE_SHARE * self.base) } else { self.target }
    }

    /// Round trips up to this are treated as free of a queue.
    fn calm_rtt(&self) -> f64 {
        self.base + CALM_SHARE * (self.common_target() - self.base)
    }

    /// Target round trip of the present window.
    fn own_target(&self) -> f64 {
        let falling = |window: f64| 1.0 / window.sqrt();
        let (low, high) = (falling(SCALING_WINDOW_MAX), falling(SCALING_WINDOW_MIN));
        let share = ((falling(self.window) - low) / (high - low)).clamp(0.0, 1.0);
        self.common_target() + share * self.config.scaling_range.as_nanos() as f64
    }

    /// Counts an answer into the current round trip, and ends that if the packet was sent after it began.
    fn note_round(&mut self, sample: &Sample) {
        self.answers += 1;
        self.marks += u32::from(sample.is_marked);
        self.longest = self.longest.max(sample.rtt as f64);
        if sample.now.saturating_sub(sample.rtt) < self.round_at {
            return;
        }
        let is_calm = self.marks == 0 && self.longest <= self.calm_rtt();
        self.calm_rounds = if is_calm { self.calm_rounds.saturating_add(1) } else { 0 };
        let share = f64::from(self.marks) / f64::from(self.answers);
        self.marked_share += MARK_GAIN * (share - self.marked_share);
        self.round_at = sample.now;
        (self.answers, self.marks, self.longest) = (0, 0, 0.0);
    }

    fn grow(&mut self) {
        let doublings = (self.calm_rounds / CALM_ROUNDS).min(CALM_DOUBLINGS_MAX);
        let increase = self.config.increase * f64::from(1 << doublings);
        // A round trip has about `window` answers. One answer at most doubles the window.
        let step = (increase / self.window).min(self.window);
        self.window = (self.window + step).min(self.window_max);
        self.is_unlimited = self.window >= self.window_max;
    }

    /// Shrinks the window to `share` of itself, and remembers when.
    fn shrink(&mut self, share: f64, least: f64, now: u64) {
        self.window = (self.window * share).max(least).max(self.config.window_min).min(self.window);
        self.is_unlimited = self.window >= self.window_max;
        self.decreased_at = now;
        self.calm_rounds = 0;
    }

    /// The share of the window that remains after a delay above the target.
    fn share_after_delay(&self, rtt: f64, target: f64) -> f64 {
        let proportional = target / rtt;
        let gentle = 1.0 - self.config.decrease * (rtt - target) / rtt;
        if rtt > 2.0 * target { proportional } else { gentle }
    }

    /// The minimum window after one cut.
    fn least_after_cut(&self) -> f64 {
        (self.window * (1.0 - self.config.decrease_max)).min(1.0)
    }
}

impl Algorithm for Swift {
    fn on_answer(&mut self, sample: &Sample) {
        self.note_credits(sample.credits);
        self.note_base(sample);
        self.note_round(sample);
        let rtt = sample.rtt as f64;
        self.rtt = rtt;
        let target = self.own_target();
        let is_long = rtt > target;
        if !is_long && !sample.is_marked {
            return self.grow();
        }
        if sample.now.saturating_sub(sample.rtt) < self.decreased_at {
            // It was in flight already when the window was cut.
            return;
        }
        let after_delay = if is_long { self.share_after_delay(rtt, target) } else { 1.0 };
        let after_mark = if sample.is_marked { 1.0 - self.config.decrease_max * self.marked_share } else { 1.0 };
        self.shrink(after_delay.min(after_mark), self.least_after_cut(), sample.now);
    }

    fn on_loss(&mut self, now: u64) {
        let waited = self.rtt > self.calm_rtt();
        if waited && now.saturating_sub(self.rtt as u64) >= self.decreased_at {
            self.shrink(1.0 - self.config.decrease_max, self.least_after_cut(), now);
        }
    }

    fn on_timeout(&mut self, now: u64) {
        // The calls in other slots time out at about the same time.
        let is_one_of_many = now.saturating_sub(self.decreased_at) < (2.0 * self.own_target()).max(self.rtt) as u64;
        if is_one_of_many && self.decreased_at != 0 {
            return;
        }
        // Not below one packet: retransmission timeouts back off by themselves.
        self.shrink(1.0 - self.config.decrease_max, 1.0, now);
    }

    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn spacing(&self, _bytes: u32) -> u64 {
        if self.is_unlimited() {
            return 0;
        }
        let window = if self.window > 1.0 { self.window * PACING_GAIN } else { self.window };
        (self.rtt.min(PACED_RTT_TARGETS * self.own_target()) / window) as u64
    }

    fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    fn allowance(&self) -> Allowance {
        if self.is_unlimited() { Allowance::Unlimited } else { Allowance::Window(self.window) }
    }
}
