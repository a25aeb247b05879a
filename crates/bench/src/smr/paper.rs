//! Figures of eRPC (NSDI 2019), section 7.1.

use dunlin_lab::report::PaperFigure;

/// Table 6: median latency of a replicated PUT, measured at its client. NetChain, which runs in switches, takes 9.7 us.
pub(super) const RAFT_CLIENT: PaperFigure = PaperFigure { value: 5_500.0, setup: "3 replicas, CX5 40 GbE" };

/// The same, from the arrival of the request at the leader until its commit. ZabFPGA takes 3.0 us.
pub(super) const RAFT_LEADER: PaperFigure = PaperFigure { value: 3_100.0, setup: "3 replicas, CX5 40 GbE" };
