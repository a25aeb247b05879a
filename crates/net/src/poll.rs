//! What an endpoint does when there is nothing to do: keep polling, or sleep.

use std::time::Duration;

/// How an endpoint waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollPolicy {
    /// Never sleep: the lowest latency, a whole core.
    Spin,
    /// Poll for this long after the last work, then sleep until a packet or a timer. After an idle time of more than
    /// twice that, sleep at once: polling would not have ended it.
    Adaptive {
        /// How long to poll before sleeping.
        spin: Duration,
    },
    /// As `Adaptive`, but between two polls other threads that have work on this core get it: for processes that share
    /// cores and must answer sooner than a sleeping process wakes up.
    Yielding {
        /// How long to poll before sleeping.
        spin: Duration,
    },
    /// Sleep whenever there is nothing to do.
    Sleep,
}

impl Default for PollPolicy {
    /// Adaptive, polling for 50 us: about three times what a wake-up costs.
    fn default() -> Self {
        PollPolicy::Adaptive { spin: Duration::from_micros(50) }
    }
}

/// Longest single sleep. A lost wake-up, which no transport should have, then costs this much and does not last for
/// ever.
pub const SLEEP_MAX: Duration = Duration::from_millis(100);

/// An idle time counts as short up to this multiple of the policy's polling time: it includes the wake-up, which
/// polling saves.
const SHORT_SPINS: u128 = 2;

/// Decides for one endpoint when an idle loop sleeps.
///
/// A loop polls before it sleeps if the previous idle time was short, so that polling could have ended it. A loop that
/// only timers wake, every few milliseconds, sleeps at once.
#[derive(Debug)]
pub struct Idle {
    policy: PollPolicy,
    idle_since: Option<u64>,
    /// Whether the last idle time was short.
    was_short: bool,
    /// Whether the loop has slept in the present idle time.
    has_slept: bool,
}

impl Idle {
    /// Starts as busy.
    pub fn new(policy: PollPolicy) -> Self {
        Idle { policy, idle_since: None, was_short: true, has_slept: false }
    }

    /// Notes that an iteration found work.
    #[inline]
    pub fn on_work(&mut self) {
        if self.idle_since.take().is_some() && !self.has_slept {
            self.was_short = true;
        }
        self.has_slept = false;
    }

    /// Notes that a sleep ended at `now`.
    #[inline]
    pub fn on_wake(&mut self, now: u64) {
        let (PollPolicy::Adaptive { spin } | PollPolicy::Yielding { spin }) = self.policy else { return };
        let idle = now.saturating_sub(self.idle_since.unwrap_or(now));
        self.was_short = u128::from(idle) < SHORT_SPINS * spin.as_nanos();
        self.has_slept = true;
    }

    /// Whether an iteration without work should sleep, at the time `now`. If not, this may yield the core to other
    /// threads.
    #[inline]
    pub fn should_sleep(&mut self, now: u64) -> bool {
        match self.policy {
            PollPolicy::Spin => false,
            PollPolicy::Sleep => true,
            PollPolicy::Adaptive { spin } => self.has_spun(now, spin),
            PollPolicy::Yielding { spin } => {
                let has_spun = self.has_spun(now, spin);
                if !has_spun {
                    std::thread::yield_now();
                }
                has_spun
            }
        }
    }

    fn has_spun(&mut self, now: u64, spin: Duration) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        let is_pointless = !self.was_short || self.has_slept;
        is_pointless || u128::from(now.saturating_sub(since)) >= spin.as_nanos()
    }
}

/// How long a sleep that begins at `now` may last if `timer`, a time on the same clock, must be met.
pub fn sleep_time(now: u64, timer: Option<u64>) -> Duration {
    timer.map_or(SLEEP_MAX, |t| Duration::from_nanos(t.saturating_sub(now)).min(SLEEP_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1000;
    const POLICIES: [PollPolicy; 2] = [
        PollPolicy::Adaptive { spin: Duration::from_micros(300) },
        PollPolicy::Yielding { spin: Duration::from_micros(300) },
    ];

    /// What a loop did whose work arrives at given times.
    struct Ran {
        polled: u64,
        sleeps: u32,
    }

    /// Runs a loop that takes a microsecond to poll, and 20 to wake up.
    fn run(policy: PollPolicy, work: impl Iterator<Item = u64>) -> Ran {
        let (mut idle, mut now, mut ran) = (Idle::new(policy), 0, Ran { polled: 0, sleeps: 0 });
        for due in work {
            while now < due {
                if idle.should_sleep(now) {
                    now = due + 20 * MICRO;
                    idle.on_wake(now);
                    ran.sleeps += 1;
                } else {
                    now += MICRO;
                    ran.polled += MICRO;
                }
            }
            idle.on_work();
        }
        ran
    }

    #[test]
    fn a_loop_that_only_timers_wake_polls_once() {
        for policy in POLICIES {
            let ran = run(policy, (1..=1000).map(|tick| tick * 10_000 * MICRO));
            assert_eq!((ran.polled, ran.sleeps), (300 * MICRO, 1000), "{policy:?}");
        }
    }

    #[test]
    fn a_loop_with_work_every_now_and_then_polls_for_it() {
        for policy in POLICIES {
            let ran = run(policy, (1..=1000).map(|call| call * 250 * MICRO));
            assert_eq!(ran.sleeps, 0, "{policy:?}");
        }
    }

    /// After a quiet time there is a wake-up for the first work, and one for the work that comes soon after it.
    #[test]
    fn a_loop_polls_again_when_work_comes_soon_after_other_work() {
        for policy in POLICIES {
            let (quiet, busy) = (10_000 * MICRO, 250 * MICRO);
            let ran = run(policy, (0..1000).map(|call| quiet * (1 + call / 100) + busy * (1 + call)));
            assert!((10..=20).contains(&ran.sleeps), "{} sleeps, {policy:?}", ran.sleeps);
        }
    }
}
