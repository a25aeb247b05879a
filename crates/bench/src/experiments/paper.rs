//! The papers' figures, with their hardware: eRPC (Kalia et al., "Datacenter RPCs can be General and Fast", NSDI 2019)
//! unless stated otherwise. A figure is included only if an experiment measures the same quantity; remaining
//! differences are noted at the experiment.

use dunlin_lab::report::{Metric, PaperFigure};

/// Table 2: median latency of 32 B RPCs between two nodes at one switch, on the fastest Ethernet of the paper.
pub(super) const LATENCY: PaperFigure = PaperFigure { value: 2_300.0, setup: "CX5 40 GbE" };

/// Table 2, for the cluster of Table 5 and Figure 5.
pub(super) const LATENCY_CX4: PaperFigure = PaperFigure { value: 3_700.0, setup: "CX4 25 GbE" };

/// Figure 4 and Table 3: requests that a thread sends in batches of 3, while it serves as many, with congestion
/// control: on the only cluster with published numbers.
pub(super) const RATE_B3: PaperFigure = PaperFigure { value: 4.96e6, setup: "CX4 25 GbE" };
/// The same without congestion control (section 6.2).
pub(super) const RATE_B3_UNCONTROLLED: PaperFigure = PaperFigure { value: 5.44e6, setup: "CX4 25 GbE" };

/// The share of the uncontrolled rate that Timely leaves (section 6.2).
pub(super) const TIMELY_LEAVES: PaperFigure =
    PaperFigure { value: RATE_B3.value / RATE_B3_UNCONTROLLED.value, setup: "CX4 25 GbE" };

/// Table 3, cumulative, batches of 3: shares of the rate with everything on.
pub(super) mod factors {
    use super::{PaperFigure, RATE_B3};

    const fn share(rate: f64) -> PaperFigure {
        PaperFigure { value: rate / RATE_B3.value, setup: "CX4 25 GbE" }
    }

    pub const NO_BATCHED_TIMESTAMPS: PaperFigure = share(4.84e6);
    /// The paper's Timely bypass.
    pub const NO_RATE_UPDATE_BYPASS: PaperFigure = share(4.52e6);
    pub const NO_RATE_LIMITER_BYPASS: PaperFigure = share(4.30e6);
    /// Below a row without a counterpart here: the multi-packet receive queue is off too.
    pub const NO_PREALLOCATED_RESPONSES: PaperFigure = share(3.55e6);
    pub const NO_ZERO_COPY_REQUESTS: PaperFigure = share(3.05e6);
}

/// Figure 6: large requests, one core.
pub(super) const BANDWIDTH_8_MIB: PaperFigure = PaperFigure { value: 75e9, setup: "CX5 100 Gb InfiniBand" };

/// Table 4: 8 MB requests by loss rate.
pub(super) const BANDWIDTH_BY_LOSS: [(f64, PaperFigure); 5] =
    [loss(1e-7, 73e9), loss(1e-6, 71e9), loss(1e-5, 57e9), loss(1e-4, 18e9), loss(1e-3, 2.5e9)];

const fn loss(rate: f64, bandwidth: f64) -> (f64, PaperFigure) {
    (rate, PaperFigure { value: bandwidth, setup: "CX5 100 Gb InfiniBand" })
}

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

/// Figure 4.14 of Kalia's thesis (Figure 5 of the guidelines): operations of one server core over the network, 8
/// million items of 16 B + 32 B, 5 % PUT, uniform, requests in batches.
pub(super) const HERD_ONE_CORE: PaperFigure =
    PaperFigure { value: 12.3e6, setup: "HERD, 1 core, CIB 100 Gb InfiniBand" };

/// Table 6: median latency of a replicated PUT, measured at its client. NetChain, which runs in switches, takes 9.7 us.
pub(super) const RAFT_CLIENT: PaperFigure = PaperFigure { value: 5_500.0, setup: "3 replicas, CX5 40 GbE" };

/// The same, from the arrival of the request at the leader until its commit. ZabFPGA takes 3.0 us.
pub(super) const RAFT_LEADER: PaperFigure = PaperFigure { value: 3_100.0, setup: "3 replicas, CX5 40 GbE" };

/// Figure 4.16 of Kalia's thesis: what one server core of the sequencer gains when answers leave in batches, from 7.0 to
/// 16.6 M/s. Only the gain: the rates themselves are those of 70 clients.
pub(super) const SEQ_BATCHING: PaperFigure =
    PaperFigure { value: 16.6 / 7.0, setup: "1 server core, 70 clients, InfiniBand" };

/// Section 4.7.1 of the thesis: at most one answer of all eight bytes for each client in 2^32 numbers. This many for
/// `clients`.
pub(super) const fn seq_long_answers(clients: usize) -> PaperFigure {
    PaperFigure { value: clients as f64, setup: "at most, in 2^32 numbers" }
}
