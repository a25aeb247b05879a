//! `smr-rate`: beyond the paper, which measures one client. Concurrent writes to three replicas. With logs in memory,
//! the replicas share one core and the client has the other; with logs on disk, where threads flush, nothing is pinned.

use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, RowBuilder, Target};

use super::smr_runs::{self, Ask};
use crate::rpc::roles::{Carrier, RateFloor};
use crate::smr::roles::{BareFlushes, PutFigures, ReplicaFigures, Storage, Watch};
use crate::{BenchError, Lab};

/// Concurrent writes.
const WINDOWS: [usize; 5] = [1, 4, 16, 64, 256];
/// Concurrent writes with which the benefit of gathering is measured.
const UNGATHERED: usize = 64;
/// Required share of the rate that flushes allow.
const SHARE_MIN: f64 = 0.8;
/// Keys: fewer than in the paper's experiment, since every run stores them all first.
const KEYS: u64 = 100_000;
/// Keys, concurrent writes and entries per snapshot, for the measurement with snapshots.
const SNAPSHOT_KEYS: u64 = 1_000_000;
const SNAPSHOT_WINDOW: usize = 64;
const SNAPSHOT_ENTRIES: u64 = 4_000;
/// Number of replicas, and their bytes in the log per write.
const REPLICAS: usize = 3;
const ENTRY_BYTES: usize = 136;

/// The result of one run, or of its floor.
#[derive(Debug, Clone, Copy)]
struct Rate {
    rate: f64,
    p50: f64,
    p99: f64,
    /// The longest time that a replica was occupied with a snapshot, in nanoseconds.
    snapshot_pause_max: f64,
}

impl Rate {
    fn of(puts: &PutFigures, replicas: &ReplicaFigures) -> Rate {
        let snapshot_pause_max = replicas.snapshot_pause_max;
        Rate { rate: puts.rate, p50: puts.latency.p50, p99: puts.latency.p99, snapshot_pause_max }
    }
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2 * WINDOWS.len() + 2);
    for window in WINDOWS {
        let case = format!("memory, {window} at a time");
        if !lab.wants(&case) {
            continue;
        }
        let runs = lab.case_beside_floor(&case, cost, |lab| in_memory(lab, ask(Storage::Memory, window)))?;
        for row in rows(&case, &runs)? {
            lab.push(row);
        }
    }
    for window in WINDOWS {
        let case = format!("disk, {window} at a time");
        if !lab.wants(&case) {
            continue;
        }
        let runs = lab.case_beside_floor(&case, cost, |lab| on_disk(lab, ask(Storage::Disk, window)))?;
        let [rate, p50, p99] = rows(&case, &runs)?;
        lab.push(rate.target(Target::FloorTimes(SHARE_MIN)).limit(
            "three replicas share a core, and what they do for a batch comes before and after its flush (*memory* rows)",
        ));
        lab.push(p50);
        lab.push(p99);
    }
    let case = format!("disk, {UNGATHERED} at a time, each at once");
    if lab.wants(&case) {
        let runs = lab.case_beside_floor(&case, cost, |lab| on_disk(lab, ask(Storage::DiskUngathered, UNGATHERED)))?;
        for row in rows(&case, &runs)? {
            lab.push(row);
        }
    }
    with_snapshots(lab)?;
    lab.note(format!(
        "Over shared memory; keys of 16 B, values of 64 B; no snapshot is taken meanwhile but in the last case, where replicas with {} keys take one every {SNAPSHOT_ENTRIES} entries, if that before is done. The floor of a log in memory is bare echoes, as many in flight. That of logs on disk is what flushing \
         allows: the slowest of three files that are flushed at once, times the writes at a time; what a processor allows is in the rows with logs in memory. The disk is \
         that of {}.",
        lab.items(SNAPSHOT_KEYS),
        std::env::temp_dir().display()
    ));
    Ok(())
}

fn cost(floor: &Rate) -> f64 {
    1.0 / floor.rate
}

fn rows(case: &str, runs: &dunlin_lab::measure::BesideFloor<Rate>) -> Result<[RowBuilder; 3], BenchError> {
    let spread = |figure: fn(&Rate) -> f64| Ok::<_, BenchError>(runs.spread(figure)?.ours);
    Ok([
        crate::rpc::runs::row(case, Metric::Operations, runs, |run| run.rate)?,
        RowBuilder::new(case, Metric::LatencyP50, spread(|run| run.p50)?),
        RowBuilder::new(case, Metric::LatencyP99, spread(|run| run.p99)?),
    ])
}

/// The cost of snapshots, and the longest time that they occupy a replica.
fn with_snapshots(lab: &mut Lab) -> Result<(), BenchError> {
    let case = format!("disk, {SNAPSHOT_WINDOW} at a time, snapshots");
    if !lab.wants(&case) {
        return Ok(());
    }
    let ask =
        Ask { keys: SNAPSHOT_KEYS, snapshot_entries: Some(SNAPSHOT_ENTRIES), ..ask(Storage::Disk, SNAPSHOT_WINDOW) };
    let runs = lab.case_beside_floor(&case, cost, |lab| on_disk(lab, ask))?;
    let pause = runs.spread(|run| run.snapshot_pause_max)?.ours;
    if pause.min == 0.0 {
        lab.note(format!("{case}: left out, since no snapshot was due in so short a run: allow it a longer --for."));
        return Ok(());
    }
    rows(&case, &runs)?.into_iter().for_each(|row| lab.push(row));
    lab.push(RowBuilder::new(format!("{case}: longest pause"), Metric::LatencyMax, pause));
    Ok(())
}

fn ask(storage: Storage, window: usize) -> Ask {
    Ask { carrier: Carrier::Shm, storage, groups: 1, window, keys: KEYS, snapshot_entries: None }
}

fn load(lab: &Lab, ask: Ask) -> Result<Rate, BenchError> {
    let (puts, replicas) = smr_runs::load(lab, ask, Watch::Nothing)?;
    Ok(Rate::of(&puts, &replicas))
}

fn floor(rate: f64) -> Rate {
    Rate { rate, p50: f64::NAN, p99: f64::NAN, snapshot_pause_max: f64::NAN }
}

fn in_memory(lab: &Lab, ask: Ask) -> Result<Measured<Rate>, BenchError> {
    let echoes = RateFloor { carrier: Carrier::Shm, in_flight: ask.window, cores: lab.cores()?, run: lab.run_length() };
    let echoes = lab.anywhere(echoes, lab.run_length())?.result()?;
    Ok(Measured { ours: load(lab, ask)?, floor: floor(echoes) })
}

/// The floor is the rate of replicas without snapshots.
fn on_disk(lab: &Lab, ask: Ask) -> Result<Measured<Rate>, BenchError> {
    let flushes = BareFlushes { files: REPLICAS, entries: ask.window, entry_bytes: ENTRY_BYTES, run: lab.run_length() };
    let flushes = lab.anywhere(flushes, lab.run_length())?.result()?;
    let allowed = flushes * ask.window as f64;
    Ok(Measured { ours: load(lab, ask)?, floor: floor(allowed) })
}
