//! The results of a simulation.

/// Latencies of requests, in nanoseconds, from sending a request to its last answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies {
    sorted: Vec<u64>,
}

impl Latencies {
    /// # Panics
    /// If there are none.
    pub(super) fn new(mut latencies: Vec<u64>) -> Self {
        assert!(!latencies.is_empty(), "a simulation without requests");
        latencies.sort_unstable();
        Latencies { sorted: latencies }
    }

    /// A quantile of the latency: the nearest rank, without interpolation.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted[rank.clamp(1, self.sorted.len()) - 1]
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sorted.iter().map(|latency| *latency as f64).sum::<f64>() / self.sorted.len() as f64
    }

    /// Number of requests.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// The results of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Latencies of the measured requests.
    pub latencies: Latencies,
    /// Pearson's correlation of the number of keys and the latency (thesis, Figure 3.4).
    pub correlation: f64,
    /// Share of the slots that were busy until the last request came.
    pub utilization: f64,
    /// The same for the busiest server.
    pub hottest: f64,
    /// Operations run, including those of requests that are not measured.
    pub operations: u64,
}

/// Sums for a coefficient of correlation.
#[derive(Debug, Default)]
pub(super) struct Correlation {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Correlation {
    pub fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.yy += y * y;
        self.xy += x * y;
    }

    /// 0 if one of the two is constant.
    pub fn coefficient(&self) -> f64 {
        let n = self.count;
        let product = (n * self.xx - self.x * self.x) * (n * self.yy - self.y * self.y);
        if product > 0.0 { (n * self.xy - self.x * self.y) / product.sqrt() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let latencies = Latencies::new((1..=1000).rev().collect());
        let quantiles = [0.0, 0.5, 0.95, 0.99, 0.999, 1.0].map(|share| latencies.quantile(share));
        assert_eq!(quantiles, [1, 500, 950, 990, 999, 1000]);
        assert_eq!((latencies.mean(), latencies.count()), (500.5, 1000));
    }

    #[test]
    fn correlation_is_pearsons() {
        let of = |pairs: &[(f64, f64)]| {
            let mut correlation = Correlation::default();
            pairs.iter().for_each(|(x, y)| correlation.add(*x, *y));
            correlation.coefficient()
        };
        assert!((of(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) - 1.0).abs() < 1e-12);
        assert!((of(&[(1.0, 3.0), (2.0, 1.0)]) + 1.0).abs() < 1e-12);
        // By hand: deviations (-1, 0, 1) and (-1, 1, 0).
        assert!((of(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]) - 0.5).abs() < 1e-12);
        assert_eq!(of(&[(1.0, 1.0), (1.0, 2.0)]), 0.0);
    }
}
