//! The gate of a session: when its next packet may be sent.
//!
//! Carousel (SIGCOMM 2017) and the paper keep *packets* in a timing wheel until they are due. Here only the session
//! waits: the wheel holds the time at which it may send next, and what it sends is chosen then. So no queued packet
//! refers to a buffer, a call that ends leaves nothing behind to be sent, and a change of the rate takes effect with
//! the next packet.

use crate::timer::TICK_NANOS;

/// A gate opens this much early: the step of the wheel, which is the resolution of pacing.
const EARLY_NANOS: u64 = TICK_NANOS;
/// A session that was late by no more than this catches up, so that the wheel's resolution does not lower its rate.
const CATCH_UP_NANOS: u64 = 8 * TICK_NANOS;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Gate {
    opens_at: u64,
}

impl Gate {
    pub fn is_open(&self, now: u64) -> bool {
        self.opens_at <= now + EARLY_NANOS
    }

    pub fn opens_at(&self) -> u64 {
        self.opens_at
    }

    /// Notes that a packet is sent; the gate then stays shut for `spacing` nanoseconds.
    pub fn pass(&mut self, now: u64, spacing: u64) {
        let from = if self.opens_at + CATCH_UP_NANOS < now { now } else { self.opens_at };
        self.opens_at = from.saturating_add(spacing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_although_timers_are_late() {
        let (mut gate, mut now, mut sent) = (Gate::default(), 1_000_000, 0);
        while now < 101_000_000 {
            while gate.is_open(now) {
                gate.pass(now, 10_300);
                sent += 1;
            }
            now = gate.opens_at().next_multiple_of(TICK_NANOS);
        }
        assert!((9_700..=9_720).contains(&sent), "{sent} packets in 100 ms, 10.3 us apart");
    }

    #[test]
    fn an_idle_session_saves_up_nothing() {
        let mut gate = Gate::default();
        gate.pass(5_000_000, 50_000);
        assert!(!gate.is_open(5_040_000));
        gate.pass(90_000_000, 50_000);
        assert!(!gate.is_open(90_040_000));
        assert_eq!(gate.opens_at(), 90_050_000);
    }
}
