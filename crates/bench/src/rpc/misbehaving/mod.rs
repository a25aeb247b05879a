//! `misbehaving`: beyond the paper. Clients that make a server hold memory, that send what no honest end sends, or that
//! are stopped in the middle of sending, together with a working client. The working client should keep the rate that
//! it has alone, and the server's memory should stay within its budget.
//!
//! The working client measures itself in slices on two servers of one kind, of which one runs at a time: beside the
//! misbehaving clients on the server that they have to do with, alone on a server that never had any, alone, beside
//! them, and so on. So the rates also differ by what the one server holds for misbehaving clients. *Rate kept* is the
//! median of what the blocks of a run give, with the range over all runs. The misbehaving clients may use only little
//! of the core that they share with the working one, and a row says how much.

mod connections;
mod hoarders;
mod losses;
mod stopped;

use std::time::{Duration, Instant};

use dunlin_lab::measure::{Spread, main_thread_cpu_nanos_of, peak_resident_bytes_of, resident_bytes_of};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{LabError, spread};

use crate::rpc::roles::{Both, Processes, Sliced, Slicing};
use crate::{BenchError, Lab};

/// Required share of its rate that a working client keeps.
const RATE_KEPT_MIN: f64 = 0.95;
/// Limit of the client core's time that misbehaving clients use, in percent: half of what the working client may lose
/// is left for the server's effect.
const TAKEN_MAX: f64 = 2.5;
/// Limit of the increase of a working client's p99 latency, in nanoseconds. A client that queues behind another one
/// waits for much longer.
const P99_MORE_MAX: f64 = 1e6;
/// A slice, and the time before it that does not count if it is one alone. In a block, slices of one kind follow each
/// other.
const SLICE: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_millis(5);
/// Minimum number of blocks of a load.
const BLOCKS_MIN: u32 = 2;

/// The cost of the misbehaving clients in one run.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Share of the clients' core while they were not stopped, from 0 to 1.
    taken: f64,
    /// Peak growth of their server, in bytes.
    grown: f64,
}

/// One run: each working load, and the cost for the server and the core.
#[derive(Debug, Clone)]
struct Seen {
    works: Vec<Sliced>,
    cost: Cost,
}

/// Measures and reports one or several cases.
type Measure = fn(&mut Lab) -> Result<(), BenchError>;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(13);
    lab.note(format!(
        "The working client measures itself in slices of {} ms: beside the misbehaving clients, and alone on a server of the same kind that never had \
         any, which is in the column of floors. In each slice the other server is stopped, and in slices alone also the misbehaving clients are. *Rate kept* \
         of a run is the median over its blocks of four slices, one rate divided by the other; its range is that of all runs, each with new servers: five \
         runs have the median of all such runs in their range in 94 of 100 cases. The working client, the \
         misbehaving ones and nothing else share one core, and the servers have the other: in brackets stand the threads of the core of the server that \
         runs | those of the clients' core. The row of the misbehaving clients is what they use of that core while they are not stopped, at most \
         {TAKEN_MAX} %: more would spoil the rate that they are there to threaten. The memory of a server is that by which the one with misbehaving \
         clients grew, at its most.",
        SLICE.as_millis()
    ));
    let cases: [Measure; 12] = [
        connections::small,
        connections::large,
        connections::short_answers,
        hoarders::responses,
        hoarders::buffers,
        hoarders::connects,
        hoarders::unreachable,
        hoarders::guesses,
        hoarders::guesses_in_name,
        stopped::run,
        losses::calls,
        losses::short_path,
    ];
    for case in cases {
        match case(lab) {
            Ok(()) | Err(BenchError::Lab(LabError::NoneWanted)) => {}
            failed => return failed,
        }
    }
    Ok(())
}

/// Fails if the user does not want a case, so that nothing of it is measured.
fn check_wanted(lab: &Lab, case: &str) -> Result<(), BenchError> {
    if lab.wants(case) { Ok(()) } else { Err(LabError::NoneWanted.into()) }
}

/// The slices of a load, about as long as a measured run together.
fn slicing(lab: &Lab, slice: Duration, processes: Processes) -> Slicing {
    let blocks = (lab.run_length().as_nanos() / (4 * (slice + SETTLE)).as_nanos()) as u32;
    Slicing { processes, slice, settle: SETTLE, blocks: blocks.max(BLOCKS_MIN) }
}

/// Names a case with the number of threads on each core.
fn with_threads(case: &str, misbehaving: usize) -> String {
    format!("{case} [1 | 1 + {misbehaving}]")
}

/// The memory growth of a process.
struct Growth {
    process: u32,
    before: u64,
}

impl Growth {
    /// Starts now.
    fn of(process: u32) -> Result<Self, BenchError> {
        Ok(Growth { process, before: resident_bytes_of(process)? })
    }

    /// The peak so far.
    fn most(&self) -> Result<f64, BenchError> {
        Ok(peak_resident_bytes_of(self.process)?.saturating_sub(self.before) as f64)
    }
}

/// Measures loads, and returns the share of a core that these processes used while they were not stopped.
fn sharing(
    processes: &[u32],
    measure: impl FnOnce() -> Result<Vec<Sliced>, BenchError>,
) -> Result<(Vec<Sliced>, f64), BenchError> {
    let used = || processes.iter().map(|process| main_thread_cpu_nanos_of(*process)).sum::<Result<u64, LabError>>();
    let (before, since) = (used()?, Instant::now());
    let measured = measure()?;
    let paused: Duration = measured.iter().map(|sliced| sliced.paused).sum();
    let running = since.elapsed().saturating_sub(paused);
    Ok((measured, (used()? - before) as f64 / running.as_nanos() as f64))
}

/// The rows of every case, for each of the loads with these names. `memory_max` is the budget of the server, in bytes.
fn push(
    lab: &mut Lab,
    case: &str,
    (rate, loads): (Metric, &[&str]),
    seen: &[Seen],
    memory_max: f64,
) -> Result<(), BenchError> {
    for (place, load) in loads.iter().enumerate() {
        let loads: Vec<&Sliced> = seen.iter().filter_map(|seen| seen.works.get(place)).collect();
        push_load(lab, &format!("{case}, {load}"), rate, &loads)?;
    }
    let taken = spread(seen, |seen| seen.cost.taken * 100.0)?;
    let row = RowBuilder::new(format!("{case}, the misbehaving clients"), Metric::CoreShare, taken);
    lab.push(row.target(Target::Absolute(TAKEN_MAX)));
    let row = RowBuilder::new(format!("{case}, the server"), Metric::Memory, spread(seen, |seen| seen.cost.grown)?);
    lab.push(row.target(Target::Absolute(memory_max)));
    Ok(())
}

/// The rows of one load.
fn push_load(lab: &mut Lab, case: &str, rate: Metric, runs: &[&Sliced]) -> Result<(), BenchError> {
    let blocks: Vec<Both<f64>> = runs.iter().flat_map(|run| run.blocks.iter().copied()).collect();
    let row = RowBuilder::new(case, rate, spread(&blocks, |block| block.beside)?);
    lab.push(row.floor(spread(&blocks, |block| block.alone)?));
    // Blocks of a run have the same two servers, which need not be equally fast: runs are independent, blocks are not.
    let kept: Vec<f64> = runs.iter().filter_map(|run| rate_kept(&run.blocks)).collect();
    let kept = Spread::of(&kept).ok_or(LabError::NoSamples { what: "a case" })?;
    let row = RowBuilder::new(format!("{case}, rate kept"), Metric::Advantage, kept);
    let reaches = if kept.max >= RATE_KEPT_MIN { "reach" } else { "do not reach" };
    let limit = format!("{} runs of {} blocks {reaches} {RATE_KEPT_MIN}", runs.len(), blocks.len() / runs.len());
    lab.push(row.limit(limit).target(Target::Absolute(RATE_KEPT_MIN)));
    let row = RowBuilder::new(case, Metric::LatencyP99, spread(runs, |run| run.p99.beside)?);
    let target = Target::FloorPlus(P99_MORE_MAX);
    lab.push(row.floor(spread(runs, |run| run.p99.alone)?).target(target));
    Ok(())
}

/// The median over the blocks of a run: one rate divided by the other.
fn rate_kept(blocks: &[Both<f64>]) -> Option<f64> {
    let kept: Vec<f64> = blocks.iter().map(|block| block.beside / block.alone).collect();
    Some(Spread::of(&kept)?.median)
}

/// A row with the number of misbehaviours during the working load, of the run with the fewest. It fails if that is less
/// than `asked`: then the other rows are not meaningful.
fn push_seen(lab: &mut Lab, case: String, asked: u64, events: impl Iterator<Item = u64>) {
    let least = Spread::single(events.min().unwrap_or(0) as f64);
    lab.push(RowBuilder::new(case, Metric::Events, least).target(Target::Absolute(asked as f64)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_once_however_many_blocks_it_has() {
        let block = |kept: f64| Both { beside: 300.0 * kept, alone: 300.0 };
        assert_eq!(rate_kept(&[0.5, 0.75, 1.25].map(block)), Some(0.75));
        assert_eq!(rate_kept(&[]), None);
    }
}
