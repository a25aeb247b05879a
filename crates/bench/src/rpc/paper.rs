//! The papers' figures, with their hardware: eRPC (Kalia et al., "Datacenter RPCs can be General and Fast", NSDI 2019)
//! unless stated otherwise. A figure is included only if an experiment measures the same quantity; remaining
//! differences are noted at the experiment.

use dunlin_lab::report::PaperFigure;

/// Table 2: median latency of 32 B RPCs between two nodes at one switch, on the fastest Ethernet of the paper.
pub(crate) const LATENCY: PaperFigure = PaperFigure { value: 2_300.0, setup: "CX5 40 GbE" };

/// Figure 4 and Table 3: requests that a thread sends in batches of 3, while it serves as many, with congestion
/// control: on the only cluster with published numbers.
pub(crate) const RATE_B3: PaperFigure = PaperFigure { value: 4.96e6, setup: "CX4 25 GbE" };
/// The same without congestion control (section 6.2).
pub(crate) const RATE_B3_UNCONTROLLED: PaperFigure = PaperFigure { value: 5.44e6, setup: "CX4 25 GbE" };

/// The share of the uncontrolled rate that Timely leaves (section 6.2).
pub(crate) const TIMELY_LEAVES: PaperFigure =
    PaperFigure { value: RATE_B3.value / RATE_B3_UNCONTROLLED.value, setup: "CX4 25 GbE" };

/// Table 3, cumulative, batches of 3: shares of the rate with everything on.
pub(crate) mod factors {
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
pub(crate) const BANDWIDTH_8_MIB: PaperFigure = PaperFigure { value: 75e9, setup: "CX5 100 Gb InfiniBand" };

/// Table 4: 8 MB requests by loss rate.
pub(crate) const BANDWIDTH_BY_LOSS: [(f64, PaperFigure); 5] =
    [loss(1e-7, 73e9), loss(1e-6, 71e9), loss(1e-5, 57e9), loss(1e-4, 18e9), loss(1e-3, 2.5e9)];

const fn loss(rate: f64, bandwidth: f64) -> (f64, PaperFigure) {
    (rate, PaperFigure { value: bandwidth, setup: "CX5 100 Gb InfiniBand" })
}
