//! The experiments on the ordered index.

mod index_ops;
mod index_service;
mod index_sim;
pub(crate) mod roles;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "index-ops",
        paper: "beyond the papers",
        about: "operations on an ordered index in memory beside BTreeMap and other ordered maps, and bytes an item",
        run: index_ops::run,
    },
    Experiment {
        name: "index-service",
        paper: "eRPC section 7.2",
        about: "GETs of an index server without scans, beside scans in workers and beside scans in the event loop",
        run: index_service::run,
    },
    Experiment {
        name: "index-sim",
        paper: "eRPC section 7.2",
        about: "14 dispatch threads, 2 workers and 64 clients of an index, on simulated hosts with measured costs",
        run: index_sim::run,
    },
];

const ROLES: &[Entry] =
    &[Entry::of::<roles::IndexOps>(), Entry::of::<roles::IndexServer>(), Entry::of::<roles::IndexLoad>()];
