//! `smr-etcd`: beyond the paper. Three replicas of a key-value machine with durable logs, and an etcd of three members,
//! in turn, under the same load.

mod etcd;
mod load;
mod replicas;

pub(crate) use etcd::{EtcdLoad, EtcdServers};
pub(crate) use replicas::ReplicaLoad;

use std::path::{Path, PathBuf};
use std::time::Duration;

use dunlin_coord::etcd::local::{self, Scratch};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use self::load::{Figures, Load, Operation};
use super::replicas::{Placing, Replicas};
use crate::rpc::roles::Carrier;
use crate::smr::roles::MajorityFlushes;
use crate::{BenchError, Lab};

/// Number of concurrent clients.
const CLIENTS: [usize; 2] = [1, 64];
/// Required ratio of Dunlin's request rate, and limit of its latency as a share.
const RATE_TIMES: f64 = 10.0;
const LATENCY_SHARE: f64 = 0.2;
/// The default of replicas.
const ELECTION: Duration = Duration::from_millis(500);
/// Time limit for storing all keys and starting, in addition to the runs.
const SLACK: Duration = Duration::from_secs(60);
/// Number of files for bare flushes, and bytes of each flush.
const REPLICAS: usize = 3;
const ENTRY_BYTES: usize = 136;
/// Maximum time of a run of bare flushes: their time varies more from one second to the next than within one.
const FLUSH_RUN_MAX: Duration = Duration::from_secs(1);

/// The storage of logs.
#[derive(Debug, Clone, Copy)]
struct Storage {
    name: &'static str,
    directory: fn() -> PathBuf,
}

/// In memory, flushes cost nothing, which leaves the cost of software.
const STORAGES: [Storage; 2] = [
    Storage { name: "disk", directory: std::env::temp_dir },
    Storage { name: "tmpfs", directory: || PathBuf::from("/dev/shm") },
];

/// The results of both in one round with one storage.
struct Round {
    /// By carrier, then by operation and number of clients.
    ours: Vec<Vec<Figures>>,
    theirs: Vec<Figures>,
    /// Time until two of three bare files are durable, in nanoseconds, on disk.
    flush: Option<f64>,
}

fn loads() -> impl Iterator<Item = (Operation, usize)> {
    Operation::ALL.into_iter().flat_map(|operation| CLIENTS.map(|clients| (operation, clients)))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let version = local::installed_version(Path::new(local::PROGRAM));
    match &version {
        Some(version) => lab.note(format!(
            "Compared with {version}, default settings, three members that flush their logs. Its client is the crate etcd-client, with one connection, to \
             the member that leads, which serves it best."
        )),
        None => lab.note("etcd is not installed, so there is nothing to compare with: `apt install etcd-server`."),
    }
    lab.note(format!(
        "All three replicas, and all three members, are processes on one core, and the clients are one process on the other. etcd has loopback TCP. Keys have {} B and values {} B. \
         The floor of a put on the disk is the time until two of three bare files that are flushed at once are durable, in the same round: a measure, \
         no bound; that disk is the one of {}, which all three share.",
        load::KEY_BYTES,
        load::VALUE_BYTES,
        std::env::temp_dir().display()
    ));
    lab.expect_cases(STORAGES.len());
    for storage in STORAGES {
        let names: Vec<String> = all_cases(storage).collect();
        if !lab.wants_any(names.iter().map(String::as_str)) {
            continue;
        }
        let rounds = lab.case(storage.name, |lab| round(lab, storage, version.is_some()))?;
        push(lab, storage, &rounds, version.is_some())?;
    }
    Ok(())
}

/// The names of all rows on a storage: one round measures them all.
fn all_cases(storage: Storage) -> impl Iterator<Item = String> {
    let ours = Carrier::ALL.map(|carrier| format!("Dunlin over {}", carrier.name()));
    let who = ours.into_iter().chain(["etcd".to_owned()]);
    who.flat_map(move |who| loads().map(move |(operation, clients)| case_name(&who, storage, operation, clients)))
}

fn case_name(who: &str, storage: Storage, operation: Operation, clients: usize) -> String {
    let s = if clients == 1 { "" } else { "s" };
    format!("{who}, {}, {}, {clients} client{s}", storage.name, operation.name())
}

fn round(lab: &Lab, storage: Storage, with_etcd: bool) -> Result<Round, BenchError> {
    let parent = (storage.directory)();
    let theirs = if with_etcd { etcd_round(lab, &parent)? } else { Vec::new() };
    let ours = Carrier::ALL.map(|carrier| replica_round(lab, carrier, &parent));
    let ours = ours.into_iter().collect::<Result<_, _>>()?;
    let flush = (storage.name == "disk").then(|| {
        let run = lab.run_length().min(FLUSH_RUN_MAX);
        lab.anywhere(MajorityFlushes { files: REPLICAS, entry_bytes: ENTRY_BYTES, run }, 2 * run)?.result()
    });
    Ok(Round { ours, theirs, flush: flush.transpose()? })
}

/// Time limit for all loads of a round.
fn time(lab: &Lab) -> Duration {
    lab.run_length() * 2 * loads().count() as u32 + SLACK
}

fn etcd_round(lab: &Lab, parent: &Path) -> Result<Vec<Figures>, BenchError> {
    let scratch = Scratch::make(parent, "bench-etcd").map_err(BenchError::io("make a directory for an etcd"))?;
    let mut servers = lab.server(EtcdServers { directory: scratch.path().to_owned() }, time(lab))?;
    let endpoints = servers.ready()?;
    let figures = loads().map(|(operation, clients)| {
        let load = Load { operation, clients, run: lab.run_length() };
        lab.client(EtcdLoad { endpoints: endpoints.clone(), load }, lab.run_length() + SLACK)?.result()
    });
    let figures = figures.collect::<Result<_, _>>()?;
    servers.stop()?;
    Ok(figures)
}

fn replica_round(lab: &Lab, carrier: Carrier, parent: &Path) -> Result<Vec<Figures>, BenchError> {
    let replicas = Replicas::start_in(lab, ELECTION, time(lab), (carrier, Placing::ServerCore), parent)?;
    let figures = loads().map(|(operation, clients)| {
        let load = Load { operation, clients, run: lab.run_length() };
        lab.client(ReplicaLoad { members: replicas.addresses(), load }, lab.run_length() + SLACK)?.result()
    });
    let figures = figures.collect::<Result<_, _>>()?;
    replicas.stop()?;
    Ok(figures)
}

type Figure = fn(&Figures) -> f64;

/// The figures of a load, and the required ratio to the other system.
const FIGURES: [(Metric, Figure, f64); 3] = [
    (Metric::Operations, |figures| figures.rate, RATE_TIMES),
    (Metric::LatencyP50, |figures| figures.latency.p50, LATENCY_SHARE),
    (Metric::LatencyP99, |figures| figures.latency.p99, LATENCY_SHARE),
];

fn push(lab: &mut Lab, storage: Storage, rounds: &[Round], with_etcd: bool) -> Result<(), BenchError> {
    let flush = if rounds.iter().any(|round| round.flush.is_some()) {
        Some(spread(rounds, |round| round.flush.unwrap_or_default())?.median)
    } else {
        None
    };
    for (place, (operation, clients)) in loads().enumerate() {
        let case = |who: &str| case_name(who, storage, operation, clients);
        for (metric, figure, factor) in FIGURES {
            let with_floor = |row: RowBuilder| match flush {
                Some(flush) if operation == Operation::Put && metric == Metric::LatencyP50 => row.floor(flush),
                _ => row,
            };
            if with_etcd {
                let theirs =
                    RowBuilder::new(case("etcd"), metric, spread(rounds, |round| figure(&round.theirs[place]))?);
                lab.push(with_floor(theirs));
            }
            for (number, carrier) in Carrier::ALL.into_iter().enumerate() {
                let figures = spread(rounds, |round| figure(&round.ours[number][place]))?;
                let mut ours = RowBuilder::new(case(&format!("Dunlin over {}", carrier.name())), metric, figures);
                if with_etcd {
                    ours = ours.target(Target::CaseTimes { case: case("etcd"), factor }).rival(case("etcd"));
                }
                if storage.name == "disk" && operation == Operation::Put {
                    ours =
                        ours.limit("the flush of a majority of logs, which all replicas share (rows of `log-flush`)");
                }
                lab.push(with_floor(ours));
            }
        }
    }
    Ok(())
}
