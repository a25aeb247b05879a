//! Counts for each handler: requests, answers by status, and how long they took.

use std::time::Duration;

use crate::wire::Status;

/// Upper bounds of the buckets of [`Durations`], in nanoseconds: 1, 2 and 5 of each power of ten from 100 ns to 10 s.
pub const BOUNDS_NANOS: [u64; 25] = {
    let mut bounds = [0; 25];
    let (mut at, mut decade) = (0, 100);
    while at < bounds.len() {
        bounds[at] = decade * [1, 2, 5][at % 3];
        decade *= [1, 1, 10][at % 3];
        at += 1;
    }
    bounds
};

/// How many durations were within which bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDS_NANOS.len() + 1],
    sum_nanos: u64,
}

impl Durations {
    /// Counts one duration.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.counts[BOUNDS_NANOS.partition_point(|bound| *bound < nanos)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
    }

    /// Number of durations counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// How many durations are in each bucket, not cumulative: those of [`BOUNDS_NANOS`], then one for all longer
    /// durations.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

/// The counts of an endpoint for the handler of one request type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerStats {
    /// Its request type.
    pub req_type: u8,
    /// Requests that arrived completely, or were rejected before that. Those that are not answered yet, or whose
    /// callers gave up, are not among the answers.
    pub requests: u64,
    /// Answers by their status, in the order of [`Status::ALL`].
    pub answers: [u64; Status::ALL.len()],
    /// The time from receiving a request until it was answered; in worker mode, the time on the worker's thread. Of the
    /// requests that are answered in the receive burst in which they came, one in 16 is timed, until the packets of the
    /// burst are with the transport; all others are timed, by the clock as the event loop last read it.
    pub in_handler: Durations,
    /// How long requests waited for a worker's thread. Handlers of other modes start with the receive burst of their
    /// requests.
    pub in_queue: Durations,
}

impl HandlerStats {
    /// Answers of one status.
    pub fn answered(&self, status: Status) -> u64 {
        self.answers[status as usize]
    }
}

/// The counts of each request, for one type.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub requests: u64,
    pub answers: [u64; Status::ALL.len()],
}

/// Durations for one type.
#[derive(Debug, Default)]
struct Times {
    in_handler: Durations,
    in_queue: Durations,
}

const TYPES: usize = u8::MAX as usize + 1;

/// The counts of all handlers.
#[derive(Debug)]
pub(crate) struct Handlers {
    pub counts: Box<[Counts; TYPES]>,
    /// For types that were ever timed.
    times: Vec<Option<Box<Times>>>,
}

impl Handlers {
    pub fn new() -> Handlers {
        Handlers { counts: Box::new([Counts::default(); TYPES]), times: Vec::new() }
    }

    fn times_of(&mut self, req_type: u8) -> &mut Times {
        if self.times.len() <= usize::from(req_type) {
            self.times.resize_with(usize::from(req_type) + 1, || None);
        }
        self.times[usize::from(req_type)].get_or_insert_default()
    }

    #[cold]
    pub fn note_in_handler(&mut self, req_type: u8, nanos: u64) {
        self.times_of(req_type).in_handler.record(nanos);
    }

    #[cold]
    pub fn note_in_queue(&mut self, req_type: u8, nanos: u64) {
        self.times_of(req_type).in_queue.record(nanos);
    }

    /// The counts of handlers that had requests.
    pub fn stats(&self) -> Vec<HandlerStats> {
        let seen = (0..=u8::MAX).zip(self.counts.iter()).filter(|(_, counts)| counts.requests > 0);
        let of = |(req_type, counts): (u8, &Counts)| {
            let times = self.times.get(usize::from(req_type)).and_then(Option::as_deref);
            let (in_handler, in_queue) = times.map(|times| (times.in_handler, times.in_queue)).unwrap_or_default();
            HandlerStats { req_type, requests: counts.requests, answers: counts.answers, in_handler, in_queue }
        };
        seen.map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_between_their_bounds() {
        let mut durations = Durations::default();
        for nanos in [0, 100, 101, 10_000_000_000, 10_000_000_001, u64::MAX] {
            durations.record(nanos);
        }
        let counts = durations.counts();
        assert_eq!((counts[0], counts[1], counts[24], counts[25], durations.count()), (2, 1, 1, 2, 6));
        assert_eq!(durations.sum(), Duration::from_nanos(u64::MAX), "it does not overflow");
        assert!(BOUNDS_NANOS.is_sorted() && BOUNDS_NANOS[24] == 10_000_000_000);
    }
}
