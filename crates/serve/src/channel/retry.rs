//! When a call is tried again.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use dunlin_net::random::Random;

/// What a success adds to the budget; a retry costs 1.
const REFUND: f64 = 0.1;

/// When calls are tried again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts of one call, the first included. Default 4.
    pub attempts_max: u32,
    /// How long is waited before the second attempt, from half to one and a half of it at random; twice as long before
    /// each further one. Default 1 ms.
    pub pause: Duration,
    /// Longest of these. Default 100 ms.
    pub pause_max: Duration,
    /// Retries that all calls of a channel may make in a row. Ten calls that succeed earn another: so a server that is
    /// overloaded gets at most a tenth more calls for it. Default 20.
    pub budget: u32,
}

impl Default for Retry {
    fn default() -> Self {
        let (pause, pause_max) = (Duration::from_millis(1), Duration::from_millis(100));
        Retry { attempts_max: 4, pause, pause_max, budget: 20 }
    }
}

/// What is left of the budget of a channel.
pub(super) struct Budget {
    retry: Retry,
    left: Cell<f64>,
    random: RefCell<Random>,
}

impl Budget {
    pub fn new(retry: Retry, seed: u64) -> Budget {
        Budget { retry, left: Cell::new(f64::from(retry.budget)), random: RefCell::new(Random::new(seed)) }
    }

    /// A call has succeeded.
    pub fn refund(&self) {
        self.left.set((self.left.get() + REFUND).min(f64::from(self.retry.budget)));
    }

    /// How long is to be waited before the next attempt; `None` if there shall be none.
    pub fn spend(&self, attempts: u32) -> Option<Duration> {
        if attempts >= self.retry.attempts_max || self.left.get() < 1.0 {
            return None;
        }
        self.left.set(self.left.get() - 1.0);
        let pause = self.retry.pause.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(self.retry.pause_max);
        let nanos: u64 = pause.as_nanos().try_into().unwrap_or(u64::MAX / 2);
        Some(Duration::from_nanos(nanos / 2 + self.random.borrow_mut().below(nanos.max(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_cost_a_tenth_of_what_succeeds_at_most() {
        let budget = Budget::new(Retry { budget: 2, ..Retry::default() }, 1);
        assert!(budget.spend(1).is_some() && budget.spend(1).is_some() && budget.spend(1).is_none());
        (0..9).for_each(|_| budget.refund());
        assert!(budget.spend(1).is_none());
        (0..2).for_each(|_| budget.refund());
        assert!(budget.spend(1).is_some() && budget.spend(1).is_none());
        (0..1000).for_each(|_| budget.refund());
        assert_eq!((0..10).filter(|_| budget.spend(1).is_some()).count(), 2, "no more than the budget is saved up");
        (0..1000).for_each(|_| budget.refund());
        assert!(budget.spend(4).is_none(), "the fourth attempt is the last");
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let retry = Retry { attempts_max: u32::MAX, budget: 1000, ..Retry::default() };
        let budget = Budget::new(retry, 7);
        for attempts in 1..100 {
            let middle = retry.pause.saturating_mul(1 << (attempts - 1).min(20)).min(retry.pause_max);
            let pause = budget.spend(attempts).unwrap();
            assert!(pause >= middle / 2 && pause <= middle * 3 / 2, "{attempts}: {pause:?}");
        }
        assert_ne!(budget.spend(1), budget.spend(1));
    }
}
