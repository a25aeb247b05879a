//! Cases in virtual time: one run for each seed, and no processes.

use std::io::Write;
use std::time::Duration;

use dunlin_sim::{CostModel, Topology};

use super::Lab;
use crate::LabError;
use crate::measure::{cpu_nanos, peak_resident_bytes};
use crate::report::{Seeds, human};

/// Settings of cases in virtual time.
#[derive(Debug, Clone)]
pub struct Simulations {
    /// Seed of the first run of each case; further runs use the following seeds.
    pub seed: u64,
    /// Runs of each case. A run is exact, so one is enough unless the effect of chance matters.
    pub seeds: u32,
    /// The CPU time of packets, instead of that of the experiment's cluster.
    pub cost: Option<CostModel>,
}

impl Default for Simulations {
    fn default() -> Self {
        Simulations { seed: 1, seeds: 1, cost: None }
    }
}

/// The simulator's work for a case, and its cost on this machine: the only figures of virtual time that are not exact.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Packets that were received.
    packets: u64,
    cpu_nanos: u64,
}

/// What runs in virtual time: a simulated datacenter with all that runs on its hosts.
pub trait World {
    /// Why it cannot go on.
    type Error;

    /// Virtual time, in nanoseconds.
    fn now(&self) -> u64;

    /// Packets that were received so far.
    fn packets(&mut self) -> u64;

    /// Advances time to `time`, in nanoseconds.
    ///
    /// # Errors
    /// If a part of the world failed.
    fn run_until(&mut self, time: u64) -> Result<(), Self::Error>;
}

/// One run of a case.
#[derive(Debug)]
pub struct Trial<'a, E> {
    lab: &'a Lab<E>,
    seed: u64,
}

// Not derived: that would require the same of the error.
impl<E> Clone for Trial<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Trial<'_, E> {}

/// Checks of the interrupt, and updates of the progress bar, in a run.
const LOOKS_PER_RUN: u64 = 100;

impl<E: From<LabError>> Lab<E> {
    /// Sets the number of cases in virtual time, for the progress bar.
    pub fn expect_simulations(&mut self, cases: usize) {
        self.bar.set_length(cases as u64 * u64::from(self.settings.simulations.seeds));
    }

    /// Runs one case in virtual time with as many seeds as the settings say.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn simulate<T>(&mut self, name: &str, mut run: impl FnMut(Trial<'_, E>) -> Result<T, E>) -> Result<Vec<T>, E> {
        let Simulations { seed, seeds, .. } = self.settings.simulations;
        self.check_selection(name)?;
        self.pace.take();
        let mut outcomes = Vec::new();
        for seed in (0..u64::from(seeds)).map(|number| seed.wrapping_add(number)) {
            self.bar.set_prefix(format!("{name}, seed {seed}"));
            outcomes.push(run(Trial { lab: self, seed })?);
            if outcomes.len() == 1 {
                self.end_simulation()?;
                self.measured(name, seeds as usize, Some(Seeds { first: seed, count: seeds }));
            }
            self.bar.inc(1);
        }
        self.bar.set_message("");
        Ok(outcomes)
    }

    /// Records how fast the last case was simulated, and in how much memory.
    ///
    /// # Errors
    /// [`LabError::Io`] if the system does not report it.
    pub fn note_pace(&mut self, case: &str) -> Result<(), E> {
        let Pace { packets, cpu_nanos } = self.pace.get();
        let (millions, seconds) = (packets as f64 / 1e6, cpu_nanos as f64 / 1e9);
        let memory = human::bytes(peak_resident_bytes()? as f64);
        self.note(format!(
            "{case}: {millions:.2} M packets were simulated in {seconds:.2} s of CPU time, {:.2} M in a second; up to here this \
             process has needed {memory}",
            millions / seconds
        ));
        Ok(())
    }

    /// Virtual time: `per_second` for each second of the requested run length.
    pub fn virtual_time(&self, per_second: Duration) -> u64 {
        (per_second.as_nanos() as f64 * self.settings.run.as_secs_f64()) as u64
    }
}

impl<E: From<LabError>> Trial<'_, E> {
    /// The seed of this run.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], since a simulation that is no [`World`] does not check the interrupt itself.
    pub fn seed(&self) -> Result<u64, E> {
        self.check_interrupt()?;
        Ok(self.seed)
    }

    /// The cost model given by the user, else `cost`.
    pub fn cost_or(&self, cost: CostModel) -> CostModel {
        let cost = self.lab.settings.simulations.cost.unwrap_or(cost);
        self.lab.note_cost(cost);
        cost
    }

    /// The hosts and links given by the user, else `topology`.
    pub fn topology_or(&self, topology: Topology) -> Topology {
        self.lab.topology().cloned().unwrap_or(topology)
    }

    /// Where the packets of this run go, if the user wants them: those of the first run of an experiment.
    ///
    /// # Errors
    /// [`LabError::Io`] if the file cannot be created.
    pub fn capture(&self) -> Result<Option<Box<dyn Write>>, E> {
        Ok(self.lab.take_capture()?)
    }

    /// Advances a world by `time` nanoseconds and shows the progress.
    ///
    /// # Errors
    /// The first error of a member's task; [`LabError::Interrupted`].
    pub fn run_for(&self, world: &mut impl World<Error = E>, time: u64) -> Result<(), E> {
        self.watch_for(world, time, |_| {})
    }

    /// As [`Trial::run_for`], and calls `watch` with the virtual time a hundred times, in equal intervals.
    ///
    /// # Errors
    /// As [`Trial::run_for`].
    pub fn watch_for(&self, world: &mut impl World<Error = E>, time: u64, mut watch: impl FnMut(u64)) -> Result<(), E> {
        let start = world.now();
        for look in 1..=LOOKS_PER_RUN {
            self.advance(world, start + (u128::from(time) * u128::from(look) / u128::from(LOOKS_PER_RUN)) as u64)?;
            self.look(world.now())?;
            watch(world.now());
        }
        Ok(())
    }

    /// Advances time until `done`, which is checked every `step` nanoseconds.
    ///
    /// # Errors
    /// As [`Trial::run_for`]; [`LabError::Stuck`] if it is not done after `limit` nanoseconds.
    pub fn run_until(
        &self,
        world: &mut impl World<Error = E>,
        (step, limit): (u64, u64),
        what: &'static str,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), E> {
        let end = world.now() + limit;
        while !done() {
            if world.now() >= end {
                return Err(LabError::Stuck { what, limit: Duration::from_nanos(limit) }.into());
            }
            self.advance(world, world.now() + step)?;
            self.look(world.now())?;
        }
        Ok(())
    }

    /// Advances time to `time`, and adds up the cost.
    fn advance(&self, world: &mut impl World<Error = E>, time: u64) -> Result<(), E> {
        let (packets, cpu) = (world.packets(), cpu_nanos());
        world.run_until(time)?;
        let Pace { packets: packets_before, cpu_nanos: cpu_before } = self.lab.pace.get();
        self.lab.pace.set(Pace {
            packets: packets_before + world.packets() - packets,
            cpu_nanos: cpu_before + cpu_nanos() - cpu,
        });
        Ok(())
    }

    fn look(&self, now: u64) -> Result<(), E> {
        self.lab.bar.set_message(format!("{:.2} ms of virtual time", now as f64 / 1e6));
        self.check_interrupt()
    }

    fn check_interrupt(&self) -> Result<(), E> {
        if self.lab.interrupt().is_set() { Err(LabError::Interrupted.into()) } else { Ok(()) }
    }
}
