//! The thesis' figures (Reda, "Accelerating Distributed Storage in Heterogeneous Settings", 2022, chapter 3).

use dunlin_lab::report::PaperFigure;

use super::Percentile;

const TRACE: &str = "trace of SoundCloud";
const SIMULATED: &str = "simulated, trace of SoundCloud";
const TESTBED: &str = "16 servers with Cassandra";

const fn of_trace(value: f64) -> PaperFigure {
    PaperFigure { value, setup: TRACE }
}

/// Figure 3.3 and section 3.1.2.
pub const SEVERAL_KEYS: PaperFigure = of_trace(40.0);
pub const MEAN_KEYS: PaperFigure = of_trace(8.6);
pub const MOST_KEYS: PaperFigure = of_trace(2000.0);
pub const HOTTEST_KEY: PaperFigure = of_trace(1000.0);

/// Figure 3.4: Pearson's correlation of size and response time.
pub const CORRELATION: f64 = 0.403;

/// Figure 3.5: the opportunity at 90 % load over that at 10 %.
pub const SLACK_GROWTH: PaperFigure = PaperFigure { value: 2.0, setup: SIMULATED };

/// Figure 3.8: the share of the best p99 that remains with the worst number of queues, with the worst range factor, and
/// one step from the best setting; the text states by how much p99 is higher.
pub const WORST_COUNT: PaperFigure = PaperFigure { value: 1.0 / 1.25, setup: SIMULATED };
pub const WORST_RANGE: PaperFigure = PaperFigure { value: 1.0 / 1.15, setup: SIMULATED };
pub const ONE_STEP: PaperFigure = PaperFigure { value: 1.0 / 1.08, setup: SIMULATED };

/// Figure 3.14: the maximum gain at each percentile shown.
pub fn oracle(percentile: Percentile) -> Option<PaperFigure> {
    (percentile != Percentile::P999).then_some(PaperFigure { value: 2.0, setup: SIMULATED })
}

/// Section 3.4.3: Rein is within 7 % of the oracle.
pub const OF_ORACLE: PaperFigure = PaperFigure { value: 0.93, setup: SIMULATED };

/// Figure 3.11, given as reductions.
pub mod synthetic {
    use super::{PaperFigure, Percentile, TESTBED};

    const fn reduced_by(percent: f64) -> Option<PaperFigure> {
        Some(PaperFigure { value: 100.0 / (100.0 - percent), setup: TESTBED })
    }

    const fn times(value: f64) -> Option<PaperFigure> {
        Some(PaperFigure { value, setup: TESTBED })
    }

    pub fn constant(percentile: Percentile) -> Option<PaperFigure> {
        match percentile {
            Percentile::P95 => reduced_by(6.0),
            Percentile::P99 => reduced_by(5.0),
            _ => None,
        }
    }

    pub fn log_normal_uniform(percentile: Percentile) -> Option<PaperFigure> {
        match percentile {
            Percentile::P50 => reduced_by(35.0),
            Percentile::P95 => reduced_by(30.0),
            Percentile::P99 => reduced_by(42.0),
            Percentile::P999 => None,
        }
    }

    pub fn log_normal_zipf(percentile: Percentile) -> Option<PaperFigure> {
        match percentile {
            Percentile::P50 | Percentile::P99 => times(2.0),
            Percentile::P95 => times(1.6),
            Percentile::P999 => None,
        }
    }
}
