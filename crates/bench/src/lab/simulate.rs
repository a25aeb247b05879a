//! Cases in virtual time: one run for each seed, and no processes.

use std::time::Duration;

use dunlin_sim::{CostModel, Topology};

use super::Lab;
use crate::BenchError;
use crate::datacenter::Cluster;
use crate::measure::{cpu_nanos, peak_resident_bytes};
use crate::report::human;

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

/// One run of a case.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    lab: &'a Lab,
    seed: u64,
}

/// Checks of the interrupt, and updates of the progress bar, in a run.
const LOOKS_PER_RUN: u64 = 100;

impl Lab {
    /// Sets the number of cases in virtual time, for the progress bar.
    pub fn expect_simulations(&mut self, cases: usize) {
        self.bar.set_length(cases as u64 * u64::from(self.settings.simulations.seeds));
    }

    /// Runs one case in virtual time with as many seeds as the settings say.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn simulate<T>(
        &mut self,
        name: &str,
        mut run: impl FnMut(Trial<'_>) -> Result<T, BenchError>,
    ) -> Result<Vec<T>, BenchError> {
        let Simulations { seed, seeds, .. } = self.settings.simulations;
        self.pace.take();
        let mut outcomes = Vec::new();
        for seed in (0..u64::from(seeds)).map(|number| seed.wrapping_add(number)) {
            self.bar.set_prefix(format!("{name}, seed {seed}"));
            outcomes.push(run(Trial { lab: self, seed })?);
            self.bar.inc(1);
        }
        self.bar.set_message("");
        Ok(outcomes)
    }

    /// Records how fast the last case was simulated, and in how much memory.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the system does not report it.
    pub fn note_pace(&mut self, case: &str) -> Result<(), BenchError> {
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

impl Trial<'_> {
    /// The seed of this run, for a simulation other than a [`Cluster`].
    ///
    /// # Errors
    /// [`BenchError::Interrupted`], since such a simulation does not check the interrupt itself.
    pub fn seed(&self) -> Result<u64, BenchError> {
        self.check_interrupt()?;
        Ok(self.seed)
    }

    /// A cluster with this seed, and the cost model given by the user, else `cost`.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn cluster(&self, topology: &Topology, cost: CostModel) -> Result<Cluster, BenchError> {
        Cluster::new(topology, self.lab.settings.simulations.cost.unwrap_or(cost), self.seed)
    }

    /// Advances a cluster by `time` nanoseconds and shows the progress.
    ///
    /// # Errors
    /// The first error of a member's task; [`BenchError::Interrupted`].
    pub fn run_for(&self, cluster: &mut Cluster, time: u64) -> Result<(), BenchError> {
        self.watch_for(cluster, time, |_| {})
    }

    /// As [`Trial::run_for`], and calls `watch` with the virtual time a hundred times, in equal intervals.
    ///
    /// # Errors
    /// As [`Trial::run_for`].
    pub fn watch_for(&self, cluster: &mut Cluster, time: u64, mut watch: impl FnMut(u64)) -> Result<(), BenchError> {
        let start = cluster.now();
        for look in 1..=LOOKS_PER_RUN {
            self.advance(cluster, start + (u128::from(time) * u128::from(look) / u128::from(LOOKS_PER_RUN)) as u64)?;
            self.look(cluster)?;
            watch(cluster.now());
        }
        Ok(())
    }

    /// Advances time until `done`, which is checked every `step` nanoseconds.
    ///
    /// # Errors
    /// As [`Trial::run_for`]; [`BenchError::Stuck`] if it is not done after `limit` nanoseconds.
    pub fn run_until(
        &self,
        cluster: &mut Cluster,
        (step, limit): (u64, u64),
        what: &'static str,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), BenchError> {
        let end = cluster.now() + limit;
        while !done() {
            if cluster.now() >= end {
                return Err(BenchError::Stuck { what, limit: Duration::from_nanos(limit) });
            }
            self.advance(cluster, cluster.now() + step)?;
            self.look(cluster)?;
        }
        Ok(())
    }

    /// Advances time to `time`, and adds up the cost.
    fn advance(&self, cluster: &mut Cluster, time: u64) -> Result<(), BenchError> {
        let (packets, cpu) = (cluster.datacenter().counters().received, cpu_nanos());
        cluster.run_until(time)?;
        let Pace { packets: packets_before, cpu_nanos: cpu_before } = self.lab.pace.get();
        self.lab.pace.set(Pace {
            packets: packets_before + cluster.datacenter().counters().received - packets,
            cpu_nanos: cpu_before + cpu_nanos() - cpu,
        });
        Ok(())
    }

    fn look(&self, cluster: &Cluster) -> Result<(), BenchError> {
        self.lab.bar.set_message(format!("{:.2} ms of virtual time", cluster.now() as f64 / 1e6));
        self.check_interrupt()
    }

    fn check_interrupt(&self) -> Result<(), BenchError> {
        if self.lab.interrupt().is_set() { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}
