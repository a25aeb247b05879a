//! Latencies of operations.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest distinguishable time, in nanoseconds: one minute. Longer times count as this.
const NANOS_MAX: u64 = 60_000_000_000;

/// Significant digits: times are accurate to 1 %.
const DIGITS: u8 = 2;

/// Times from nanoseconds to a minute, accurate to 1 %. About 30 KiB.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyHistogram(hdrhistogram::Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        // The bounds are constants that the library accepts: low >= 1, high >= 2 * low, at most 5 digits.
        LatencyHistogram(
            hdrhistogram::Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("constant bounds are valid"),
        )
    }
}

impl LatencyHistogram {
    /// Adds `operations` that took `nanos` each.
    #[inline]
    pub fn record(&mut self, nanos: u64, operations: u64) {
        self.0.saturating_record_n(nanos.max(1), operations);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        // This fails only for times out of bounds, and all histograms have the same bounds.
        self.0.add(&other.0).expect("all histograms of latency have the same bounds");
    }

    /// Returns the operations added since `earlier`, an older state of this one. Counts lost by a restart in between
    /// are taken as zero.
    pub fn since(&self, earlier: &LatencyHistogram) -> LatencyHistogram {
        let mut since = LatencyHistogram::default();
        for (nanos, count) in self.buckets() {
            since.record(nanos, count.saturating_sub(earlier.0.count_at(nanos)));
        }
        since
    }

    /// Returns the number of operations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns their total time in nanoseconds, accurate to 1 %.
    pub fn sum_nanos(&self) -> f64 {
        self.buckets().map(|(nanos, count)| nanos as f64 * count as f64).sum()
    }

    /// Returns the time that `percent` of them did not exceed; zero if there are none.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent) })
    }

    /// Returns the non-empty buckets, in ascending order: time in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|at| (at.value_iterated_to().min(NANOS_MAX), at.count_at_value()))
    }
}

/// Serialized as pairs of time and count.
impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.buckets())
    }
}

impl<'de> Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut histogram = LatencyHistogram::default();
        for (nanos, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            histogram.record(nanos, count);
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_it_is_given_through_text() {
        let mut histogram = LatencyHistogram::default();
        for (nanos, count) in [(0, 1), (1, 2), (850, 1_000_000), (4_711, 30), (123_456_789, 2), (u64::MAX, 1)] {
            histogram.record(nanos, count);
        }
        assert_eq!(histogram.count(), 1_000_036);
        let text = serde_json::to_string(&histogram).unwrap();
        let back: LatencyHistogram = serde_json::from_str(&text).unwrap();
        assert_eq!(back.buckets().collect::<Vec<_>>(), histogram.buckets().collect::<Vec<_>>());
        assert_eq!(back.percentile(50.0), histogram.percentile(50.0));
        assert!(
            histogram.percentile(50.0) >= Duration::from_nanos(850)
                && histogram.percentile(50.0) < Duration::from_nanos(860)
        );
        assert!(histogram.percentile(100.0) >= Duration::from_secs(59));
    }

    #[test]
    fn tells_what_came_since() {
        let mut earlier = LatencyHistogram::default();
        earlier.record(1_000, 5);
        let mut now = earlier.clone();
        now.record(1_000, 2);
        now.record(50_000, 1);
        assert_eq!(now.since(&earlier).count(), 3);
        assert_eq!(earlier.since(&now).count(), 0, "a restarted server has counted less");
        assert_eq!(LatencyHistogram::default().percentile(99.0), Duration::ZERO);
    }
}
