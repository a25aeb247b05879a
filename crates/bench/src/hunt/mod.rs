//! The fault hunt: endpoints in a simulated datacenter under random work and random faults, each run drawn from a seed.
//!
//! A run draws a topology, endpoints with their settings, work (calls of every kind and size, sessions opened and closed from both ends) and
//! a plan of faults: packets are lost, duplicated, reordered and delayed, links and hosts fail, hosts restart with lost memory. Then the
//! network heals, and the run must end as the protocol promises; see [`dunlin_trial::judge`] for what that is. A promise that is broken panics
//! inside the run, and the seed is what the hunt was for.
//!
//! Corrupted packets are dropped by NICs, as Ethernet's and UDP's checksums make them: they are among the lost. One run in ten flips bits
//! behind the checksums' back; there a response may be wrong, but nothing panics, leaks or hangs.
//!
//! | File | What it holds |
//! |---|---|
//! | `kv` | the same for the key-value service, judged by what its clients saw |
//! | `raft` | the same for replicated state machines |
//! | `coord` | the same for the cluster manager |
//! | `cluster` | replicas, whatever they replicate |
//! | `clients` | what clients of these do, and the judge of what they saw |
//! | `scenario` | what a seed means |
//! | `strain` | one-way partitions, clocks of other rates and long pauses, for all of them |
//! | `node` | an endpoint, and the program that drives it |
//! | `run` | one run, up to its verdict |
//! | `story` | what a run comes to |
//! | `jobs` | many runs, some at once |
//! | `failure` | turning a broken promise into words |
//! | `trace` | what is written of a run |

mod clients;
mod cluster;
mod coord;
mod failure;
mod jobs;
mod kv;
mod node;
mod raft;
mod run;
mod scenario;
mod story;
mod strain;
mod trace;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use dunlin_sim::{FaultPlan, Topology};

pub use scenario::Scenario;
pub use story::Story;
use trace::Trace;

use crate::BenchError;

/// Runs that the search for fewer faults may take.
const SHRINK_TRIES: usize = 40;

/// What is put under faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Endpoints that call each other.
    #[default]
    Rpc,
    /// The key-value service: clients and a server, of which the history of each key must be linearizable.
    Kv,
    /// Replicated state machines: replicas and clients, of which logs and histories must be as Raft and linearizability want them.
    Raft,
    /// The cluster manager on replicated state machines: what members, holders of leases, writers and watchers are told must be as docs/coordination.md promises.
    Coord,
}

/// A run that a seed means, of any kind.
trait Drawn: Debug {
    fn topology(&self) -> &Topology;
    fn plan(&mut self) -> &mut FaultPlan;

    /// # Panics
    /// If a promise is broken.
    fn run(self: Box<Self>, trace: Option<&Trace>) -> Story;
}

/// Has a scenario run by a function.
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
    /// What a seed means, with its own faults or with others.
    fn draw(self, seed: u64, faults: Option<&FaultPlan>) -> Box<dyn Drawn> {
        let mut drawn: Box<dyn Drawn> = match self {
            Kind::Rpc => Box::new(Scenario::draw(seed)),
            Kind::Kv => Box::new(kv::Scenario::draw(seed)),
            Kind::Raft => Box::new(cluster::Of::<raft::KeyValues>::draw(seed)),
            Kind::Coord => Box::new(cluster::Of::<coord::Manager>::draw(seed)),
        };
        if let Some(faults) = faults {
            *drawn.plan() = faults.clone();
        }
        drawn
    }

    /// The faults of a seed.
    fn plan(self, seed: u64) -> FaultPlan {
        self.draw(seed, None).plan().clone()
    }

    /// Runs a seed, with its own faults or with others; gives its end, or why it failed.
    fn run(self, seed: u64, faults: Option<&FaultPlan>, trace: Option<&Trace>) -> Result<Story, String> {
        let drawn = self.draw(seed, faults);
        failure::caught(|| drawn.run(trace))
    }

    /// Makes the directory of a trace, with what is known of a seed before it is run.
    fn trace(self, seed: u64, faults: Option<&FaultPlan>, directory: &Path) -> Result<Trace, BenchError> {
        let mut drawn = self.draw(seed, faults);
        let plan = drawn.plan().clone();
        Trace::create(directory, &drawn, drawn.topology(), &plan)
    }
}

/// Which seeds are run.
#[derive(Debug, Clone, Copy)]
pub struct Hunt {
    /// Of what.
    pub kind: Kind,
    /// The first.
    pub first: u64,
    /// How many, if there is a limit.
    pub seeds: Option<u64>,
    /// How long, if there is a limit.
    pub time: Option<Duration>,
    /// How many at once.
    pub jobs: usize,
}

/// What was run so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Runs.
    pub seeds: u64,
    /// Calls issued in them.
    pub calls: u64,
    /// Packets sent in them.
    pub packets: u64,
    /// Keys of which it was not found out in time whether their history is linearizable.
    pub undecided: u64,
    /// Replicas that refused to start, since their disks had rotted, and were replaced.
    pub replaced: u64,
    /// Changes of members and of leaders that were made.
    pub changes: u64,
    /// Time it took.
    pub elapsed: Duration,
}

/// A seed that broke a promise.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Which promise, and where it was noticed.
    pub why: String,
}

/// Runs one seed, with the faults that belong to it or with others, and writes a trace of it to a directory if one is given.
///
/// # Errors
/// [`BenchError::Io`] if the trace cannot be written. A broken promise is no error but the inner one.
pub fn replay(
    kind: Kind,
    seed: u64,
    faults: Option<&FaultPlan>,
    directory: Option<&Path>,
) -> Result<Result<Story, Failure>, BenchError> {
    let trace = directory.map(|directory| kind.trace(seed, faults, directory)).transpose()?;
    let result = kind.run(seed, faults, trace.as_ref()).map_err(|why| Failure { seed, why });
    trace.map_or(Ok(()), Trace::finish)?;
    Ok(result)
}

/// Looks for fewer faults with which a seed still fails; gives them, and how it fails.
pub fn shrink(kind: Kind, seed: u64) -> Option<(FaultPlan, Failure)> {
    let why = |plan: &FaultPlan| kind.run(seed, Some(plan), None).err();
    let plan = kind.plan(seed).shrink(SHRINK_TRIES, |plan| why(plan).is_some());
    let why = why(&plan)?;
    Some((plan, Failure { seed, why }))
}
