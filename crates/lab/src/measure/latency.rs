//! Latencies as a histogram of bounded size, and its percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::LabError;

/// The maximum latency that is distinguished: 60 s.
const NS_MAX: u64 = 60_000_000_000;
/// Significant digits: an error below 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies of many calls. Recording one costs a few nanoseconds and allocates nothing.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

/// The reported percentiles of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Number of calls.
    pub count: u64,
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, SIGNIFICANT_DIGITS);
        Latencies(histogram.expect("constant bounds are valid"))
    }

    /// Adds one call that took `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all calls of another histogram.
    pub fn add(&mut self, other: &Latencies) {
        // All have the same bounds.
        self.0 += &other.0;
    }

    /// Number of calls recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a share of the calls, from 0 to 1, did not exceed; zero if there are no calls.
    pub fn quantile(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64
    }

    /// The percentiles.
    ///
    /// # Errors
    /// [`LabError::NoSamples`] if there are no calls.
    pub fn percentiles(&self) -> Result<Percentiles, LabError> {
        if self.0.is_empty() {
            return Err(LabError::NoSamples { what: "a latency measurement" });
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64;
        Ok(Percentiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), count: self.0.len() })
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_latencies() {
        let mut latencies = Latencies::new();
        assert!(latencies.percentiles().is_err());
        (1..=1000).for_each(|ns| latencies.record(ns));
        let percentiles = latencies.percentiles().unwrap();
        assert_eq!((percentiles.p50, percentiles.p99, percentiles.p999), (500.0, 990.0, 999.0));
        latencies.record(u64::MAX);
        assert_eq!(latencies.count(), 1001);
        let mut both = latencies.clone();
        both.add(&latencies);
        assert_eq!((both.count(), both.quantile(0.5)), (2002, latencies.quantile(0.5)));
    }
}
