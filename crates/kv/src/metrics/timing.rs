//! How long bursts take, by sample: reading a clock twice for each would cost the smallest of them a tenth of their time.

use std::cell::Cell;

use dunlin_net::Clock;

use super::{CoreMetrics, Operation};

/// One burst of so many is timed, and counts for all of them.
const SAMPLE: u64 = 16;
/// But each of the first ones is, so that a server that has done little has something to show of every kind.
const EACH_UNTIL: u64 = 1024;

/// Times some of the bursts that come one way.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    clock: Clock,
    bursts: Cell<u64>,
}

/// When a burst that is timed began, and for how many it counts.
pub(crate) struct Begun {
    at: u64,
    bursts: u64,
}

impl Timing {
    /// Begins a burst.
    #[inline]
    pub fn begin(&self) -> Option<Begun> {
        let bursts = self.bursts.get();
        self.bursts.set(bursts + 1);
        if bursts < EACH_UNTIL {
            return Some(Begun { at: self.clock.now(), bursts: 1 });
        }
        bursts.is_multiple_of(SAMPLE).then(|| Begun { at: self.clock.now(), bursts: SAMPLE })
    }

    /// Ends a burst that is timed; `operations` says of which kinds it was.
    pub fn end(&self, begun: &Begun, metrics: &mut CoreMetrics, operations: impl Iterator<Item = Operation>) {
        let nanos = self.clock.now() - begun.at;
        // All of a burst take as long, so one entry for each kind will do.
        let mut counts = [0; Operation::ALL.len()];
        operations.for_each(|operation| counts[operation as usize] += begun.bursts);
        let counted = Operation::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        counted.for_each(|(operation, count)| metrics.latency(operation, nanos, count));
    }

    /// Ends a burst of so many operations of one kind.
    pub fn end_alike(&self, begun: &Begun, metrics: &mut CoreMetrics, operation: Operation, operations: u64) {
        metrics.latency(operation, self.clock.now() - begun.at, operations * begun.bursts);
    }
}
