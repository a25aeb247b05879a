//! The experiments on a partition in memory.

mod kv_memory;
pub(crate) mod roles;
mod store_ops;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: "" };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "store-ops",
        paper: "beyond the papers",
        about: "operations on a partition in memory beside hash maps and random reads of memory",
        run: store_ops::run,
    },
    Experiment {
        name: "kv-memory",
        paper: "beyond the papers",
        about: "memory that an item takes beyond its key and value, at 10 and 50 million items",
        run: kv_memory::run,
    },
];

const ROLES: &[Entry] = &[Entry::of::<roles::StoreOps>(), Entry::of::<roles::CacheFill>()];

/// The note about a skipped case.
pub(crate) fn too_little_memory(case: &str, needed: u64, available: u64) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    format!(
        "{case} was skipped: it needs {:.1} GiB and {:.1} GiB are free. `--items-max` takes fewer items.",
        gib(needed),
        gib(available)
    )
}
