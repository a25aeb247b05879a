//! The tools of an experiment: processes on their cores, a time budget, a progress bar and a report.

mod cases;
mod figures;
mod selection;
mod simulate;

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dunlin_serve::Interrupt;
use dunlin_sim::Topology;
use indicatif::{ProgressBar, ProgressStyle};

use crate::LabError;
use crate::measure::{BesideFloor, BusyNeighbour, Cores, Measured, RUNS, Spread};
use crate::peer::{Launcher, Peer, Role};
use crate::report::{Conditions, Metric, Papers, Plot, Report, ReportBuilder, RowBuilder};

pub use cases::{Case, Cases};
pub use figures::{Figure, Rounds};
pub use simulate::{Simulations, Trial, World};

/// Time limit of a process beyond its measurement: to start, connect and touch its memory, on a busy machine.
const SLACK: Duration = Duration::from_secs(20);
/// Time limit of a neighbour.
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(3600);

/// Default limit of repeated runs of a case.
const REPEATS: usize = 3;

/// How experiments are run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Length of one measured run.
    pub run: Duration,
    /// Runs of each case.
    pub runs: usize,
    /// Runs of a case that may be repeated because their floor shows that the machine was disturbed.
    pub repeats: usize,
    /// Limit of items in a case: cases that request more use this many instead.
    pub items_max: u64,
    /// A core that a neighbour keeps busy throughout.
    pub busy_core: Option<usize>,
    /// Settings of cases in virtual time.
    pub simulations: Simulations,
    /// Records for the demo, instead of those of the machine.
    pub data: Option<PathBuf>,
    /// Patterns of the cases to measure, with `*` for any text; none for all cases.
    pub cases: Vec<String>,
    /// File for the packets of the first run in virtual time.
    pub capture: Option<PathBuf>,
    /// Hosts and links in virtual time, instead of those of the experiment. Rows have no paper's figure then.
    pub topology: Option<Topology>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            run: Duration::from_secs(1),
            runs: RUNS,
            repeats: REPEATS,
            items_max: u64::MAX,
            busy_core: None,
            simulations: Simulations::default(),
            data: None,
            cases: Vec::new(),
            capture: None,
            topology: None,
        }
    }
}

impl Settings {
    fn conditions(&self) -> Conditions {
        let Simulations { seed, seeds, cost } = self.simulations;
        let items_max = (self.items_max < u64::MAX).then_some(self.items_max);
        let run_seconds = self.run.as_secs_f64();
        Conditions { run_seconds, runs: self.runs, items_max, busy_core: self.busy_core, seed, seeds, cost }
    }
}

/// The environment of one experiment. An experiment without processes, as in virtual time, needs only [`Lab::simulate`]
/// and [`Lab::push`], and runs on any machine. `E` is the error of the experiments.
#[derive(Debug)]
pub struct Lab<E> {
    settings: Settings,
    launcher: Launcher,
    bar: ProgressBar,
    report: ReportBuilder,
    papers: Papers,
    /// For the last case in virtual time.
    pace: Cell<simulate::Pace>,
    selection: selection::Selection,
    /// Lives as long as the experiment.
    _neighbour: Option<Peer<BusyNeighbour>>,
    error: PhantomData<fn() -> E>,
}

impl<E: From<LabError>> Lab<E> {
    /// Starts the neighbour, if one is requested. Rows are compared with the figures of `papers`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn open(
        experiment: &str,
        settings: Settings,
        papers: Papers,
        mut launcher: Launcher,
    ) -> Result<Self, LabError> {
        // Drawn on standard error, only if that is a terminal.
        let bar = ProgressBar::no_length().with_prefix(experiment.to_owned()).with_style(style());
        launcher.show_live(bar.clone());
        let mut neighbour = None;
        if settings.busy_core.is_some() {
            let mut peer = launcher.start(BusyNeighbour, settings.busy_core, NEIGHBOUR_LIMIT)?;
            peer.ready()?;
            neighbour = Some(peer);
        }
        let conditions = settings.conditions();
        let conditions_have_topology = settings.topology.is_some();
        Ok(Lab {
            settings,
            launcher,
            bar,
            report: ReportBuilder::new(experiment).conditions(conditions),
            // They are about other hosts and links.
            papers: if conditions_have_topology { Papers::default() } else { papers },
            selection: selection::Selection::default(),
            pace: Cell::default(),
            _neighbour: neighbour,
            error: PhantomData,
        })
    }

    /// The cores of servers and clients.
    ///
    /// # Errors
    /// [`LabError::TooFewCores`].
    pub fn cores(&self) -> Result<Cores, E> {
        Ok(Cores::choose()?)
    }

    /// Length of one measured run.
    pub fn run_length(&self) -> Duration {
        self.settings.run
    }

    /// Runs of each case.
    pub fn runs(&self) -> usize {
        self.settings.runs
    }

    /// The seed of the first run, for cases in real time whose arrivals are drawn.
    pub fn seed(&self) -> u64 {
        self.settings.simulations.seed
    }

    /// The number of items that a case requests, or the limit.
    pub fn items(&self, wanted: u64) -> u64 {
        wanted.min(self.settings.items_max)
    }

    /// What stops the experiment early.
    pub fn interrupt(&self) -> &Interrupt {
        self.launcher.interrupt()
    }

    /// Sets the number of cases, for the progress bar.
    pub fn expect_cases(&mut self, cases: usize) {
        self.bar.set_length((cases * self.settings.runs) as u64);
    }

    /// Records for the demo, if the user supplied some.
    pub fn data(&self) -> Option<&Path> {
        self.settings.data.as_deref()
    }

    /// Sets the number of steps besides the cases, for the progress bar.
    pub fn expect_steps(&mut self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// Begins a step that is not a case, and names it.
    pub fn step(&mut self, what: impl Into<String>) {
        self.bar.set_prefix(what.into());
        self.bar.set_message("");
        self.bar.inc(1);
    }

    /// Starts a process that chooses its cores itself; it may run for `measured` and some slack.
    ///
    /// # Errors
    /// [`LabError::Io`] if it cannot be started.
    pub fn anywhere<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, E> {
        self.check_real_time()?;
        Ok(self.launcher.start(role, None, measured + SLACK)?)
    }

    /// Starts a process on the server core; it may run for `measured` and some slack.
    ///
    /// # Errors
    /// [`LabError::Io`] if it cannot be started, [`LabError::TooFewCores`].
    pub fn server<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, E> {
        self.check_real_time()?;
        Ok(self.launcher.start(role, Some(self.cores()?.server), measured + SLACK)?)
    }

    /// Starts a process on the client core; it may run for `measured` and some slack.
    ///
    /// # Errors
    /// [`LabError::Io`] if it cannot be started, [`LabError::TooFewCores`].
    pub fn client<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, E> {
        self.check_real_time()?;
        Ok(self.launcher.start(role, Some(self.cores()?.client), measured + SLACK)?)
    }

    /// Measures one case as often as the settings say.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn case<T>(&mut self, name: &str, mut run: impl FnMut(&Lab<E>) -> Result<T, E>) -> Result<Vec<T>, E> {
        self.begin(name)?;
        let mut outcomes = Vec::with_capacity(self.settings.runs);
        for number in 1..=self.settings.runs {
            self.bar.set_prefix(format!("{name} run {number}/{}", self.settings.runs));
            outcomes.push(run(self)?);
            if number == 1 {
                self.measured(name, self.settings.runs, None);
            }
            self.bar.inc(1);
        }
        Ok(outcomes)
    }

    /// Measures one case once: for cases whose runs alternate with those of others.
    ///
    /// # Errors
    /// As the run.
    pub fn once<T>(&self, name: &str, run: impl FnOnce(&Lab<E>) -> Result<T, E>) -> Result<T, E> {
        self.begin(name)?;
        self.bar.set_prefix(name.to_owned());
        let outcome = run(self)?;
        self.measured_once(name);
        self.bar.inc(1);
        Ok(outcome)
    }

    /// Measures one case and its floor as often as the settings say, and repeats runs whose floor was disturbed. Each
    /// run measures the floor and then the figure, so that the two alternate. `cost` is the cost of a floor: less is
    /// better.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn case_beside_floor<T>(
        &mut self,
        name: &str,
        cost: impl Fn(&T) -> f64,
        run: impl Fn(&Lab<E>) -> Result<Measured<T>, E>,
    ) -> Result<BesideFloor<T>, E> {
        let (lab, runs) = (&*self, self.settings.runs);
        lab.begin(name)?;
        let mut number = 0;
        BesideFloor::take((runs, self.settings.repeats), cost, || {
            number += 1;
            let of_planned = number <= runs;
            let nth = if of_planned { format!("run {number}/{runs}") } else { "again, for it was disturbed".into() };
            lab.bar.set_prefix(format!("{name} {nth}"));
            let measured = run(lab)?;
            if number == 1 {
                lab.measured(name, runs, None);
            }
            lab.bar.inc(u64::from(of_planned));
            Ok(measured)
        })
    }

    /// Adds a row to the report, with the paper's figure if a table has one for it.
    pub fn push(&mut self, row: RowBuilder) {
        let figure = self.papers.figure(self.report.experiment(), row.case(), row.metric());
        let provenance = self.provenance(&row);
        self.report.push(row.paper(figure).provenance(provenance));
    }

    /// The paper's figure for a case, in the unit of the metric.
    pub fn paper(&self, case: &str, metric: Metric) -> Option<f64> {
        self.papers.figure(self.report.experiment(), case, metric).map(|figure| figure.value)
    }

    /// Adds a note: what could not be measured, why, and what to do about it, or other remarks.
    pub fn note(&mut self, note: impl Into<String>) {
        self.report.note(note);
    }

    /// Adds a plot to the report's page.
    pub fn plot(&mut self, plot: Plot) {
        self.report.plot(plot);
    }

    /// Ends the experiment, whether it is complete or not.
    pub fn finish(self) -> Report {
        self.bar.finish_and_clear();
        self.report.finish()
    }
}

/// The spread of one figure over several runs.
///
/// # Errors
/// [`LabError::NoSamples`] if there were no runs.
pub fn spread<T>(outcomes: &[T], figure: impl Fn(&T) -> f64) -> Result<Spread, LabError> {
    let figures: Vec<f64> = outcomes.iter().map(figure).collect();
    Spread::of(&figures).ok_or(LabError::NoSamples { what: "a case" })
}

fn style() -> ProgressStyle {
    let template = "{spinner:.cyan} {prefix:.bold} {bar:24.cyan/dim} {pos}/{len} {elapsed} {wide_msg}";
    ProgressStyle::with_template(template).expect("a constant template is valid")
}
