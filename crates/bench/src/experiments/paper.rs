//! What the paper reports (Kalia et al., "Datacenter RPCs can be General and Fast", NSDI 2019), with its hardware.

use crate::report::{Metric, PaperFigure};

/// Table 2: median latency of 32 B RPCs between two nodes at one switch, on the fastest Ethernet of the paper.
pub(super) const LATENCY: PaperFigure = PaperFigure { value: 2_300.0, setup: "CX5 40 GbE" };

/// Table 2, the cluster that Table 5 and Figure 5 are from.
pub(super) const LATENCY_CX4: PaperFigure = PaperFigure { value: 3_700.0, setup: "CX4 25 GbE" };

/// Figure 4 and Table 3: rate of one thread with batches of 3, on the only cluster for which it is given in numbers.
pub(super) const RATE_B3: PaperFigure = PaperFigure { value: 4.96e6, setup: "CX4 25 GbE" };

/// Table 3, cumulative, batches of 3.
pub(super) mod factors {
    use super::PaperFigure;

    const fn rate(value: f64) -> PaperFigure {
        PaperFigure { value, setup: "CX4 25 GbE" }
    }

    /// Congestion control on, everything on.
    pub const BASELINE: PaperFigure = rate(4.96e6);
    pub const NO_BATCHED_TIMESTAMPS: PaperFigure = rate(4.84e6);
    /// The paper's Timely bypass.
    pub const NO_RATE_UPDATE_BYPASS: PaperFigure = rate(4.52e6);
    pub const NO_RATE_LIMITER_BYPASS: PaperFigure = rate(4.30e6);
    /// Below a row that has no like here: the multi-packet receive queue is off too.
    pub const NO_PREALLOCATED_RESPONSES: PaperFigure = rate(3.55e6);
    pub const NO_ZERO_COPY_REQUESTS: PaperFigure = rate(3.05e6);
}

/// Section 6.2 and Table 3, batches of 3: what congestion control costs.
pub(super) mod control {
    use super::PaperFigure;

    const fn rate(value: f64) -> PaperFigure {
        PaperFigure { value, setup: "CX4 25 GbE" }
    }

    pub const OFF: PaperFigure = rate(5.44e6);
    pub const TIMELY: PaperFigure = rate(4.96e6);
    /// Neither bypass, and timestamps per packet.
    pub const TIMELY_WITHOUT_BYPASSES: PaperFigure = rate(4.30e6);
}

/// Section 6.3: 12.3 M RPC/s per node of 10 threads, with 19,980 client sessions.
pub(super) const RATE_MANY_SESSIONS: PaperFigure = PaperFigure { value: 1.23e6, setup: "CX4 25 GbE, a thread of 10" };

/// Figure 6: large requests, one core.
pub(super) const BANDWIDTH_8_MIB: PaperFigure = PaperFigure { value: 75e9, setup: "CX5 100 Gb InfiniBand" };

/// Table 4: 8 MB requests by loss rate.
pub(super) const BANDWIDTH_BY_LOSS: [(f64, PaperFigure); 5] =
    [loss(1e-7, 73e9), loss(1e-6, 71e9), loss(1e-5, 57e9), loss(1e-4, 18e9), loss(1e-3, 2.5e9)];

const fn loss(rate: f64, bandwidth: f64) -> (f64, PaperFigure) {
    (rate, PaperFigure { value: bandwidth, setup: "CX5 100 Gb InfiniBand" })
}

/// What an incast came to, as in Table 5.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incast {
    /// Bit per second.
    pub bandwidth: f64,
    /// Round trips of packets, in nanoseconds.
    pub rtt_p50: f64,
    pub rtt_p99: f64,
}

impl Incast {
    /// The figure of a metric, of which there are three.
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

/// Figure 5 and section 6.3, of one host of a hundred; what the text gives in numbers.
pub(super) fn scale(hosts: u32, threads: u16, metric: Metric) -> Option<PaperFigure> {
    let value = match (hosts, threads, metric) {
        (100, 1, Metric::LatencyP50) => 12_700.0,
        (100, 10, Metric::Rate) => 12.3e6,
        // Bounds, as the text has them.
        (100, 10, Metric::LatencyP9999) => 700_000.0,
        (100, 10, Metric::Retransmissions) => 1_700.0,
        _ => return None,
    };
    Some(PaperFigure { value, setup: "CX4 25 GbE" })
}

/// HERD's Figure 14 (thesis chapter 4): GETs per second of one server core over the network, 8 million items of 16 B + 32 B, 5 % PUT,
/// uniform, with requests in batches.
pub(super) const HERD_ONE_CORE: PaperFigure = PaperFigure { value: 12.3e6, setup: "HERD, 1 core, CIB 100 Gb InfiniBand" };

/// Figure 13 of the thesis: the same under Zipf .99, a core of six.
pub(super) const HERD_ZIPF_PER_CORE: PaperFigure = PaperFigure { value: 4.32e6, setup: "HERD, a core of 6, CX3 InfiniBand" };

/// Figure 12 of the thesis: one server core, items of 48 B.
pub(super) const HERD_PER_CORE: PaperFigure = PaperFigure { value: 6.3e6, setup: "HERD, 1 core, CX3 InfiniBand" };

/// Figure 10 of the thesis: latency at the peak of 26 million operations per second.
pub(super) const HERD_LATENCY: PaperFigure = PaperFigure { value: 5_000.0, setup: "HERD at its peak, CX3 InfiniBand" };

/// MICA's own code, measured on a machine of two cores: reads that its lossy index loses, in percent.
pub(super) const MICA_LOST: PaperFigure = PaperFigure { value: 0.85, setup: "MICA's code, 4 M items, a VM" };

/// Table 6: median latency of a replicated PUT, as its client sees it. NetChain, which runs in switches, takes 9.7 us.
pub(super) const RAFT_CLIENT: PaperFigure = PaperFigure { value: 5_500.0, setup: "3 replicas, CX5 40 GbE" };

/// The same, from when the leader has the request until it is committed. ZabFPGA takes 3.0 us.
pub(super) const RAFT_LEADER: PaperFigure = PaperFigure { value: 3_100.0, setup: "3 replicas, CX5 40 GbE" };

/// The same, 99th percentiles.
pub(super) const RAFT_CLIENT_P99: PaperFigure = PaperFigure { value: 6_300.0, setup: "3 replicas, CX5 40 GbE" };
pub(super) const RAFT_LEADER_P99: PaperFigure = PaperFigure { value: 3_400.0, setup: "3 replicas, CX5 40 GbE" };
