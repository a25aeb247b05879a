//! How long bursts take, by sample: reading a clock twice for each would cost the smallest of them a tenth of their time.

use dunlin_net::Clock;

use crate::metrics::{CoreMetrics, Operation};

/// One burst of so many is timed, and counts for all of them.
const SAMPLE: u64 = 16;

/// Times some bursts.
pub(super) struct Timing {
    clock: Clock,
    bursts: u64,
}

/// When a burst that is timed began.
pub(super) struct Begun(u64);

impl Timing {
    pub fn new() -> Timing {
        Timing { clock: Clock::new(), bursts: 0 }
    }

    /// Begins a burst.
    #[inline]
    pub fn begin(&mut self) -> Option<Begun> {
        self.bursts += 1;
        // The first counts too, so that a server that has done little has something to show.
        (self.bursts % SAMPLE == 1).then(|| Begun(self.clock.now()))
    }

    /// Ends a burst that is timed; `operations` says of which kinds it was.
    pub fn end(&self, begun: &Begun, metrics: &mut CoreMetrics, operations: impl Iterator<Item = Operation>) {
        let nanos = self.clock.now() - begun.0;
        operations.for_each(|operation| metrics.latency(operation, nanos, SAMPLE));
    }
}
