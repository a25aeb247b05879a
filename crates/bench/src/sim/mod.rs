//! The experiments in the simulated datacenter.

mod incast;
mod sim_incast;
mod sim_incast_background;
mod sim_latency;
mod sim_loss;
mod sim_reorder;
mod sim_responses;
mod sim_scale;
mod transfer;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: &[], papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "sim-latency",
        paper: "eRPC Table 2",
        about: "latency of a 32 B call in the simulated clusters of the paper",
        run: sim_latency::run,
    },
    Experiment {
        name: "sim-incast",
        paper: "eRPC Table 5",
        about: "bandwidth and packet round trips of 20 to 100 clients that send 8 MB to one server",
        run: sim_incast::run,
    },
    Experiment {
        name: "sim-incast-background",
        paper: "eRPC section 6.5",
        about: "latency of 64 kB calls between other hosts during an incast of 100 clients",
        run: sim_incast_background::run,
    },
    Experiment {
        name: "sim-scale",
        paper: "eRPC Figure 5",
        about: "rate and latency of 100 hosts with sessions between all of their threads",
        run: sim_scale::run,
    },
    Experiment {
        name: "sim-loss",
        paper: "eRPC Table 4",
        about: "bandwidth of 8 MB requests at 100 Gbit/s while packets are lost",
        run: sim_loss::run,
    },
    Experiment {
        name: "sim-reorder",
        paper: "beyond the papers",
        about: "bandwidth of 8 MB requests at 100 Gbit/s while packets overtake each other",
        run: sim_reorder::run,
    },
    Experiment {
        name: "sim-responses",
        paper: "eRPC section 5.1",
        about: "latency of responses of 1 to 64 packets beside requests of the same size",
        run: sim_responses::run,
    },
];
