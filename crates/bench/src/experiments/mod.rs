//! The experiments, one file each, and the roles of their processes.

mod incast;
mod paper;
mod runs;

mod coord_scale;
mod demo;
mod kv_latency;
mod kv_memcached;
mod kv_memory;
mod kv_multiget;
mod kv_native;
mod kv_rate;
mod kv_runs;
mod kv_values;
mod kv_ycsb;
mod log_flush;
mod misbehaving;
mod rein_sim;
mod replicas;
mod rpc_bandwidth;
mod rpc_busy;
mod rpc_cc_cost;
mod rpc_factors;
mod rpc_latency;
mod rpc_loss;
#[cfg(feature = "peers")]
mod rpc_peers;
mod rpc_rate;
mod rpc_sessions;
mod rpc_wakeup;
mod rpc_workers;
mod seq_latency;
mod seq_rate;
mod seq_runs;
mod seq_sim;
mod seq_speculation;
mod serve_handle;
mod sim_incast;
mod sim_incast_background;
mod sim_latency;
mod sim_loss;
mod sim_reorder;
mod sim_scale;
#[cfg(feature = "etcd")]
mod smr_etcd;
mod smr_failover;
mod smr_groups;
mod smr_latency;
mod smr_latency_sim;
mod smr_rate;
mod smr_runs;
mod store_ops;
mod transfer;

use std::process::ExitCode;
use std::time::Duration;

pub use demo::check_data as check_demo_data;

use crate::BenchError;
use crate::lab::{Lab, Settings};
use crate::measure::BusyNeighbour;
use crate::peer::{self, Entry, Launcher};
use crate::report::Report;
use crate::roles;

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The table, figure or section of the paper that it reproduces.
    pub paper: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    run: fn(&mut Lab) -> Result<(), BenchError>,
}

/// The outcome of an experiment.
#[derive(Debug)]
pub struct Outcome {
    /// The rows measured so far.
    pub report: Report,
    /// Why it ended early.
    pub error: Option<BenchError>,
}

/// Every experiment, in the order of `bench list`.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "rpc-latency",
        paper: "eRPC Table 2",
        about: "latency of a 32 B echo, one outstanding",
        run: rpc_latency::run,
    },
    Experiment {
        name: "rpc-rate",
        paper: "eRPC Figure 4",
        about: "rate of 32 B echoes in batches of 1, 3 and 11, up to 60 in flight",
        run: rpc_rate::run,
    },
    Experiment {
        name: "rpc-factors",
        paper: "eRPC Table 3",
        about: "the same rate with one optimization after another switched off",
        run: rpc_factors::run,
    },
    Experiment {
        name: "rpc-cc-cost",
        paper: "eRPC section 6.2",
        about: "the same rate with each kind of congestion control against none",
        run: rpc_cc_cost::run,
    },
    Experiment {
        name: "rpc-sessions",
        paper: "eRPC section 6.3",
        about: "rate over 20,000 sessions against 100, and memory of an idle session",
        run: rpc_sessions::run,
    },
    Experiment {
        name: "rpc-bandwidth",
        paper: "eRPC Figure 6",
        about: "bandwidth of requests of 512 B to 8 MiB, one outstanding",
        run: rpc_bandwidth::run,
    },
    Experiment {
        name: "rpc-loss",
        paper: "eRPC Table 4",
        about: "bandwidth of 8 MiB requests while packets are lost",
        run: rpc_loss::run,
    },
    Experiment {
        name: "rpc-workers",
        paper: "eRPC section 3.2",
        about: "latency of quick calls beside a 1 ms handler, in the event loop and on a worker",
        run: rpc_workers::run,
    },
    Experiment {
        name: "rpc-wakeup",
        paper: "beyond the papers",
        about: "what an idle endpoint costs, and how fast one that sleeps wakes",
        run: rpc_wakeup::run,
    },
    Experiment {
        name: "rpc-busy",
        paper: "beyond the papers",
        about: "rate and latency beside a neighbour on the server's core, against bare echoes",
        run: rpc_busy::run,
    },
    Experiment {
        name: "serve-handle",
        paper: "beyond the papers",
        about: "latency of a call through a handle of another thread, beside the bare call",
        run: serve_handle::run,
    },
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
        name: "coord-scale",
        paper: "beyond the papers",
        about: "what members cost the cluster manager, and the time until the last of 1 to 1,000 watchers is told",
        run: coord_scale::run,
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
    Experiment {
        name: "rein-sim-trace",
        paper: "Rein Figure 3.3",
        about: "the multigets that stand in for the trace of SoundCloud",
        run: rein_sim::trace,
    },
    Experiment {
        name: "rein-sim-slack",
        paper: "Rein Figure 3.5",
        about: "bounds of what delaying operations with slack can save, by load",
        run: rein_sim::slack,
    },
    Experiment {
        name: "rein-sim-sensitivity",
        paper: "Rein Figure 3.8",
        about: "p99 with other numbers of queues and range factors, beside levels that are learnt",
        run: rein_sim::sensitivity,
    },
    Experiment {
        name: "rein-sim-synthetic",
        paper: "Rein Figure 3.11",
        about: "multigets of constant and log-normal sizes over 16 servers, uniform and Zipf",
        run: rein_sim::synthetic,
    },
    Experiment {
        name: "rein-sim-oracle",
        paper: "Rein Figure 3.14",
        about: "every policy over FIFO on 128 servers, beside clairvoyant ones and the floor",
        run: rein_sim::oracle,
    },
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
    Experiment {
        name: "misbehaving",
        paper: "beyond the papers",
        about: "rate of a working client, and memory of its server, beside clients that misbehave",
        run: misbehaving::run,
    },
    #[cfg(feature = "etcd")]
    Experiment {
        name: "smr-etcd",
        paper: "beyond the papers",
        about: "three durable replicas of a key-value machine beside an etcd of three members",
        run: smr_etcd::run,
    },
    #[cfg(feature = "peers")]
    Experiment {
        name: "rpc-peers",
        paper: "beyond the papers",
        about: "the same 32 B echo with tonic (gRPC) and tarpc over loopback TCP",
        run: rpc_peers::run,
    },
];

/// Experiments that only some builds include, each with its cargo feature.
const BY_FEATURE: [(&str, &str); 2] = [("rpc-peers", "peers"), ("smr-etcd", "etcd")];

/// The content of `dunlin demo`: a sample of everything.
pub const DEMO: Experiment = Experiment {
    name: "demo",
    paper: "",
    about: "latency, rate and bandwidth over both transports, a key-value service, and replicas whose leader is killed",
    run: demo::run,
};

/// Settings with which the demo takes about `total`.
pub fn demo_settings(total: Duration) -> Settings {
    let runs = 3;
    let measurements = (2 * demo::MEASUREMENTS * runs) as u32;
    // Each measurement is a run of a floor and a run of ours with its warm-up, and starts and ends three processes.
    let run = (total / measurements).saturating_sub(DEMO_STARTS).div_f64(2.2);
    // There is no time to repeat runs: disturbed rows are marked.
    Settings { run: run.max(DEMO_RUN_MIN), runs, repeats: 0, ..Settings::default() }
}

/// Approximate time of starting the processes of one measurement.
const DEMO_STARTS: Duration = Duration::from_millis(100);
/// The shortest meaningful run.
const DEMO_RUN_MIN: Duration = Duration::from_millis(50);

/// Every role of a process in an experiment.
const ROLES: &[Entry] = &[
    Entry::of::<BusyNeighbour>(),
    Entry::of::<roles::LatencyFloor>(),
    Entry::of::<roles::RateFloor>(),
    Entry::of::<roles::BandwidthFloor>(),
    Entry::of::<roles::WakeFloor>(),
    Entry::of::<roles::CrossingCalls>(),
    Entry::of::<roles::EchoServer>(),
    Entry::of::<demo::DemoServer>(),
    Entry::of::<demo::DemoDriver>(),
    Entry::of::<roles::LatencyClient>(),
    Entry::of::<roles::RateClient>(),
    Entry::of::<roles::RatesInTurn>(),
    Entry::of::<roles::Symmetric>(),
    Entry::of::<roles::BandwidthClient>(),
    Entry::of::<roles::SessionsClient>(),
    Entry::of::<roles::SlowServer>(),
    Entry::of::<roles::WorkersClient>(),
    Entry::of::<roles::LogFlush>(),
    Entry::of::<roles::CoordNode>(),
    Entry::of::<roles::CoordMembers>(),
    Entry::of::<roles::CoordWatchers>(),
    Entry::of::<roles::BareFlushes>(),
    Entry::of::<roles::MajorityFlushes>(),
    Entry::of::<roles::ReplicaGroup>(),
    Entry::of::<roles::PutLoad>(),
    Entry::of::<roles::KvReplica>(),
    Entry::of::<roles::StoreOps>(),
    Entry::of::<roles::CacheFill>(),
    Entry::of::<roles::KvServer>(),
    Entry::of::<roles::KvMemcachedServer>(),
    Entry::of::<roles::KvLoad>(),
    Entry::of::<roles::MultiGetLoad>(),
    Entry::of::<roles::MemcachedLoad>(),
    Entry::of::<roles::MemcachedProcess>(),
    Entry::of::<roles::SeqServer>(),
    Entry::of::<roles::SeqCallers>(),
    Entry::of::<roles::SeqDirectClients>(),
    Entry::of::<roles::BareServer>(),
    Entry::of::<roles::Connections>(),
    Entry::of::<roles::LimitedServer>(),
    Entry::of::<roles::Hoarder>(),
    Entry::of::<roles::ConnectBursts>(),
    Entry::of::<roles::ForgedUnreachables>(),
    Entry::of::<roles::Guesses>(),
    Entry::of::<roles::ForgedGuesses>(),
    Entry::of::<roles::Stopper>(),
    Entry::of::<roles::AskCounted>(),
    Entry::of::<roles::LostCalls>(),
    Entry::of::<roles::ShortPath>(),
    Entry::of::<roles::Sender>(),
    Entry::of::<roles::Sleeper>(),
    Entry::of::<roles::IdleWatcher>(),
    Entry::of::<roles::Alarm>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::EtcdServers>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::EtcdLoad>(),
    #[cfg(feature = "etcd")]
    Entry::of::<smr_etcd::ReplicaLoad>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherClient>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherServer>(),
];

/// Runs as a process of an experiment. The program calls this when its first argument is [`peer::ARGUMENT`].
pub fn serve_peer() -> ExitCode {
    peer::serve(ROLES)
}

/// The experiments selected by a name: one, or all for `all`.
///
/// # Errors
/// [`BenchError::UnknownExperiment`]; [`BenchError::NotInThisBuild`] for one whose cargo feature is off.
pub fn find(name: &str) -> Result<Vec<&'static Experiment>, BenchError> {
    let found: Vec<_> = ALL.iter().filter(|experiment| name == "all" || experiment.name == name).collect();
    if found.is_empty() {
        if let Some((name, feature)) = BY_FEATURE.into_iter().find(|(optional, _)| *optional == name) {
            return Err(BenchError::NotInThisBuild { name, feature });
        }
        let known: Vec<_> = ALL.iter().map(|experiment| experiment.name).chain(["all"]).collect();
        return Err(BenchError::UnknownExperiment { name: name.into(), known: known.join(", ") });
    }
    Ok(found)
}

/// The note about a skipped case.
fn too_little_memory(case: &str, needed: u64, available: u64) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    format!(
        "{case} was skipped: it needs {:.1} GiB and {:.1} GiB are free. `--items-max` takes fewer items.",
        gib(needed),
        gib(available)
    )
}

impl Experiment {
    /// Runs it. Measurements before an error are kept.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(&self, settings: Settings, launcher: Launcher) -> Result<Outcome, BenchError> {
        let mut lab = Lab::open(self.name, settings, launcher)?;
        let error = (self.run)(&mut lab).err();
        Ok(Outcome { report: lab.finish(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_names_of_one() {
        let roles: HashSet<_> = ROLES.iter().map(Entry::name).collect();
        assert_eq!(roles.len(), ROLES.len());
        let experiments: HashSet<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(experiments.len(), ALL.len());
    }
}
