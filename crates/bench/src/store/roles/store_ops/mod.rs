//! Operations on a table in memory, by one thread, compared with random reads of memory.

mod draws;
mod full;
mod maps;
mod partitions;
mod table;

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::measure::{Measured, resident_bytes};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use serde::{Deserialize, Serialize};

use super::random_reads::Lines;
use crate::workload::Popularity;
use crate::{BenchError, WARM_UP_SHARE};
use draws::Draws;
use table::{Outcome, Table};

pub use full::{CacheFigures, CacheFill};
pub use partitions::Kind;
use partitions::OnTable;

/// Longest burst.
pub const BURST_MAX: usize = 32;
/// Bytes per item in the region that the floor reads: a cache line, the minimum for an item of 48 B.
const FLOOR_ITEM_BYTES: u64 = 64;
/// The floor is measured for this share of a run.
const FLOOR_SHARE: f64 = 0.3;
/// Bursts between two readings of the clock.
const BURSTS_PER_LOOK: u32 = 64;

/// The table that holds the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum System {
    /// Our partition.
    Partition(Kind),
    /// `hashbrown::HashMap`, which the standard library uses: for one thread only, like ours.
    Hashbrown,
    /// `dashmap::DashMap`.
    Dashmap,
    /// `papaya::HashMap`.
    Papaya,
    /// `scc::HashMap`.
    Scc,
    /// `moka::sync::Cache`, large enough to keep everything.
    Moka,
}

impl System {
    /// The tables to compare besides hashbrown: all support many threads, at a cost.
    pub const CONCURRENT: [System; 4] = [System::Dashmap, System::Papaya, System::Scc, System::Moka];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            System::Partition(kind) => kind.name(),
            System::Hashbrown => "hashbrown",
            System::Dashmap => "dashmap",
            System::Papaya => "papaya",
            System::Scc => "scc",
            System::Moka => "moka",
        }
    }

    /// Upper bound of its memory for an item of 48 B, in bytes, to check beforehand whether there is enough.
    pub fn bytes_per_item(self) -> u64 {
        match self {
            System::Partition(_) => 160,
            System::Hashbrown | System::Dashmap | System::Papaya | System::Scc => 130,
            System::Moka => 500,
        }
    }
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StoreCase {
    /// Share of reads, from 0 to 1; the rest are writes.
    pub gets: f64,
    /// Distribution of items.
    pub popularity: Popularity,
    /// Operations passed at once, at most [`BURST_MAX`].
    pub burst: usize,
}

/// Fills a table and runs loads on it in turn, several times.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoreOps {
    /// The table.
    pub system: System,
    /// Number of items.
    pub items: u64,
    /// The loads.
    pub cases: Vec<StoreCase>,
    /// Number of runs of each.
    pub runs: usize,
    /// Length of one measured run.
    pub run: Duration,
}

/// The result.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoreFigures {
    /// For each load, its runs.
    pub runs: Vec<Vec<StoreRun>>,
    /// Resident bytes that each item added once all were stored.
    pub bytes_per_item: f64,
}

/// One run of one load.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct StoreRun {
    /// Operations per second.
    pub rate: f64,
    /// Random reads of memory per second, eight in parallel, measured just before.
    pub floor: f64,
    /// Share of reads that missed a stored item.
    pub lost: f64,
}

impl StoreRun {
    /// Its rate and floor.
    pub fn measured(&self) -> Measured<f64> {
        Measured { ours: self.rate, floor: self.floor }
    }
}

impl Role for StoreOps {
    const NAME: &'static str = "operations on a table in memory";
    type Ready = ();
    type Output = StoreFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<StoreFigures, BenchError> {
        let measure = Measure { ops: &self, control, bytes_before: resident_bytes()? };
        match self.system {
            System::Partition(kind) => kind.with(self.items, measure),
            System::Hashbrown => measure.run(maps::Hashbrown::new(self.items)),
            System::Dashmap => measure.run(maps::Dashmap::new(self.items)),
            System::Papaya => measure.run(maps::Papaya::new(self.items)),
            System::Scc => measure.run(maps::Scc::new(self.items)),
            System::Moka => measure.run(maps::Moka::new(self.items)),
        }
    }
}

/// The measurement, generic over the type of table.
struct Measure<'a> {
    ops: &'a StoreOps,
    control: &'a Control<StoreOps>,
    /// Resident memory before the table was made.
    bytes_before: u64,
}

impl Measure<'_> {
    /// Stores the items, and shows the rate.
    fn load(&self, table: &mut impl Table) -> Result<(), BenchError> {
        let start = Instant::now();
        table::load(table, self.ops.items, |stored| {
            self.control.live(Metric::Operations, stored as f64 / start.elapsed().as_secs_f64());
            if self.control.stopping() { Err(LabError::Interrupted.into()) } else { Ok(()) }
        })
    }
}

impl OnTable for Measure<'_> {
    type Output = StoreFigures;

    fn run<T: Table>(self, table: T) -> Result<StoreFigures, BenchError> {
        // The process ends after this measurement. Freeing tens of millions of items one by one before that would take
        // as long as storing them.
        let mut table = ManuallyDrop::new(table);
        let table = &mut *table;
        let StoreOps { items, cases, run, .. } = self.ops;
        self.load(table)?;
        let bytes_per_item = resident_bytes()?.saturating_sub(self.bytes_before) as f64 / *items as f64;
        let mut runs: Vec<Vec<StoreRun>> = cases.iter().map(|_| Vec::new()).collect();
        if cases.is_empty() {
            return Ok(StoreFigures { runs, bytes_per_item });
        }
        let mut lines = Lines::new(items * FLOOR_ITEM_BYTES)?;
        let mut draws: Vec<Draws> = Popularity::CHOSEN.map(|popularity| Draws::new(popularity, *items)).into();
        for _ in 0..self.ops.runs {
            for (case, runs) in cases.iter().zip(&mut runs) {
                let Some(draws) = draws.iter_mut().find(|draws| draws.popularity() == case.popularity) else {
                    continue;
                };
                let floor = lines.reads_per_second(run.mul_f64(FLOOR_SHARE));
                run_case(table, draws, case, run.mul_f64(WARM_UP_SHARE))?;
                let (rate, lost) = run_case(table, draws, case, *run)?;
                self.control.live(Metric::Operations, rate);
                runs.push(StoreRun { rate, floor, lost });
                if self.control.stopping() {
                    return Err(LabError::Interrupted.into());
                }
            }
        }
        Ok(StoreFigures { runs, bytes_per_item })
    }
}

/// Operations per second, and the share of reads that missed.
fn run_case<T: Table>(
    table: &mut T,
    draws: &mut Draws,
    case: &StoreCase,
    run: Duration,
) -> Result<(f64, f64), BenchError> {
    let mut numbers = [0; BURST_MAX];
    let numbers = &mut numbers[..case.burst.clamp(1, BURST_MAX)];
    let mut outcome = Outcome::default();
    let (start, mut bursts) = (Instant::now(), 0u64);
    let seconds = loop {
        for _ in 0..BURSTS_PER_LOOK {
            draws.fill(numbers);
            let puts = draws.puts(case.gets, numbers.len());
            table.burst(numbers, puts, &mut outcome);
        }
        bursts += u64::from(BURSTS_PER_LOOK);
        let elapsed = start.elapsed();
        if elapsed >= run {
            break elapsed.as_secs_f64();
        }
    };
    let lost = outcome.check(T::MAY_LOSE)?;
    Ok(((bursts * numbers.len() as u64) as f64 / seconds, lost))
}
