//! What is measured of an experiment, and what is recorded of it: the cases that the user wants, how each was measured,
//! and options that only some experiments can honour.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use dunlin_sim::{CostModel, Topology};

use super::{Case, Cases, Figure, Lab, Settings};
use crate::report::{Process, Provenance, RowBuilder, Seeds};
use crate::{LabError, matches};

/// A measurement: the case that it was taken of, and how.
#[derive(Debug)]
struct Measurement {
    case: String,
    runs: u32,
    seeds: Option<Seeds>,
    cost: Option<CostModel>,
    processes: Vec<Process>,
}

/// The state of an experiment's selection.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The experiment asks which cases are wanted.
    asks: Cell<bool>,
    /// Cases that were left out.
    left_out: RefCell<Vec<String>>,
    measurements: RefCell<Vec<Measurement>>,
    /// The cost model of the last run in virtual time.
    cost: Cell<Option<CostModel>>,
    capture: RefCell<Option<CaptureFile>>,
    /// The file was given to a run.
    captures: Cell<bool>,
    takes_topology: Cell<bool>,
}

/// A file that a simulation writes to while the lab keeps it, to see whether all was written.
#[derive(Debug, Clone)]
struct CaptureFile {
    path: PathBuf,
    file: Rc<RefCell<(BufWriter<File>, io::Result<()>)>>,
}

impl CaptureFile {
    fn create(path: &Path) -> Result<Self, LabError> {
        let file = File::create(path).map_err(LabError::io(format!("write {}", path.display())))?;
        Ok(CaptureFile { path: path.to_owned(), file: Rc::new(RefCell::new((BufWriter::new(file), Ok(())))) })
    }

    fn finish(self) -> Result<(), LabError> {
        let (file, written) = &mut *self.file.borrow_mut();
        std::mem::replace(written, Ok(()))
            .and_then(|()| file.flush())
            .map_err(LabError::io(format!("write {}", self.path.display())))
    }
}

impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (file, first_error) = &mut *self.file.borrow_mut();
        let written = file.write(bytes);
        if let (Err(error), Ok(())) = (&written, &*first_error) {
            *first_error = Err(error.kind().into());
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.borrow_mut().0.flush()
    }
}

impl<E: From<LabError>> Lab<E> {
    /// Whether a case, or one of its rows, is to be measured. An experiment that measures its cases by hand must ask
    /// before each case that can be left out. What it measures without asking is taken to be needed by others.
    pub fn wants(&self, case: &str) -> bool {
        self.wants_any([case])
    }

    /// Whether any of these cases is to be measured, for cases that can only be measured together.
    pub fn wants_any<'a>(&self, cases: impl IntoIterator<Item = &'a str>) -> bool {
        self.selection.asks.set(true);
        let cases: Vec<&str> = cases.into_iter().collect();
        let wanted = cases.iter().any(|case| self.is_selected(case));
        if !wanted {
            self.selection.left_out.borrow_mut().extend(cases.into_iter().map(str::to_owned));
        }
        wanted
    }

    /// The cases that were left out.
    pub fn left_out(&self) -> Vec<String> {
        self.selection.left_out.borrow().clone()
    }

    fn is_selected(&self, case: &str) -> bool {
        let wanted = &self.settings.cases;
        wanted.is_empty() || wanted.iter().any(|pattern| matches(pattern, case))
    }

    /// The wanted cases, and those that their targets refer to.
    pub(super) fn selected<'a, A, S>(&mut self, cases: &'a Cases<A>, figures: &[Figure<A, S>]) -> Vec<&'a Case<A>> {
        let wanted = |case: &Case<A>| {
            let names = figures.iter().filter_map(|figure| figure.row_name(case));
            self.is_selected(&case.name) || names.into_iter().any(|name| self.is_selected(&name))
        };
        let mut selected: Vec<bool> = cases.iter().map(wanted).collect();
        let asked_for = selected.clone();
        loop {
            let chosen = cases.iter().zip(&selected).filter(|(_, chosen)| **chosen).map(|(case, _)| case);
            let needed: BTreeSet<String> =
                chosen.flat_map(|case| figures.iter().flat_map(|figure| figure.needs(case))).collect();
            let is_needed = |case: &Case<A>| {
                figures.iter().filter_map(|figure| figure.row_name(case)).any(|name| needed.contains(&name))
            };
            let more: Vec<bool> =
                cases.iter().zip(&selected).map(|(case, chosen)| *chosen || is_needed(case)).collect();
            if more == selected {
                break;
            }
            selected = more;
        }
        for (case, _) in cases.iter().zip(&selected).zip(&asked_for).filter(|((_, s), a)| **s && !**a).map(|(it, _)| it)
        {
            self.note(format!("{} was measured too, since a target refers to it.", case.name));
        }
        self.selection.asks.set(true);
        let left_out = cases.iter().zip(&selected).filter(|(_, chosen)| !**chosen).map(|(case, _)| case.name.clone());
        self.selection.left_out.borrow_mut().extend(left_out);
        cases.iter().zip(selected).filter(|(_, chosen)| *chosen).map(|(case, _)| case).collect()
    }

    /// Checks, before a measurement in real time, that it is what the user asked for.
    pub(super) fn begin(&self, case: &str) -> Result<(), LabError> {
        self.check_real_time()?;
        self.check_selection(case)?;
        self.launcher.forget_ended();
        Ok(())
    }

    /// Checks, before a process starts, that the user does not ask for what only virtual time has.
    pub(super) fn check_real_time(&self) -> Result<(), LabError> {
        let why = "it measures processes, not simulations";
        match &self.settings {
            Settings { capture: Some(_), .. } => Err(self.cannot("--pcap", why)),
            Settings { topology: Some(_), .. } => Err(self.cannot("--topology", why)),
            _ => Ok(()),
        }
    }

    pub(super) fn check_selection(&self, case: &str) -> Result<(), LabError> {
        if self.is_selected(case) || self.selection.asks.get() {
            return Ok(());
        }
        Err(self.cannot("--case", "its cases are measured together"))
    }

    fn cannot(&self, option: &'static str, why: &'static str) -> LabError {
        LabError::CannotHonour { experiment: self.report.experiment().to_owned(), option, why }
    }

    /// Notes how a case was measured: once its first run, in real time or virtual time, is over.
    pub(super) fn measured(&self, case: &str, runs: usize, seeds: Option<Seeds>) {
        let processes = self.launcher.running();
        let cost = seeds.and(self.selection.cost.get());
        let measurement = Measurement { case: case.to_owned(), runs: runs as u32, seeds, cost, processes };
        self.selection.measurements.borrow_mut().push(measurement);
    }

    /// Notes how a case was measured whose runs a process took by itself: once that has ended, before its rows are
    /// added. Rows of cases that begin with this name were measured in the same way.
    pub fn taken(&self, case: &str, runs: usize) {
        self.measured(case, runs, None);
        self.launcher.forget_ended();
    }

    /// Notes a run of a case whose runs alternate with those of others.
    pub(super) fn measured_once(&self, case: &str) {
        if let Some(again) = self.selection.measurements.borrow_mut().iter_mut().rfind(|it| it.case == case) {
            again.runs += 1;
            return;
        }
        self.measured(case, 1, None);
    }

    /// How a row was measured: as its case was or, if no measurement has that name, as the last one.
    pub(super) fn provenance(&self, row: &RowBuilder) -> Provenance {
        let measurements = self.selection.measurements.borrow();
        let of_case = measurements.iter().filter(|measurement| row.case().starts_with(&measurement.case));
        let how = of_case.max_by_key(|measurement| measurement.case.len()).or(measurements.last());
        let provenance = Provenance {
            commit: env!("DUNLIN_COMMIT").to_owned(),
            run_seconds: self.settings.run.as_secs_f64(),
            runs: how.map_or(1, |how| how.runs),
            seeds: how.and_then(|how| how.seeds),
            cost: how.and_then(|how| how.cost),
            transport: row.axis("transport").map(str::to_owned).into_iter().collect(),
            in_flight: BTreeMap::new(),
            cores: BTreeMap::new(),
            processes: Vec::new(),
        };
        provenance.with_processes(how.map_or(&[][..], |how| &how.processes[..]))
    }

    pub(super) fn note_cost(&self, cost: CostModel) {
        self.selection.cost.set(Some(cost));
    }

    /// The user's topology, in place of the experiment's.
    pub fn topology(&self) -> Option<&Topology> {
        self.selection.takes_topology.set(true);
        self.settings.topology.as_ref()
    }

    /// Where the packets of the first run in virtual time go, if the user wants them: once.
    pub(super) fn take_capture(&self) -> Result<Option<Box<dyn Write>>, LabError> {
        let Some(path) = self.settings.capture.as_ref().filter(|_| !self.selection.captures.get()) else {
            return Ok(None);
        };
        let file = CaptureFile::create(path)?;
        self.selection.captures.set(true);
        *self.selection.capture.borrow_mut() = Some(file.clone());
        Ok(Some(Box::new(file)))
    }

    /// Ends the capture of the first run, and checks that the run honoured what the user asked for.
    pub(super) fn end_simulation(&self) -> Result<(), LabError> {
        if self.settings.topology.is_some() && !self.selection.takes_topology.get() {
            return Err(self.cannot("--topology", "its hosts and links are part of what it measures"));
        }
        if self.settings.capture.is_some() && !self.selection.captures.get() {
            return Err(self.cannot("--pcap", "it simulates no packets"));
        }
        self.selection.capture.borrow_mut().take().map_or(Ok(()), CaptureFile::finish)
    }
}

#[cfg(test)]
mod tests {
    use dunlin_serve::Interrupt;

    use super::*;
    use crate::peer::Launcher;
    use crate::report::{Metric, Papers, Report, Target};

    type Place = (&'static str, u32);

    const FIGURES: [Figure<Place, f64>; 2] = [
        Figure::new(Metric::Rate, |_, rate| *rate).target(|(transport, n)| {
            // Each case refers to the one with half as many.
            let case = format!("{transport}, {} in flight", n / 2);
            (*transport == "udp" && *n > 1).then_some(Target::CaseTimes { case, factor: 2.0 })
        }),
        Figure::new(Metric::Calls, |_, _| 0.0).part(", lost"),
    ];

    fn cases() -> Cases<Place> {
        Cases::along("transport", ["shm", "udp"], |name| *name).by("in flight", [1, 2, 4], |n| format!("{n} in flight"))
    }

    fn lab(settings: Settings) -> Lab<LabError> {
        Lab::open("test", settings, Papers::default(), Launcher::new(Interrupt::default())).unwrap()
    }

    fn wanting(cases: &[&str]) -> Settings {
        Settings { runs: 2, cases: cases.iter().map(|case| (*case).to_owned()).collect(), ..Settings::default() }
    }

    fn measured(cases_wanted: &[&str]) -> (Report, Vec<String>) {
        let mut lab = lab(wanting(cases_wanted));
        lab.measure_each(&cases(), &FIGURES, |_, (_, n)| Ok(f64::from(*n))).unwrap();
        let left_out = lab.left_out();
        (lab.finish(), left_out)
    }

    #[test]
    fn only_wanted_cases_are_measured() {
        let names = |report: &Report| report.rows.iter().map(|row| row.case.clone()).collect::<Vec<_>>();
        let (report, left_out) = measured(&["shm, 1 *", "*, 4 in flight, lost"]);
        // Both rows of each case; and what the target of `udp, 4 in flight` refers to, and that of its own in turn.
        let expected = ["shm, 1", "shm, 4", "udp, 1", "udp, 2", "udp, 4"]
            .map(|case| [format!("{case} in flight"), format!("{case} in flight, lost")]);
        assert_eq!(names(&report), expected.concat());
        assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
        assert!(report.notes[1].starts_with("udp, 2 in flight was measured too"), "{:?}", report.notes);
        assert_eq!(left_out, ["shm, 2 in flight"]);
        assert_eq!(names(&measured(&[]).0).len(), 12);
        let (none, left_out) = measured(&["tcp*"]);
        assert_eq!((none.rows.len(), left_out.len()), (0, 6));
    }

    #[test]
    fn systems_in_turn_are_measured_together_or_not_at_all() {
        let round = |_: &Lab<LabError>| Ok(vec![(1.0, None); 6]);
        let mut some = lab(wanting(&["shm, 1 in flight"]));
        some.measure_in_turn(&cases(), &FIGURES, round).unwrap();
        assert_eq!(some.finish().rows.len(), 12, "they are compared with each other");
        let none = lab(wanting(&["tcp*"])).measure_in_turn(&cases(), &FIGURES, round);
        assert!(matches!(none, Err(LabError::NoneWanted)));
    }

    #[test]
    fn an_experiment_that_never_asks_refuses() {
        let mut lab = lab(wanting(&["other"]));
        let refused = lab.case("one", |_| Ok(1.0)).unwrap_err().to_string();
        assert_eq!(refused, "test cannot honour --case: its cases are measured together; run it without");
        assert!(!lab.wants("one") && lab.wants("other"));
        // What is measured without being wanted is needed by others from now on.
        assert_eq!(lab.case("one", |_| Ok(1.0)).unwrap(), [1.0, 1.0]);
    }

    #[test]
    fn options_of_virtual_time_are_refused_in_real_time() {
        let capture = Settings { capture: Some("unused.pcap".into()), ..Settings::default() };
        let refused = lab(capture).case("one", |_| Ok(1.0)).unwrap_err().to_string();
        assert!(refused.starts_with("test cannot honour --pcap: it measures processes"), "{refused}");
        let topology = || Settings { topology: Some(Topology::cx4()), ..Settings::default() };
        let refused = lab(topology()).case("one", |_| Ok(1.0)).unwrap_err().to_string();
        assert!(refused.starts_with("test cannot honour --topology: it measures processes"), "{refused}");
        let refused = lab(topology()).simulate("one", |_| Ok(1.0)).unwrap_err().to_string();
        assert!(refused.starts_with("test cannot honour --topology: its hosts and links"), "{refused}");
        let taken = lab(topology()).simulate("one", |trial| Ok(trial.topology_or(Topology::cx5()).name));
        assert_eq!(taken.unwrap(), [Topology::cx4().name]);
    }

    #[test]
    fn the_first_run_in_virtual_time_is_captured_whole() {
        let path = std::env::temp_dir().join(format!("dunlin-test-capture-{}", std::process::id()));
        let mut settings = Settings { capture: Some(path.clone()), ..Settings::default() };
        settings.simulations.seeds = 2;
        let written = lab(settings.clone()).simulate("one", |trial| {
            let file = trial.capture()?;
            let is_first = file.is_some();
            file.into_iter().for_each(|mut file| file.write_all(b"packets").unwrap());
            Ok(is_first)
        });
        assert_eq!(written.unwrap(), [true, false]);
        assert_eq!(std::fs::read(&path).unwrap(), b"packets");
        std::fs::remove_file(&path).unwrap();
        let refused = lab(settings).simulate("one", |_| Ok(1.0)).unwrap_err().to_string();
        assert!(refused.starts_with("test cannot honour --pcap: it simulates no packets"), "{refused}");
    }

    #[test]
    fn rows_say_how_they_were_measured() {
        let mut lab = lab(Settings { runs: 3, ..Settings::default() });
        lab.measure_each(&cases(), &FIGURES, |_, (_, n)| Ok(f64::from(*n))).unwrap();
        for round in 0..2 {
            lab.once("alone", |_| Ok(round)).unwrap();
        }
        lab.push(RowBuilder::new("alone, its rate", Metric::Rate, 1.0.into()));
        lab.simulate("sim", |trial| Ok(trial.cost_or(CostModel::default()))).unwrap();
        lab.push(RowBuilder::of_seeds("another name", Metric::Rate, &[1.0]).unwrap());
        let rows = lab.finish().rows;
        let how: Vec<&Provenance> = rows.iter().filter_map(|row| row.provenance.as_ref()).collect();
        assert_eq!(how.len(), rows.len());
        assert_eq!((how[0].runs, how[0].seeds, how[0].cost), (3, None, None));
        assert_eq!((&how[0].transport, how[0].run_seconds), (&BTreeSet::from(["shm".to_owned()]), 1.0));
        let [.., alone, simulated] = &how[..] else { panic!("{how:?}") };
        assert_eq!((alone.runs, alone.seeds), (2, None));
        assert_eq!((simulated.runs, simulated.seeds), (1, Some(Seeds { first: 1, count: 1 })));
        assert_eq!(simulated.cost, Some(CostModel::default()));
    }
}
