//! What the paper reports (Kalia et al., "Datacenter RPCs can be General and Fast", NSDI 2019), with its hardware.

use crate::report::PaperFigure;

/// Table 2: median latency of 32 B RPCs between two nodes at one switch, on the fastest Ethernet of the paper.
pub(super) const LATENCY: PaperFigure = PaperFigure { value: 2_300.0, setup: "CX5 40 GbE" };

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
    /// Below rows that have no like here: Timely bypass, rate limiter bypass and multi-packet receive queue are off too.
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
