//! All experiments, by area, and the roles of their processes.

use std::process::ExitCode;
use std::time::Duration;

use dunlin_lab::Settings;
use dunlin_lab::measure::BusyNeighbour;
use dunlin_lab::peer::{self, Entry, Launcher};
use dunlin_lab::report::{Papers, Report};

pub use crate::demo::check_data as check_demo_data;

use crate::{BenchError, Lab, coord, demo, index, kv, rein, rpc, seq, sim, smr, store};

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
}

/// The experiments of one subject, the roles of their processes, and the papers' figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub experiments: &'static [Experiment],
    pub roles: &'static [Entry],
    /// Tables for [`Papers`].
    pub papers: &'static str,
}

/// Every area, in the order of `bench list`.
const AREAS: [Area; 10] = [
    rpc::AREA,
    sim::AREA,
    store::AREA,
    kv::AREA,
    smr::AREA,
    coord::AREA,
    rein::AREA,
    seq::AREA,
    index::AREA,
    demo::AREA,
];

/// Every experiment, in the order of `bench list`.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    AREAS.into_iter().flat_map(|area| area.experiments)
}

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
fn roles() -> Vec<Entry> {
    let of_areas = AREAS.into_iter().flat_map(|area| area.roles).copied();
    of_areas.chain([Entry::of::<BusyNeighbour>()]).collect()
}

/// The papers' figures for all experiments.
fn papers() -> Result<Papers, BenchError> {
    Ok(Papers::read(AREAS.map(|area| area.papers))?)
}

/// Runs as a process of an experiment. The program calls this when its first argument is [`peer::ARGUMENT`].
pub fn serve_peer() -> ExitCode {
    peer::serve(&roles())
}

/// The experiments selected by a name: one, or all for `all`.
///
/// # Errors
/// [`BenchError::UnknownExperiment`]; [`BenchError::NotInThisBuild`] for one whose cargo feature is off.
pub fn find(name: &str) -> Result<Vec<&'static Experiment>, BenchError> {
    let found: Vec<_> = all().filter(|experiment| name == "all" || experiment.name == name).collect();
    if found.is_empty() {
        if let Some((name, feature)) = BY_FEATURE.into_iter().find(|(optional, _)| *optional == name) {
            return Err(BenchError::NotInThisBuild { name, feature });
        }
        let known: Vec<_> = all().map(|experiment| experiment.name).chain(["all"]).collect();
        return Err(BenchError::UnknownExperiment { name: name.into(), known: known.join(", ") });
    }
    Ok(found)
}

impl Experiment {
    /// Runs it. Measurements before an error are kept.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(&self, settings: Settings, launcher: Launcher) -> Result<Outcome, BenchError> {
        let mut lab = Lab::open(self.name, settings, papers()?, launcher)?;
        let error = (self.run)(&mut lab).err();
        Ok(Outcome { report: lab.finish(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use dunlin_lab::report::Metric;

    use super::*;

    #[test]
    fn names_are_names_of_one() {
        let names: HashSet<_> = roles().iter().map(Entry::name).collect();
        assert_eq!(names.len(), roles().len());
        let experiments: HashSet<_> = all().map(|experiment| experiment.name).collect();
        assert_eq!(experiments.len(), all().count());
    }

    #[test]
    fn the_papers_tables_are_of_experiments() {
        let papers = papers().unwrap();
        for name in papers.experiments() {
            let is_optional = BY_FEATURE.iter().any(|(optional, _)| *optional == name);
            assert!(is_optional || name == DEMO.name || all().any(|experiment| experiment.name == name), "{name}");
        }
        let figure = |case, metric| papers.figure("rpc-latency", case, metric).map(|figure| figure.value);
        assert_eq!(figure("udp 32 B", Metric::LatencyP50), Some(2300.0));
        assert_eq!(figure("udp 32 B", Metric::LatencyP99), None);
    }
}
