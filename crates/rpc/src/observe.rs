//! What is counted for a single session only on request: round-trip times and dropped packets.
//!
//! An endpoint counts both for all its sessions together. For a single session they take some 600 bytes, so it has them
//! only from the call of [`crate::Session::observe`] on, or from its first call if
//! [`crate::EndpointConfig::observe_sessions`] is on. They lie apart from what packets touch: a drop is counted where
//! it happens, and one call in eight is sampled.

use std::fmt;
use std::time::Duration;

/// Buckets for each power of two, as a number of bits: a bucket spans at most a quarter of its times.
const SUB_BITS: u32 = 2;
/// Times below 2^6 ns share the first bucket.
const FIRST_BITS: u32 = 6;
/// Times of 2^36 ns, 69 s, and above share the last.
const LAST_BITS: u32 = 36;
const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) << SUB_BITS) as usize;

/// Why a packet of a session was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Its fields contradict each other, or the agreed settings.
    Malformed,
    /// It belongs to an earlier request of the slot, or an earlier step of a loan, or a call on a session that is
    /// closing.
    Stale,
    /// It was received already.
    Duplicate,
    /// It is a later packet of a message than the expected one.
    OutOfOrder,
    /// No memory for the message.
    NoMemory,
    /// A control packet that does not fit the session.
    Control,
}

impl DropReason {
    /// All of them.
    pub const ALL: [DropReason; 6] = {
        use DropReason::*;
        [Malformed, Stale, Duplicate, OutOfOrder, NoMemory, Control]
    };
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DropReason::Malformed => "malformed",
            DropReason::Stale => "stale",
            DropReason::Duplicate => "duplicate",
            DropReason::OutOfOrder => "out of order",
            DropReason::NoMemory => "no memory",
            DropReason::Control => "unfit control packet",
        })
    }
}

/// Round-trip times and drops of one session, since it is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    buckets: [u32; BUCKETS],
    drops: [u32; DropReason::ALL.len()],
}

impl Observed {
    pub(crate) fn new() -> Observed {
        Observed { buckets: [0; BUCKETS], drops: [0; DropReason::ALL.len()] }
    }

    pub(crate) fn record_rtt(&mut self, nanos: u64) {
        let count = &mut self.buckets[bucket_of(nanos)];
        *count = count.saturating_add(1);
    }

    pub(crate) fn record_drop(&mut self, reason: DropReason) {
        let count = &mut self.drops[reason as usize];
        *count = count.saturating_add(1);
    }

    /// Round trips sampled: about one call in eight.
    pub fn samples(&self) -> u64 {
        self.buckets.iter().map(|count| *count as u64).sum()
    }

    /// A time that `percent` of the sampled round trips do not exceed, at most a quarter above the smallest such time;
    /// zero without samples.
    pub fn percentile(&self, percent: f64) -> Duration {
        let samples = self.samples();
        let rank = ((percent.clamp(0.0, 100.0) / 100.0 * samples as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += *count as u64;
            if seen >= rank {
                return Duration::from_nanos(end_of(bucket));
            }
        }
        Duration::ZERO
    }

    /// Packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize] as u64
    }
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.clamp(1 << FIRST_BITS, (1 << LAST_BITS) - 1);
    let bits = nanos.ilog2();
    let sub = (nanos >> (bits - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    (((bits - FIRST_BITS) as usize) << SUB_BITS) + sub
}

/// The upper end of a bucket.
fn end_of(bucket: usize) -> u64 {
    let (octave, sub) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
    let start_of_octave = 1u64 << (FIRST_BITS as usize + octave);
    start_of_octave + (((sub as u64 + 1) * start_of_octave) >> SUB_BITS) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_bucket_that_ends_at_most_a_quarter_above_it() {
        for nanos in (64..100_000).chain((1..1 << 36).step_by(99_999_989)) {
            let end = end_of(bucket_of(nanos));
            let nanos = nanos.max(64);
            assert!(nanos <= end && end <= nanos + nanos / 4, "{nanos} in a bucket up to {end}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let mut observed = Observed::new();
        assert_eq!((observed.samples(), observed.percentile(50.0)), (0, Duration::ZERO));
        (0..99).for_each(|_| observed.record_rtt(1_000));
        observed.record_rtt(5_000_000);
        assert_eq!(observed.samples(), 100);
        assert_eq!(observed.percentile(99.0), Duration::from_nanos(1_023));
        assert!(observed.percentile(99.5) >= Duration::from_millis(5));
        assert!(observed.percentile(100.0) < Duration::from_micros(6_250));
    }

    #[test]
    fn it_is_small() {
        const { assert!(size_of::<Observed>() <= 512) };
    }
}
