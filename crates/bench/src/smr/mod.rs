//! The experiments on replication, and on its log.

mod log_flush;
pub(crate) mod replicas;
mod replication;
pub(crate) mod roles;
#[cfg(feature = "etcd")]
mod smr_etcd;
mod smr_failover;
mod smr_groups;
mod smr_latency;
mod smr_latency_sim;
mod smr_rate;
mod smr_runs;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "smr-latency-sim",
        paper: "eRPC Table 6",
        about: "latency of a replicated write in the paper's cluster, with the CPU time of this machine",
        run: smr_latency_sim::run,
    },
    Experiment {
        name: "smr-latency",
        paper: "eRPC Table 6",
        about: "latency of a replicated write, three replicas on one core over shared memory",
        run: smr_latency::run,
    },
    Experiment {
        name: "smr-rate",
        paper: "beyond the papers",
        about: "replicated writes per second, 1 to 256 at a time, with logs in memory and on disk",
        run: smr_rate::run,
    },
    Experiment {
        name: "smr-groups",
        paper: "beyond the papers",
        about: "replicated writes per second to 1 to 100 groups on three replicas, with logs in memory and on disk",
        run: smr_groups::run,
    },
    Experiment {
        name: "log-flush",
        paper: "beyond the papers",
        about: "entries per second of a log on disk, 1 to 256 to a flush, beside bare flushes",
        run: log_flush::run,
    },
    Experiment {
        name: "smr-failover",
        paper: "beyond the papers",
        about: "time without service when the leader of three durable replicas is killed under load",
        run: smr_failover::run,
    },
    #[cfg(feature = "etcd")]
    Experiment {
        name: "smr-etcd",
        paper: "beyond the papers",
        about: "three durable replicas of a key-value machine beside an etcd of three members",
        run: smr_etcd::run,
    },
];

const ROLES: &[Entry] = &[
    Entry::of::<roles::LogFlush>(),
    Entry::of::<roles::BareFlushes>(),
    Entry::of::<roles::MajorityFlushes>(),
    Entry::of::<roles::ReplicaGroup>(),
    Entry::of::<roles::PutLoad>(),
    Entry::of::<roles::KvReplica>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::EtcdServers>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::EtcdLoad>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::ReplicaLoad>(),
];
