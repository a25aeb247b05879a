//! The time of a process in ticks, shared by all its groups.
//!
//! An idle process sleeps for several ticks at once, up to a heartbeat. When it wakes, the passed ticks are counted
//! before anything else, since new messages belong to the present: a follower must not count time before a heartbeat as
//! time after it. A process that sleeps for a single tick counts it when its timer fires, whatever arrived before. So
//! one tick may be cut short, and a leader's lease leaves that one out. After a longer pause, only the planned ticks
//! count: a process that stood still must not depose a leader that it could not hear.

use std::cell::Cell;
use std::time::Duration;

use dunlin_net::clock::nanos;

/// Ticks of a process.
pub(super) struct Ticks {
    tick: u64,
    /// When the last tick ended, by the replica's clock.
    last: Cell<u64>,
    /// Ticks until the next planned look.
    planned: Cell<u32>,
}

impl Ticks {
    /// Starts counting now.
    pub fn new(tick: Duration, now: u64) -> Ticks {
        Ticks { tick: nanos(tick), last: Cell::new(now), planned: Cell::new(1) }
    }

    /// Whether the process sleeps for several ticks, so that some may have passed unnoticed.
    pub fn are_skipped(&self) -> bool {
        self.planned.get() > 1
    }

    /// Plans the next look after this many ticks.
    pub fn plan(&self, ticks: u32) {
        self.planned.set(ticks.max(1));
    }

    /// Returns the time until then.
    pub fn left(&self, now: u64) -> Duration {
        let due = self.last.get() + u64::from(self.planned.get()) * self.tick;
        Duration::from_nanos(due.saturating_sub(now))
    }

    /// Takes the ticks that have passed, each of which took at least 15/16 of a tick. Leases rest on that.
    pub fn pass(&self, now: u64) -> u32 {
        let (last, planned) = (self.last.get(), self.planned.get());
        let passed = (now.saturating_sub(last) + self.tick / 16) / self.tick;
        let counted = passed.min(planned.into()) as u32;
        if counted > 0 {
            // Time beyond the planned ticks does not count.
            let end = if passed > u64::from(planned) { now } else { last + u64::from(counted) * self.tick };
            self.last.set(end.min(now));
            self.planned.set((planned - counted).max(1));
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 1600;

    fn ticks(planned: u32) -> Ticks {
        let ticks = Ticks::new(Duration::from_nanos(TICK), 1000);
        ticks.plan(planned);
        ticks
    }

    #[test]
    fn a_tick_is_counted_when_it_has_passed() {
        let one = ticks(1);
        assert_eq!([1000, 2499, 2500, 2600, 3999, 4000, 4099].map(|now| one.pass(now)), [0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(one.left(4200), Duration::from_nanos(1400));
    }

    #[test]
    fn those_that_were_slept_for_are_counted_and_no_others() {
        let five = ticks(5);
        assert_eq!(five.left(1000), Duration::from_nanos(5 * TICK));
        assert_eq!((five.pass(1000 + 2 * TICK + 300), five.are_skipped()), (2, true));
        assert_eq!(five.left(1000 + 2 * TICK + 300), Duration::from_nanos(3 * TICK - 300));
        // The process stood still.
        assert_eq!((five.pass(1000 + 100 * TICK), five.are_skipped()), (3, false));
        assert_eq!(five.pass(1000 + 101 * TICK - 200), 0);
        assert_eq!(five.pass(1000 + 101 * TICK), 1);
    }
}
