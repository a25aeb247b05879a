//! Figures of eRPC (NSDI 2019) that only simulations are compared with.

use dunlin_lab::report::{Metric, PaperFigure};

pub(super) use crate::rpc::paper::{BANDWIDTH_8_MIB, BANDWIDTH_BY_LOSS, LATENCY};

/// Table 2, for the cluster of Table 5 and Figure 5.
pub(super) const LATENCY_CX4: PaperFigure = PaperFigure { value: 3_700.0, setup: "CX4 25 GbE" };

/// The results of an incast, as in Table 5.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incast {
    /// Bit per second.
    pub bandwidth: f64,
    /// Round trips of packets, in nanoseconds.
    pub rtt_p50: f64,
    pub rtt_p99: f64,
}

impl Incast {
    /// The figure for one of the three metrics.
    pub fn figure(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Bandwidth => self.bandwidth,
            Metric::RttP50 => self.rtt_p50,
            _ => self.rtt_p99,
        }
    }
}

/// A row of Table 5.
pub(super) struct IncastRow {
    pub clients: u32,
    pub off: Incast,
    pub timely: Incast,
}

const fn incast(gbit_per_s: f64, rtt_p50_us: f64, rtt_p99_us: f64) -> Incast {
    Incast { bandwidth: gbit_per_s * 1e9, rtt_p50: rtt_p50_us * 1e3, rtt_p99: rtt_p99_us * 1e3 }
}

/// Table 5.
pub(super) const INCAST: [IncastRow; 3] = [
    IncastRow { clients: 20, off: incast(23.1, 202.0, 204.0), timely: incast(21.8, 39.0, 67.0) },
    IncastRow { clients: 50, off: incast(23.0, 524.0, 524.0), timely: incast(18.4, 34.0, 174.0) },
    IncastRow { clients: INCAST_CLIENTS_MAX, off: incast(23.0, 1056.0, 1060.0), timely: incast(22.8, 349.0, 969.0) },
];
pub(super) const INCAST_CLIENTS_MAX: u32 = 100;
pub(super) const INCAST_SETUP: &str = "CX4 25 GbE";

/// Section 6.5: 64 kB calls beside an incast of a hundred clients.
pub(super) const BACKGROUND_P99: PaperFigure = PaperFigure { value: 274_000.0, setup: INCAST_SETUP };

/// Figure 5 and section 6.3, for one host of a hundred; only the numbers in the text.
pub(super) fn scale(hosts: u32, threads: u16, metric: Metric) -> Option<PaperFigure> {
    let value = match (hosts, threads, metric) {
        (100, 1, Metric::LatencyP50) => 12_700.0,
        (100, 10, Metric::Rate) => 12.3e6,
        // Upper bounds, as stated in the text.
        (100, 10, Metric::LatencyP9999) => return Some(PaperFigure { value: 700_000.0, setup: "at most, CX4 25 GbE" }),
        (100, 10, Metric::Retransmissions) => {
            return Some(PaperFigure { value: 1_700.0, setup: "at most, CX4 25 GbE" });
        }
        _ => return None,
    };
    Some(PaperFigure { value, setup: "CX4 25 GbE" })
}
