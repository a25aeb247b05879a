//! What an experiment works with: processes on their cores, a budget of time, a progress bar and a report to fill.

mod simulate;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dunlin_serve::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};

use crate::BenchError;
use crate::measure::{BesideFloor, BusyNeighbour, Cores, Measured, RUNS, Spread};
use crate::peer::{Launcher, Peer, Role};
use crate::report::{Plot, Report, ReportBuilder, RowBuilder};

pub use simulate::{Simulations, Trial};

/// Time a process gets beyond what it measures: to start, to connect, to touch its memory, beside other work.
const SLACK: Duration = Duration::from_secs(20);
/// Time a neighbour gets to start.
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(3600);

/// Runs of a case that are taken again at most, unless told otherwise.
const REPEATS: usize = 3;

/// How experiments are run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Length of one measured run.
    pub run: Duration,
    /// Runs of each case.
    pub runs: usize,
    /// Runs of a case that may be taken again because its floor shows that the machine was disturbed meanwhile.
    pub repeats: usize,
    /// Items of a case at most: cases that ask for more have so many instead.
    pub items_max: u64,
    /// A core to keep busy with a neighbour all the while.
    pub busy_core: Option<usize>,
    /// What concerns cases in virtual time.
    pub simulations: Simulations,
    /// Records for the demo, instead of those that the machine has.
    pub data: Option<PathBuf>,
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
        }
    }
}

/// The surroundings of one experiment. One that starts no processes, as in virtual time, needs nothing but [`Lab::simulate`]
/// and [`Lab::push`], and runs on any machine.
#[derive(Debug)]
pub struct Lab {
    settings: Settings,
    launcher: Launcher,
    bar: ProgressBar,
    report: ReportBuilder,
    /// Of the last case in virtual time.
    pace: Cell<simulate::Pace>,
    /// Alive as long as the experiment.
    _neighbour: Option<Peer<BusyNeighbour>>,
}

impl Lab {
    /// Starts the neighbour, if one is wanted.
    ///
    /// # Errors
    /// Whatever keeps it from starting.
    pub fn open(experiment: &str, settings: Settings, mut launcher: Launcher) -> Result<Self, BenchError> {
        // Drawn on standard error, and only if that is a terminal.
        let bar = ProgressBar::no_length().with_prefix(experiment.to_owned()).with_style(style());
        launcher.show_live(bar.clone());
        let mut neighbour = None;
        if settings.busy_core.is_some() {
            let mut peer = launcher.start(BusyNeighbour, settings.busy_core, NEIGHBOUR_LIMIT)?;
            peer.ready()?;
            neighbour = Some(peer);
        }
        Ok(Lab {
            settings,
            launcher,
            bar,
            report: ReportBuilder::new(experiment),
            pace: Cell::default(),
            _neighbour: neighbour,
        })
    }

    /// The cores of servers and clients.
    ///
    /// # Errors
    /// [`BenchError::TooFewCores`].
    pub fn cores(&self) -> Result<Cores, BenchError> {
        Cores::choose()
    }

    /// Length of one measured run.
    pub fn run_length(&self) -> Duration {
        self.settings.run
    }

    /// Runs of each case.
    pub fn runs(&self) -> usize {
        self.settings.runs
    }

    /// As many items as a case asks for, or as many as may be.
    pub fn items(&self, wanted: u64) -> u64 {
        wanted.min(self.settings.items_max)
    }

    /// What stops the experiment early.
    pub fn interrupt(&self) -> &Interrupt {
        self.launcher.interrupt()
    }

    /// Tells how many cases there will be, for the progress bar.
    pub fn expect_cases(&mut self, cases: usize) {
        self.bar.set_length((cases * self.settings.runs) as u64);
    }

    /// Records for the demo, if the user gave some.
    pub fn data(&self) -> Option<&Path> {
        self.settings.data.as_deref()
    }

    /// Tells how many steps there will be beside the cases, for the progress bar.
    pub fn expect_steps(&mut self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// Begins a step that is no case, and says what it is.
    pub fn step(&mut self, what: impl Into<String>) {
        self.bar.set_prefix(what.into());
        self.bar.set_message("");
        self.bar.inc(1);
    }

    /// Starts a process that chooses its cores itself, for the length of `measured` and some slack.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it cannot be started.
    pub fn anywhere<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, BenchError> {
        self.launcher.start(role, None, measured + SLACK)
    }

    /// Starts a process on the core of servers, for the length of `measured` and some slack.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it cannot be started, [`BenchError::TooFewCores`].
    pub fn server<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, BenchError> {
        self.launcher.start(role, Some(self.cores()?.server), measured + SLACK)
    }

    /// Starts a process on the core of clients, for the length of `measured` and some slack.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it cannot be started, [`BenchError::TooFewCores`].
    pub fn client<R: Role>(&self, role: R, measured: Duration) -> Result<Peer<R>, BenchError> {
        self.launcher.start(role, Some(self.cores()?.client), measured + SLACK)
    }

    /// Measures one case as often as the settings say.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn case<T>(&mut self, name: &str, mut run: impl FnMut(&Lab) -> Result<T, BenchError>) -> Result<Vec<T>, BenchError> {
        let mut outcomes = Vec::with_capacity(self.settings.runs);
        for number in 1..=self.settings.runs {
            self.bar.set_prefix(format!("{name} run {number}/{}", self.settings.runs));
            outcomes.push(run(self)?);
            self.bar.inc(1);
        }
        Ok(outcomes)
    }

    /// Measures one case once: for cases whose runs alternate with those of others.
    ///
    /// # Errors
    /// That of the run.
    pub fn once<T>(&self, name: &str, run: impl FnOnce(&Lab) -> Result<T, BenchError>) -> Result<T, BenchError> {
        self.bar.set_prefix(name.to_owned());
        let outcome = run(self)?;
        self.bar.inc(1);
        Ok(outcome)
    }

    /// Measures one case beside its floor as often as the settings say, and again where the floor was disturbed. Each run measures the
    /// floor and then the figure, so that the two alternate. `cost` is what a floor takes: less is better.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn case_beside_floor<T>(
        &mut self,
        name: &str,
        cost: impl Fn(&T) -> f64,
        run: impl Fn(&Lab) -> Result<Measured<T>, BenchError>,
    ) -> Result<BesideFloor<T>, BenchError> {
        let (lab, runs) = (&*self, self.settings.runs);
        let mut number = 0;
        BesideFloor::take((runs, self.settings.repeats), cost, || {
            number += 1;
            let of_planned = number <= runs;
            let nth = if of_planned { format!("run {number}/{runs}") } else { "again, for it was disturbed".into() };
            lab.bar.set_prefix(format!("{name} {nth}"));
            let measured = run(lab)?;
            lab.bar.inc(u64::from(of_planned));
            Ok(measured)
        })
    }

    /// Adds a row to the report.
    pub fn push(&mut self, row: RowBuilder) {
        self.report.push(row);
    }

    /// Says what could not be measured, why, and what to do about it, or what else there is to know.
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
/// [`BenchError::NoSamples`] if there were no runs.
pub fn spread<T>(outcomes: &[T], figure: impl Fn(&T) -> f64) -> Result<Spread, BenchError> {
    let figures: Vec<f64> = outcomes.iter().map(figure).collect();
    Spread::of(&figures).ok_or(BenchError::NoSamples { what: "a case" })
}

fn style() -> ProgressStyle {
    let template = "{spinner:.cyan} {prefix:.bold} {bar:24.cyan/dim} {pos}/{len} {elapsed} {wide_msg}";
    ProgressStyle::with_template(template).expect("a constant template is valid")
}
