//! `kv-imbalance`: HERD's Figure 4.13 by counting. Keys are divided among six cores, as in the paper, and drawn with the
//! popularity of YCSB: how many more operations has the core with the most than the one with the fewest?
//!
//! Nothing is executed: which core owns a key depends on the seed of the server's map alone. A run draws the map and the
//! keys from its seed.

use std::ops::RangeInclusive;

use dunlin_kv::routing::Routing;
use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};
use dunlin_net::random::Random;

use crate::workload::item::key;
use crate::workload::{Numbers, Popularity};
use crate::{BenchError, Lab, Trial};

/// As in the paper.
const CORES: u16 = 6;
const ITEMS: u64 = 48_000_000;
/// Operations for each second of the run length, at least enough for a stable count. A draw takes some 50 ns.
const OPERATIONS: f64 = 2e6;
const OPERATIONS_MIN: f64 = 100e3;
/// Tolerated factors of the paper's ratio: it depends on which cores the few most popular keys fall to.
const LIKE_PAPER: RangeInclusive<f64> = 0.75..=1.25;

/// The operations of each core.
type Counts = [u64; CORES as usize];

type Column = Figure<Popularity, Counts>;

const FIGURES: [Column; 2] = [
    Column::new(Metric::Count, |_, counts| most(counts) / least(counts))
        .part(": operations of the busiest core over those of the least busy")
        .like_paper(|popularity| (*popularity == Popularity::Zipf).then_some(LIKE_PAPER)),
    Column::new(Metric::Count, |_, counts| most(counts) * f64::from(CORES) / counts.iter().sum::<u64>() as f64)
        .part(": operations of the busiest core over the mean"),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let operations = (OPERATIONS * lab.run_length().as_secs_f64()).max(OPERATIONS_MIN) as u64;
    let items = lab.items(ITEMS);
    let name = |popularity: &Popularity| format!("{CORES} cores, {}", popularity.name());
    let cases = Cases::along("popularity", Popularity::CHOSEN, name);
    lab.simulate_each(&cases, &FIGURES, |trial, popularity| count(trial, *popularity, items, operations))
}

fn count(trial: Trial<'_>, popularity: Popularity, items: u64, operations: u64) -> Result<Counts, BenchError> {
    let mut random = Random::new(trial.seed()?);
    let seed = (u128::from(random.next()) << 64 | u128::from(random.next())).to_le_bytes();
    let routing = Routing::new(seed, CORES).expect("six cores are within the limits");
    let mut numbers = Numbers::new(popularity, items, random.next());
    let mut counts = Counts::default();
    for _ in 0..operations {
        counts[usize::from(routing.owner(&key(numbers.draw())))] += 1;
    }
    Ok(counts)
}

fn most(counts: &Counts) -> f64 {
    counts.iter().copied().fold(0, u64::max) as f64
}

fn least(counts: &Counts) -> f64 {
    counts.iter().copied().fold(u64::MAX, u64::min).max(1) as f64
}
