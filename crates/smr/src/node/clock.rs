//! Time of a process in ticks, which all its groups count together.
//!
//! A process that has nothing to do sleeps for several ticks at once, up to a heartbeat. Those that have passed are
//! counted before anything else is looked at, since what comes now is of now: a follower must not count time before a
//! heartbeat as time after it, nor may a leader's lease rest on that. Of a longer time no more ticks count than were
//! slept for: a process that stood still is not to depose a leader that it did not look for.

use std::cell::Cell;
use std::time::Duration;

/// Ticks of a process.
pub(super) struct Ticks {
    tick: u64,
    /// When the last one ended, by the replica's clock.
    last: Cell<u64>,
    /// Ticks until somebody is to look.
    planned: Cell<u32>,
}

impl Ticks {
    /// They begin now.
    pub fn new(tick: Duration, now: u64) -> Ticks {
        Ticks { tick: tick.as_nanos() as u64, last: Cell::new(now), planned: Cell::new(1) }
    }

    /// Whether several ticks are slept for, so that some may have passed unnoticed.
    pub fn are_skipped(&self) -> bool {
        self.planned.get() > 1
    }

    /// Somebody is to look after so many ticks.
    pub fn plan(&self, ticks: u32) {
        self.planned.set(ticks.max(1));
    }

    /// How long it is until then.
    pub fn left(&self, now: u64) -> Duration {
        let due = self.last.get() + u64::from(self.planned.get()) * self.tick;
        Duration::from_nanos(due.saturating_sub(now))
    }

    /// Takes the ticks that have passed, each of which took 15/16 of a tick at least. Leases rest on that.
    pub fn pass(&self, now: u64) -> u32 {
        let (last, planned) = (self.last.get(), self.planned.get());
        let passed = (now.saturating_sub(last) + self.tick / 16) / self.tick;
        let counted = passed.min(planned.into()) as u32;
        if counted > 0 {
            // What is left of a time that was not slept for does not count.
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
        // It stood still.
        assert_eq!((five.pass(1000 + 100 * TICK), five.are_skipped()), (3, false));
        assert_eq!(five.pass(1000 + 101 * TICK - 200), 0);
        assert_eq!(five.pass(1000 + 101 * TICK), 1);
    }
}
