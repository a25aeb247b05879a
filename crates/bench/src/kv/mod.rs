//! The experiments on the key-value service.

mod kv_imbalance;
mod kv_latency;
pub(crate) mod kv_memcached;
mod kv_multiget;
mod kv_native;
mod kv_rate;
mod kv_runs;
mod kv_values;
mod kv_ycsb;
pub(crate) mod roles;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "kv-rate",
        paper: "HERD, thesis Figure 4.14",
        about: "operations per second of one server core, 5 % PUT, uniform and Zipf",
        run: kv_rate::run,
    },
    Experiment {
        name: "kv-latency",
        paper: "HERD, thesis Figure 4.10",
        about: "latency against throughput, from one operation in flight to 256",
        run: kv_latency::run,
    },
    Experiment {
        name: "kv-values",
        paper: "HERD, thesis Figure 4.9",
        about: "operations and bytes per second with values of 4 B to 1000 B",
        run: kv_values::run,
    },
    Experiment {
        name: "kv-imbalance",
        paper: "HERD, thesis Figure 4.13",
        about: "operations of the busiest of six cores, uniform and Zipf, by counting",
        run: kv_imbalance::run,
    },
    Experiment {
        name: "kv-memcached",
        paper: "beyond the papers",
        about: "memcached and Dunlin's memcached port under the same load over TCP",
        run: kv_memcached::run,
    },
    Experiment {
        name: "kv-native-vs-memcached",
        paper: "beyond the papers",
        about: "Dunlin's client over UDP against memcached over TCP",
        run: kv_native::run,
    },
    Experiment {
        name: "kv-ycsb",
        paper: "YCSB",
        about: "workloads A, B, C, D and F on ten million records",
        run: kv_ycsb::run,
    },
    Experiment {
        name: "kv-multiget",
        paper: "beyond the papers",
        about: "keys per second with 1 to 256 keys a request",
        run: kv_multiget::run,
    },
];

const ROLES: &[Entry] = &[
    Entry::of::<roles::KvServer>(),
    Entry::of::<roles::KvMemcachedServer>(),
    Entry::of::<roles::KvLoad>(),
    Entry::of::<roles::MultiGetLoad>(),
    Entry::of::<roles::MemcachedLoad>(),
    Entry::of::<roles::SlicedMemcachedLoad>(),
    Entry::of::<roles::MemcachedProcess>(),
    Entry::of::<roles::BareServer>(),
];
