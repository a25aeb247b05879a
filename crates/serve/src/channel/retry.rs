//! When a call is retried.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::random::Random;

/// What a success adds to the budget; a retry costs 1.
const REFUND: f64 = 0.1;

/// When calls are retried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts of one call, including the first. Default 4.
    pub attempts_max: u32,
    /// Pause before the second attempt, randomised from half to one and a half times this; doubled before each further
    /// attempt. Default 1 ms.
    pub pause: Duration,
    /// Longest pause. Default 100 ms.
    pub pause_max: Duration,
    /// Retries that all calls of a channel together may make in a row. Ten successful calls earn another one, so an
    /// overloaded server gets at most a tenth more calls from retries. Default 20.
    pub budget: u32,
}

impl Default for Retry {
    fn default() -> Self {
        let (pause, pause_max) = (Duration::from_millis(1), Duration::from_millis(100));
        Retry { attempts_max: 4, pause, pause_max, budget: 20 }
    }
}

/// What is left of a channel's budget.
pub(super) struct Budget {
    retry: Retry,
    left: Cell<f64>,
    random: RefCell<Random>,
}

impl Budget {
    pub fn new(retry: Retry, seed: u64) -> Budget {
        Budget { retry, left: Cell::new(f64::from(retry.budget)), random: RefCell::new(Random::new(seed)) }
    }

    /// Notes that a call has succeeded.
    pub fn refund(&self) {
        self.left.set((self.left.get() + REFUND).min(f64::from(self.retry.budget)));
    }

    /// The pause before the next attempt; `None` if there must be none, or if no time would be left for it; that costs
    /// nothing.
    pub fn spend(&self, attempts: u32, time_left: Option<Duration>) -> Option<Duration> {
        if attempts >= self.retry.attempts_max || self.left.get() < 1.0 {
            return None;
        }
        let pause = self.pause(attempts);
        if time_left.is_some_and(|left| left <= pause) {
            return None;
        }
        self.left.set(self.left.get() - 1.0);
        Some(pause)
    }

    fn pause(&self, attempts: u32) -> Duration {
        let pause = self.retry.pause.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(self.retry.pause_max);
        let nanos = nanos(pause).min(u64::MAX / 2);
        Duration::from_nanos(nanos / 2 + self.random.borrow_mut().below(nanos.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_cost_a_tenth_of_what_succeeds_at_most() {
        let budget = Budget::new(Retry { budget: 2, ..Retry::default() }, 1);
        assert!(budget.spend(1, None).is_some() && budget.spend(1, None).is_some() && budget.spend(1, None).is_none());
        (0..9).for_each(|_| budget.refund());
        assert!(budget.spend(1, None).is_none());
        (0..2).for_each(|_| budget.refund());
        assert!(budget.spend(1, None).is_some() && budget.spend(1, None).is_none());
        (0..1000).for_each(|_| budget.refund());
        assert_eq!(
            (0..10).filter(|_| budget.spend(1, None).is_some()).count(),
            2,
            "no more than the budget is saved up"
        );
        (0..1000).for_each(|_| budget.refund());
        assert!(budget.spend(4, None).is_none(), "the fourth attempt is the last");
        let spent = (0..1000).filter(|_| budget.spend(1, Some(Duration::from_micros(400))).is_some()).count();
        assert!(
            spent == 0 && budget.spend(1, Some(Duration::from_secs(1))).is_some(),
            "a pause takes half of it at least"
        );
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let retry = Retry { attempts_max: u32::MAX, budget: 1000, ..Retry::default() };
        let budget = Budget::new(retry, 7);
        for attempts in 1..100 {
            let middle = retry.pause.saturating_mul(1 << (attempts - 1).min(20)).min(retry.pause_max);
            let pause = budget.spend(attempts, None).unwrap();
            assert!(pause >= middle / 2 && pause <= middle * 3 / 2, "{attempts}: {pause:?}");
        }
        assert_ne!(budget.spend(1, None), budget.spend(1, None));
    }
}
