//! What an endpoint does when there is nothing to do: keep polling, or sleep.

use std::time::Duration;

/// How an endpoint waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollPolicy {
    /// Never sleep: the lowest latency, a whole core.
    Spin,
    /// Poll for this long after the last packet, then sleep until a packet or a timer.
    Adaptive {
        /// How long to poll before sleeping.
        spin: Duration,
    },
    /// The same, but between two polls whoever else has work on this core gets it: for processes that share cores, and should answer sooner than a sleeper wakes.
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

/// Longest single sleep. A lost wake-up, which no transport should have, then costs this much and not for ever.
pub const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Decides for one endpoint when an idle loop sleeps.
#[derive(Debug)]
pub struct Idle {
    policy: PollPolicy,
    idle_since: Option<u64>,
}

impl Idle {
    /// Starts as busy.
    pub fn new(policy: PollPolicy) -> Self {
        Idle { policy, idle_since: None }
    }

    /// Tells that an iteration found work.
    #[inline]
    pub fn on_work(&mut self) {
        self.idle_since = None;
    }

    /// Whether an iteration without work should sleep, given the time. If it should not, others may get the core meanwhile.
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
        u128::from(now.saturating_sub(since)) >= spin.as_nanos()
    }
}

/// How long a sleep may last that begins at `now` and is to end when `timer`, a time on the same clock, is due.
pub fn sleep_time(now: u64, timer: Option<u64>) -> Duration {
    timer.map_or(SLEEP_MAX, |t| Duration::from_nanos(t.saturating_sub(now)).min(SLEEP_MAX))
}
