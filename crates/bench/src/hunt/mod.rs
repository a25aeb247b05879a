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
//! | [`scenario`] | what a seed means |
//! | [`node`] | an endpoint, and the program that drives it |
//! | [`run`] | one run, up to its verdict |
//! | [`jobs`] | many runs, some at once |
//! | [`failure`] | turning a broken promise into words |
//! | [`trace`] | what is written of a run |

mod failure;
mod jobs;
mod node;
mod run;
mod scenario;
mod trace;

use std::path::Path;
use std::time::Duration;

use dunlin_sim::FaultPlan;

pub use run::Story;
pub use scenario::Scenario;
use trace::Trace;

use crate::BenchError;

/// Runs that the search for fewer faults may take.
const SHRINK_TRIES: usize = 40;

/// Which seeds are run.
#[derive(Debug, Clone, Copy)]
pub struct Hunt {
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
pub fn replay(seed: u64, faults: Option<FaultPlan>, directory: Option<&Path>) -> Result<Result<Story, Failure>, BenchError> {
    let mut scenario = Scenario::draw(seed);
    scenario.plan = faults.unwrap_or(scenario.plan);
    let trace = directory.map(|directory| Trace::create(directory, &scenario)).transpose()?;
    let result = failure::caught(|| run::run(scenario, trace.as_ref())).map_err(|why| Failure { seed, why });
    trace.map_or(Ok(()), Trace::finish)?;
    Ok(result)
}

/// Looks for fewer faults with which a seed still fails; gives them, and how it fails.
pub fn shrink(seed: u64) -> Option<(FaultPlan, Failure)> {
    let why = |plan: &FaultPlan| {
        let mut scenario = Scenario::draw(seed);
        scenario.plan = plan.clone();
        failure::caught(|| run::run(scenario, None)).err()
    };
    let plan = Scenario::draw(seed).plan.shrink(SHRINK_TRIES, |plan| why(plan).is_some());
    let why = why(&plan)?;
    Some((plan, Failure { seed, why }))
}
