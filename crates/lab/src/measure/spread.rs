//! Several runs of one measurement as median, lowest and highest.

use serde::{Deserialize, Serialize};

/// Default number of runs of a case.
pub const RUNS: usize = 5;

/// Median, lowest and highest of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle run; the mean of the middle two for an even number.
    pub median: f64,
    /// The lowest run.
    pub min: f64,
    /// The highest run.
    pub max: f64,
}

impl Spread {
    /// The spread of these runs; `None` if there are none.
    pub fn of(runs: &[f64]) -> Option<Spread> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }

    /// The spread of one run.
    pub fn single(value: f64) -> Spread {
        Spread { median: value, min: value, max: value }
    }
}

impl From<f64> for Spread {
    fn from(value: f64) -> Self {
        Spread::single(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_min_max() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0]), Some(Spread::single(3.0)));
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    }
}
