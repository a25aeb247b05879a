//! The experiments on the sequencer.

pub(crate) mod roles;
mod seq_latency;
mod seq_rate;
mod seq_runs;
mod seq_sim;
mod seq_speculation;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "seq-rate",
        paper: "sequencer, thesis Figure 4.16",
        about: "numbers per second of one server core, step by step from a call each to Spec-S0",
        run: seq_rate::run,
    },
    Experiment {
        name: "seq-latency",
        paper: "sequencer, thesis Figure 4.17",
        about: "latency of a number, with answers in bursts and one by one, 1 to 128 in flight",
        run: seq_latency::run,
    },
    Experiment {
        name: "seq-speculation",
        paper: "sequencer, thesis section 4.7.1",
        about: "wrong guesses of the upper half, near a wrap of the lower half and far from it",
        run: seq_speculation::run,
    },
    Experiment {
        name: "seq-sim",
        paper: "sequencer, thesis Figure 4.16",
        about: "numbers per second of 1 to 10 server cores and 70 clients, on simulated hosts with measured costs",
        run: seq_sim::run,
    },
];

const ROLES: &[Entry] = &[
    Entry::of::<roles::SeqServer>(),
    Entry::of::<roles::SeqCallers>(),
    Entry::of::<roles::SeqDirectClients>(),
    Entry::of::<roles::PacketServer>(),
    Entry::of::<roles::PacketClient>(),
];
