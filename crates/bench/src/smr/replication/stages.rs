//! The work of a replica by stages, with times: from the probe of `dunlin-smr`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_lab::measure::Latencies;
use dunlin_net::Clock;
use dunlin_sim::ThreadClock;
use dunlin_smr::{Probe, Stage};
use serde::{Deserialize, Serialize};

/// Readings of the clock in each batch from which its own cost is measured.
const CLOCK_READINGS: u32 = 100;
/// Batches of these. The quickest counts: others may include time in which this thread did not run.
const CLOCK_BATCHES: usize = 100;

/// How often a replica ran each stage, and for how long.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// By stage, in the order of [`Stage::ALL`]: number of times, and nanoseconds. Work within a visit that belongs to
    /// no other stage counts for the visit.
    stages: Vec<(u64, f64)>,
}

impl StageTimes {
    /// Nanoseconds of one run of a stage.
    pub fn each(&self, stage: Stage) -> f64 {
        let (times, _) = self.of(stage);
        if times == 0 { 0.0 } else { self.total(stage) / times as f64 }
    }

    /// Nanoseconds of all runs of a stage. One that takes less than a reading of the clock may seem to take less than
    /// nothing, and counts as nothing.
    pub fn total(&self, stage: Stage) -> f64 {
        self.of(stage).1.max(0.0)
    }

    /// Nanoseconds of all stages.
    pub fn sum(&self) -> f64 {
        Stage::ALL.into_iter().map(|stage| self.total(stage)).sum()
    }

    fn of(&self, stage: Stage) -> (u64, f64) {
        self.stages.get(place(stage)).copied().unwrap_or_default()
    }

    /// Adds the times of another replica.
    pub fn add(&mut self, other: &StageTimes) {
        self.stages.resize(Stage::ALL.len(), (0, 0.0));
        for ((times, nanos), (more_times, more_nanos)) in self.stages.iter_mut().zip(&other.stages) {
            (*times, *nanos) = (*times + more_times, *nanos + more_nanos);
        }
    }

    /// The times since `before`.
    pub fn since(&self, before: &StageTimes) -> StageTimes {
        let stages = Stage::ALL.into_iter().map(|stage| {
            let ((times, nanos), (times_before, nanos_before)) = (self.of(stage), before.of(stage));
            (times - times_before, nanos - nanos_before)
        });
        StageTimes { stages: stages.collect() }
    }
}

/// The index of a stage in [`Stage::ALL`].
fn place(stage: Stage) -> usize {
    stage as usize
}

/// Measures the stages of a replica by the processor's clock.
pub struct Stages {
    clock: Clock,
    /// Cost of a reading of the clock, in nanoseconds: each stage includes one too many.
    reading: f64,
    /// Open stages, the innermost last.
    open: RefCell<Vec<Stage>>,
    /// All time up to here is accounted for.
    until: Cell<u64>,
    times: RefCell<Vec<(u64, f64)>>,
}

impl Stages {
    /// An empty measurement.
    pub fn new() -> Rc<Stages> {
        let clock = Clock::new();
        Rc::new(Stages {
            reading: cost_of_reading(&clock),
            clock,
            open: RefCell::default(),
            until: Cell::new(0),
            times: RefCell::new(vec![(0, 0.0); Stage::ALL.len()]),
        })
    }

    /// The times so far.
    pub fn times(&self) -> StageTimes {
        StageTimes { stages: self.times.borrow().clone() }
    }

    /// Attributes the time since the last call to the innermost stage. Each call costs a reading of the clock, half of
    /// it before and half after the time is taken.
    fn account(&self) {
        let now = self.clock.now();
        if let Some(stage) = self.open.borrow().last() {
            let nanos = (now - self.until.get()) as f64 - self.reading;
            self.times.borrow_mut()[place(*stage)].1 += nanos;
        }
        self.until.set(now);
    }
}

/// Nanoseconds that a reading of a clock takes.
fn cost_of_reading(clock: &Clock) -> f64 {
    let batch = |_| {
        let begin = clock.now();
        (0..CLOCK_READINGS).for_each(|_| _ = std::hint::black_box(clock.now()));
        clock.now() - begin
    };
    let quickest = (0..CLOCK_BATCHES).map(batch).min().unwrap_or(0);
    quickest as f64 / f64::from(CLOCK_READINGS + 1)
}

impl Probe for Stages {
    fn begin(&self, stage: Stage) {
        self.account();
        self.open.borrow_mut().push(stage);
        self.times.borrow_mut()[place(stage)].0 += 1;
    }

    fn end(&self, _stage: Stage) {
        self.account();
        self.open.borrow_mut().pop();
    }
}

/// Charges a simulated processor the measured time of each stage.
pub struct Charges {
    clock: ThreadClock,
    /// Nanoseconds by stage.
    costs: Cell<[u64; Stage::ALL.len()]>,
}

impl Charges {
    /// On the clock of this thread; charges nothing yet.
    pub fn new(clock: ThreadClock) -> Rc<Charges> {
        Rc::new(Charges { clock, costs: Cell::default() })
    }

    /// Sets the charges from now on.
    pub fn set(&self, times: &StageTimes) {
        self.costs.set(Stage::ALL.map(|stage| times.each(stage).max(0.0).round() as u64));
    }
}

impl Probe for Charges {
    fn begin(&self, _stage: Stage) {}

    fn end(&self, stage: Stage) {
        self.clock.charge(self.costs.get()[place(stage)]);
    }
}

/// Notifies two probes.
pub struct Both<A, B>(pub Rc<A>, pub Rc<B>);

impl<A: Probe, B: Probe> Probe for Both<A, B> {
    fn begin(&self, stage: Stage) {
        self.0.begin(stage);
        self.1.begin(stage);
    }

    fn end(&self, stage: Stage) {
        self.0.end(stage);
        self.1.end(stage);
    }
}

/// Measures, at a leader with one command in flight, the time from the arrival of the command until it is committed
/// (eRPC, Table 6: "leader").
pub struct LeaderCommits {
    now: Box<dyn Fn() -> u64>,
    /// When the command was read.
    came: Cell<Option<u64>>,
    times: RefCell<Latencies>,
}

impl LeaderCommits {
    /// With this clock.
    pub fn new(now: impl Fn() -> u64 + 'static) -> Rc<LeaderCommits> {
        Rc::new(LeaderCommits { now: Box::new(now), came: Cell::new(None), times: RefCell::default() })
    }

    /// Takes the times so far.
    pub fn take(&self) -> Latencies {
        self.came.set(None);
        self.times.take()
    }
}

impl Probe for LeaderCommits {
    fn begin(&self, stage: Stage) {
        match stage {
            Stage::Request if self.came.get().is_none() => self.came.set(Some((self.now)())),
            Stage::Machine => {
                if let Some(came) = self.came.take() {
                    self.times.borrow_mut().record((self.now)() - came);
                }
            }
            _ => {}
        }
    }

    fn end(&self, _stage: Stage) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_the_innermost_stage() {
        let stages = Stages::new();
        let work = |nanos: u64| {
            let clock = Clock::new();
            while clock.now() < nanos {}
        };
        for _ in 0..10 {
            stages.begin(Stage::Visit);
            work(10_000);
            stages.begin(Stage::Step);
            work(50_000);
            stages.end(Stage::Step);
            stages.end(Stage::Visit);
            work(100_000);
        }
        let times = stages.times();
        assert_eq!(times.of(Stage::Visit).0, 10);
        // Minus a reading of the clock; other processes may have had the processor meanwhile.
        assert!(times.each(Stage::Visit) > 9_000.0 && times.each(Stage::Step) > 49_000.0, "{times:?}");
        assert!(times.total(Stage::Visit) < times.total(Stage::Step) || times.sum() > 1e6, "{times:?}");
        let none = times.since(&times);
        assert_eq!((none.sum(), none.each(Stage::Step)), (0.0, 0.0));
    }

    #[test]
    fn commits_are_timed_from_the_request() {
        let now = Rc::new(Cell::new(0));
        let clock = now.clone();
        let commits = LeaderCommits::new(move || clock.get());
        for (time, stage) in
            [(4, Stage::Machine), (5, Stage::Request), (9, Stage::Parse), (25, Stage::Machine), (30, Stage::Parse)]
        {
            now.set(time);
            commits.begin(stage);
        }
        let times = commits.take();
        assert_eq!((times.count(), times.quantile(1.0)), (1, 20.0));
        assert_eq!(commits.take().count(), 0);
    }
}
