//! All experiments, by area, and the roles of their processes.

use std::process::ExitCode;
use std::time::Duration;

use dunlin_lab::measure::BusyNeighbour;
use dunlin_lab::peer::{self, Entry, Launcher};
use dunlin_lab::report::docs::{Highlight, Page};
use dunlin_lab::report::{Metric, Papers, Report};
use dunlin_lab::{LabError, Settings, matches};

pub use crate::demo::check_data as check_demo_data;

use crate::{BenchError, Lab, coord, demo, index, kv, rein, rpc, seq, sim, smr, store, txn};

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The table, figure or section of the paper that it reproduces.
    pub paper: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    pub(crate) run: fn(&mut Lab) -> Result<(), BenchError>,
}

/// The outcome of an experiment.
#[derive(Debug)]
pub struct Outcome {
    /// The rows measured so far.
    pub report: Report,
    /// Why it ended early.
    pub error: Option<BenchError>,
    /// Cases that were left out, because the user wanted others.
    pub left_out: Vec<String>,
}

/// The experiments of one subject, the roles of their processes, and the papers' figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub experiments: &'static [Experiment],
    pub roles: &'static [Entry],
    /// Tables for [`Papers`].
    pub papers: &'static str,
}

/// Every area with its name, in the order of `bench list`.
const AREAS: &[(&str, Area)] = &[
    ("rpc", rpc::AREA),
    ("sim", sim::AREA),
    ("store", store::AREA),
    ("kv", kv::AREA),
    ("smr", smr::AREA),
    ("coord", coord::AREA),
    ("txn", txn::AREA),
    ("rein", rein::AREA),
    ("seq", seq::AREA),
    ("index", index::AREA),
    ("demo", demo::AREA),
];

/// Every experiment, in the order of `bench list`.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    AREAS.iter().flat_map(|(_, area)| area.experiments)
}

/// The results page of each area that has experiments.
pub fn pages() -> impl Iterator<Item = Page<'static>> {
    AREAS.iter().filter(|(_, area)| !area.experiments.is_empty()).map(|(name, area)| Page {
        area: name,
        experiments: area.experiments.iter().map(|experiment| (experiment.name, experiment.about)).collect(),
    })
}

/// The figures of README.md.
pub const HIGHLIGHTS: [Highlight; 6] = [
    Highlight {
        experiment: "rpc-peers",
        metric: Metric::LatencyP50,
        what: "32 B call over UDP, one outstanding, p50",
        case: "dunlin over udp",
        rival: "tarpc over TCP",
    },
    Highlight {
        experiment: "rpc-peers",
        metric: Metric::Rate,
        what: "32 B calls over UDP, 60 in flight",
        case: "dunlin over udp",
        rival: "tarpc over TCP",
    },
    Highlight {
        experiment: "kv-memcached",
        metric: Metric::Operations,
        what: "memcached GET over TCP, 8 connections x 64",
        case: "Dunlin, GET, 8 connections x 64",
        rival: "memcached, GET, 8 connections x 64",
    },
    Highlight {
        experiment: "store-ops",
        metric: Metric::Operations,
        what: "GET from a table of 1 M items, one at a time",
        case: "Dunlin, cache, 1 M items, 100 % GET, uniform, one at a time",
        rival: "hashbrown, 1 M items, 100 % GET, uniform, one at a time",
    },
    Highlight {
        experiment: "smr-etcd",
        metric: Metric::Operations,
        what: "replicated put to disk over UDP, 64 clients",
        case: "Dunlin over udp, disk, put, 64 clients",
        rival: "etcd, disk, put, 64 clients",
    },
    Highlight {
        experiment: "smr-etcd",
        metric: Metric::LatencyP50,
        what: "replicated put to disk over UDP, 1 client, p50",
        case: "Dunlin over udp, disk, put, 1 client",
        rival: "etcd, disk, put, 1 client",
    },
];

/// Experiments that only some builds include, each with its cargo feature.
pub const BY_FEATURE: [(&str, &str); 2] = [("rpc-peers", "peers"), ("smr-etcd", "etcd")];

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
pub fn roles() -> Vec<Entry> {
    let of_areas = AREAS.iter().flat_map(|(_, area)| area.roles).copied();
    of_areas.chain([Entry::of::<BusyNeighbour>()]).collect()
}

/// The papers' figures for all experiments.
///
/// # Errors
/// A table of this crate is wrong.
pub fn papers() -> Result<Papers, BenchError> {
    Ok(Papers::read(AREAS.iter().map(|(_, area)| area.papers))?)
}

/// Runs as a process of an experiment. The program calls this when its first argument is [`peer::ARGUMENT`].
pub fn serve_peer() -> ExitCode {
    peer::serve(&roles())
}

/// The experiments with one of these names, each once, in the order of `bench list`. In a name `*` stands for any text,
/// and `all` is the name of all.
///
/// # Errors
/// [`BenchError::UnknownExperiment`] for a name that none has; [`BenchError::NotInThisBuild`] for one whose cargo
/// feature is off.
pub fn find(names: &[String]) -> Result<Vec<&'static Experiment>, BenchError> {
    let is_called = |experiment: &Experiment, name: &str| name == "all" || matches(name, experiment.name);
    for name in names {
        if all().any(|experiment| is_called(experiment, name)) {
            continue;
        }
        if let Some((name, feature)) = BY_FEATURE.into_iter().find(|(optional, _)| optional == name) {
            return Err(BenchError::NotInThisBuild { name, feature });
        }
        let known: Vec<_> = all().map(|experiment| experiment.name).chain(["all"]).collect();
        return Err(BenchError::UnknownExperiment { name: name.clone(), known: known.join(", ") });
    }
    Ok(all().filter(|experiment| names.iter().any(|name| is_called(experiment, name))).collect())
}

impl Experiment {
    /// Runs it. Measurements before an error are kept.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(&self, settings: Settings, launcher: Launcher) -> Result<Outcome, BenchError> {
        let mut lab = Lab::open(self.name, settings, papers()?, launcher)?;
        let error = (self.run)(&mut lab).err();
        let error = error.filter(|error| !matches!(error, BenchError::Lab(LabError::NoneWanted)));
        let left_out = lab.left_out();
        Ok(Outcome { report: lab.finish(), error, left_out })
    }
}
