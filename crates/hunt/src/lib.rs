//! The fault hunts: endpoints in a simulated datacenter under random work and random faults, each run drawn from a seed.
//!
//! A run draws a topology, endpoints with their settings, work (calls of every kind and size, sessions opened and
//! closed from both ends) and a fault plan: packets are lost, duplicated, reordered and delayed, links and hosts fail,
//! hosts restart with lost memory. Then the network heals, and the run must end as the protocol promises, which
//! [`dunlin_trial::judge`] checks. A broken promise panics inside the run, and reports the seed.
//!
//! NICs drop corrupted packets, because of the checksums of Ethernet and UDP: they count as lost. One run in ten flips
//! bits after the checksums; there a response may be wrong, but nothing panics, leaks or hangs.
//!
//! [`Hunt::run`] runs many seeds, [`replay`] one, and [`shrink`] searches for fewer faults. docs/simulation.md describes
//! each hunt. Start reading at `scenario` and `run`.
//!
//! | File | What it holds |
//! |---|---|
//! | `kv` | the same for the key-value service, judged by the observations of its clients |
//! | `raft` | the same for replicated state machines |
//! | `coord` | the same for the cluster manager |
//! | `txn` | the same for transactions |
//! | `seq` | the same for sequencers |
//! | `cluster` | replicas of any machine |
//! | `clients` | the work of their clients, and the judge of their observations |
//! | `scenario` | the meaning of a seed |
//! | `strain` | one-way partitions, clocks of other rates and long pauses, for all of them |
//! | `node` | an endpoint, and the program that drives it |
//! | `run` | one run, up to its verdict |
//! | `story` | the result of a run |
//! | `jobs` | many runs, several in parallel |
//! | `failure` | turns a broken promise into a message |
//! | `trace` | the files written for a run |
#![forbid(unsafe_code)]

mod clients;
mod cluster;
mod coord;
mod error;
mod failure;
mod jobs;
mod kv;
mod node;
mod raft;
mod run;
mod scenario;
#[doc(hidden)]
pub mod seq;
mod story;
mod strain;
mod trace;
#[doc(hidden)]
pub mod txn;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use dunlin_sim::{FaultPlan, Topology};

pub use error::TraceError;
pub use scenario::Scenario;
pub use story::Story;

use trace::Trace;

/// Limit of runs in the search for fewer faults.
const SHRINK_TRIES: usize = 40;

/// The subject of a hunt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Endpoints that call each other.
    #[default]
    Rpc,
    /// The key-value service: clients and a server; the history of each key must be linearizable.
    Kv,
    /// Replicated state machines: replicas and clients; logs must satisfy Raft's invariants, and histories must be
    /// linearizable.
    Raft,
    /// The cluster manager on replicated state machines: answers to members, holders of leases, writers and watchers
    /// must be as docs/coordination.md promises.
    Coord,
    /// Transactions: histories must be strictly serializable, and the service must lose nothing.
    Txn,
    /// Sequencers: numbers must rise in real time, and never come twice.
    Seq,
}

/// The run of a seed whose faults are drawn before it.
trait Drawn: Debug {
    fn topology(&self) -> &Topology;
    fn plan(&mut self) -> &mut FaultPlan;

    /// # Panics
    /// If a promise is broken.
    fn run(self: Box<Self>, trace: Option<&Trace>) -> Story;
}

/// Implements [`Drawn`] by calling a function with the scenario.
macro_rules! drawn {
    ($scenario:ty, $run:expr) => {
        impl Drawn for $scenario {
            fn topology(&self) -> &Topology {
                &self.topology
            }

            fn plan(&mut self) -> &mut FaultPlan {
                &mut self.plan
            }

            fn run(self: Box<Self>, trace: Option<&Trace>) -> Story {
                $run(*self, trace)
            }
        }
    };
}

drawn!(Scenario, run::run);
drawn!(kv::Scenario, kv::run);

impl Kind {
    /// Whether the faults of a seed are drawn before it runs. If not, they depend on what happens: they cannot be
    /// replaced, and there is no trace.
    pub fn has_plan(self) -> bool {
        self.draw(0, None).is_some()
    }

    /// The run of a seed, with its own faults or with others; `None` if they are drawn while it runs.
    fn draw(self, seed: u64, faults: Option<&FaultPlan>) -> Option<Box<dyn Drawn>> {
        let mut drawn: Box<dyn Drawn> = match self {
            Kind::Rpc => Box::new(Scenario::draw(seed)),
            Kind::Kv => Box::new(kv::Scenario::draw(seed)),
            Kind::Raft => Box::new(cluster::Of::<raft::KeyValues>::draw(seed)),
            Kind::Coord => Box::new(cluster::Of::<coord::Manager>::draw(seed)),
            Kind::Txn | Kind::Seq => return None,
        };
        if let Some(faults) = faults {
            *drawn.plan() = faults.clone();
        }
        Some(drawn)
    }

    /// Runs a seed, with its own faults or with others; returns its result, or why it failed.
    fn run(self, seed: u64, faults: Option<&FaultPlan>, trace: Option<&Trace>) -> Result<Story, String> {
        let drawn = self.draw(seed, faults);
        failure::caught(|| match (self, drawn) {
            (_, Some(drawn)) => drawn.run(trace),
            (Kind::Seq, None) => seq::run(seed),
            (_, None) => txn::run(seed),
        })
    }

    /// Makes the directory of a trace, with everything known of a seed before it runs.
    fn trace(self, seed: u64, faults: Option<&FaultPlan>, directory: &Path) -> Result<Option<Trace>, TraceError> {
        let Some(mut drawn) = self.draw(seed, faults) else { return Ok(None) };
        let plan = drawn.plan().clone();
        Trace::create(directory, &drawn, drawn.topology(), &plan).map(Some)
    }
}

/// Which seeds to run.
#[derive(Debug, Clone, Copy)]
pub struct Hunt {
    /// Of which kind.
    pub kind: Kind,
    /// The first seed.
    pub first: u64,
    /// The number of seeds, if limited.
    pub seeds: Option<u64>,
    /// The time, if limited.
    pub time: Option<Duration>,
    /// The number of parallel runs.
    pub jobs: usize,
}

/// Seeds with undecided keys that are remembered, at most.
pub const UNDECIDED_SEEDS_MAX: usize = 16;

/// The progress so far.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Completed runs.
    pub seeds: u64,
    /// Calls issued in them.
    pub calls: u64,
    /// Packets sent in them.
    pub packets: u64,
    /// Keys whose histories could not be decided in time.
    pub undecided: u64,
    /// The first seeds with such keys, at most [`UNDECIDED_SEEDS_MAX`].
    pub undecided_seeds: Vec<u64>,
    /// Replicas that refused to start because of bit rot, and were replaced.
    pub replaced: u64,
    /// Changes of members and of leaders that were made.
    pub changes: u64,
    /// Times a running replica waited for a disk that hung.
    pub hung: u64,
    /// Elapsed time.
    pub elapsed: Duration,
    /// Processor time that the process has used meanwhile: on a busy machine it says more about how much was searched.
    pub processor_time: Duration,
}

impl Progress {
    /// Returns how many keys may stay undecided: one in 100 seeds, and by chance three standard deviations more. A hunt
    /// with more has judged too little.
    pub fn undecided_max(&self) -> u64 {
        let expected = self.seeds.div_ceil(100);
        expected + 3 * expected.isqrt()
    }

    /// Adds a run that kept every promise.
    fn add(&mut self, seed: u64, story: &Story) {
        self.calls += story.calls;
        self.packets += story.packets;
        self.replaced += story.replaced;
        self.changes += story.changes;
        self.hung += story.hung;
        self.undecided += story.undecided;
        if story.undecided > 0 {
            // Runs end in any order.
            let at = self.undecided_seeds.partition_point(|earlier| *earlier < seed);
            self.undecided_seeds.insert(at, seed);
            self.undecided_seeds.truncate(UNDECIDED_SEEDS_MAX);
        }
    }
}

/// A seed that broke a promise.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The broken promise, and where it was detected.
    pub why: String,
}

/// Runs one seed, with its own faults or with others, and writes a trace of it to a directory if one is given. Kinds
/// without a [plan](Kind::has_plan) ignore both.
///
/// # Errors
/// [`TraceError`] if the trace cannot be written. A broken promise is the inner error.
pub fn replay(
    kind: Kind,
    seed: u64,
    faults: Option<&FaultPlan>,
    directory: Option<&Path>,
) -> Result<Result<Story, Failure>, TraceError> {
    let trace = directory.map(|directory| kind.trace(seed, faults, directory)).transpose()?.flatten();
    let result = kind.run(seed, faults, trace.as_ref()).map_err(|why| Failure { seed, why });
    trace.map_or(Ok(()), Trace::finish)?;
    Ok(result)
}

/// Searches for fewer faults with which a seed still fails; returns them, with the failure. `None` also for kinds
/// without a [plan](Kind::has_plan).
pub fn shrink(kind: Kind, seed: u64) -> Option<(FaultPlan, Failure)> {
    let why = |plan: &FaultPlan| kind.run(seed, Some(plan), None).err();
    let plan = kind.draw(seed, None)?.plan().clone().shrink(SHRINK_TRIES, |plan| why(plan).is_some());
    let why = why(&plan)?;
    Some((plan, Failure { seed, why }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seeds_with_undecided_keys_are_told() {
        let mut progress = Progress::default();
        // In the order in which two jobs may end them.
        for seed in (0..100_u64).map(|seed| seed ^ 1) {
            let undecided = u64::from(seed % 3 == 0);
            let story = Story { calls: 1, packets: 1, undecided, ..Story::default() };
            progress.seeds += 1;
            progress.add(seed, &story);
        }
        assert_eq!(progress.undecided_seeds, (0..16).map(|seed| 3 * seed).collect::<Vec<_>>());
        assert_eq!((progress.undecided, progress.undecided_max()), (34, 4));
        assert_eq!(Progress { seeds: 1001, ..progress }.undecided_max(), 20);
    }
}
