//! Measures the duration of bursts by sampling: reading a clock twice for each would add a tenth to the cost of the
//! smallest.

use std::cell::Cell;

use dunlin_net::Clock;

use super::{CoreMetrics, Operation};

/// One in this many bursts is timed, and counts for all of them.
const SAMPLE: u64 = 16;
/// Until this many bursts, each one is timed, so that a server that has done little has data of every kind.
const EACH_UNTIL: u64 = 1024;

/// Times a sample of the bursts from one source.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    clock: Clock,
    bursts: Cell<u64>,
}

/// The start of a timed burst, and the number of bursts that it counts for.
pub(crate) struct Begun {
    at: u64,
    /// How long its operations had waited by then.
    waited: u64,
    bursts: u64,
}

impl Timing {
    /// Begins a burst.
    #[inline]
    pub fn begin(&self) -> Option<Begun> {
        let bursts = self.bursts.get();
        self.bursts.set(bursts + 1);
        if bursts < EACH_UNTIL {
            return Some(Begun { at: self.clock.now(), waited: 0, bursts: 1 });
        }
        bursts.is_multiple_of(SAMPLE).then(|| Begun { at: self.clock.now(), waited: 0, bursts: SAMPLE })
    }

    /// Begins a burst whose operations have already waited for this long, in nanoseconds. Bursts that waited are rare,
    /// and all timed.
    #[inline]
    pub fn begin_after(&self, waited: u64) -> Option<Begun> {
        if waited == 0 {
            return self.begin();
        }
        Some(Begun { at: self.clock.now(), waited, bursts: 1 })
    }

    fn nanos(&self, begun: &Begun) -> u64 {
        (self.clock.now() - begun.at).saturating_add(begun.waited)
    }

    /// Ends a timed burst; `operations` are the kinds of its operations.
    pub fn end(&self, begun: &Begun, metrics: &mut CoreMetrics, operations: impl Iterator<Item = Operation>) {
        let nanos = self.nanos(begun);
        // All operations of a burst take equally long, so one entry for each kind suffices.
        let mut counts = [0; Operation::ALL.len()];
        operations.for_each(|operation| counts[operation as usize] += begun.bursts);
        let counted = Operation::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        counted.for_each(|(operation, count)| metrics.latency(operation, nanos, count));
    }

    /// Ends a burst of `operations` operations of one kind.
    pub fn end_alike(&self, begun: &Begun, metrics: &mut CoreMetrics, operation: Operation, operations: u64) {
        metrics.latency(operation, self.nanos(begun), operations * begun.bursts);
    }
}
