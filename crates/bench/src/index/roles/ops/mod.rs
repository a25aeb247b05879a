//! Operations on an ordered map in memory, by one or two threads.

mod floor;
mod index;
pub(in crate::index) mod keys;
mod maps;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use dunlin_index::{Index, Vectors};
use dunlin_lab::LabError;
use dunlin_lab::measure::{Cores, pin, resident_bytes};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::random::Random;
use serde::{Deserialize, Serialize};

use crate::{BenchError, WARM_UP_SHARE};
use floor::Leaves;
use index::{Halves, Ours, beside};
use keys::{Keys, Numbers, Paths, Shape};
use maps::Map;

/// Longest burst.
const BURST_MAX: usize = 32;
/// Items whose cache lines fit the second-level cache.
pub(in crate::index) const FEW: u64 = 512;
/// Items that a scan adds up, as in the paper.
pub(in crate::index) const SUMMED: u32 = 128;
/// Items that a short scan adds up.
pub(in crate::index) const SUMMED_FEW: u32 = 16;
/// Bursts between two readings of the clock.
const BURSTS_PER_LOOK: u32 = 64;
/// Items stored between two checks whether to continue.
const ITEMS_PER_LOOK: u64 = 1 << 20;
/// A writer inserts and deletes this share of the items, beyond those that are read.
const COMING_SHARE: u64 = 16;

/// The map that holds the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum System {
    /// Ours.
    Index,
    /// Ours, with at most these vector instructions.
    IndexWith(Limit),
    /// `std::collections::BTreeMap`: for one thread only.
    BTreeMap,
    /// The same, whose allocator asks for huge pages as ours does.
    BTreeMapHuge,
    /// `scc::TreeIndex`.
    Scc,
    /// `crossbeam_skiplist::SkipMap`.
    SkipMap,
    /// `masstree::MassTree15Inline`.
    Masstree,
    /// `congee::U64Congee`, whose keys have 8 bytes.
    Congee,
}

/// What an index may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// AVX2, and not AVX-512.
    Avx2,
    /// SSE4.2, and not AVX2 and what comes with it.
    Sse42,
    /// No vector instructions in its interior nodes, and none that count bits.
    Scalar,
    /// Pages of 4 KiB.
    SmallPages,
}

impl System {
    /// The maps of other crates in this build.
    #[cfg(feature = "rivals")]
    pub const RIVALS: &[System] = &[System::Scc, System::SkipMap, System::Masstree, System::Congee];
    /// The maps of other crates in this build.
    #[cfg(not(feature = "rivals"))]
    pub const RIVALS: &[System] = &[System::Scc];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            System::Index => "Dunlin",
            System::IndexWith(Limit::Avx2) => "Dunlin without AVX-512",
            System::IndexWith(Limit::Sse42) => "Dunlin without AVX2",
            System::IndexWith(Limit::Scalar) => "Dunlin without vectors in interior nodes",
            System::IndexWith(Limit::SmallPages) => "Dunlin without huge pages",
            System::BTreeMap => "BTreeMap",
            System::BTreeMapHuge => "BTreeMap in huge pages",
            System::Scc => "scc TreeIndex",
            System::SkipMap => "crossbeam-skiplist",
            System::Masstree => "masstree",
            System::Congee => "congee",
        }
    }

    /// Whether it can have keys of this form.
    pub fn takes(self, shape: Shape) -> bool {
        self != System::Congee || shape == Shape::Number
    }

    /// Whether its answers to this load are right. `masstree` 0.9.5 begins most scans of keys of several slices at a
    /// wrong one. `crossbeam-skiplist` overwrites a value by removing the item first, so look-ups on another thread miss
    /// it.
    pub fn does(self, case: OpsCase, shape: Shape) -> bool {
        let is_alone = matches!(case.beside, Beside::Nothing);
        match self {
            System::Masstree => !matches!(case.work, Work::Sums | Work::SumsOf(_)) || shape == Shape::Number,
            System::SkipMap => is_alone || case.work == Work::Gets,
            _ => is_alone || self.is_concurrent(),
        }
    }

    /// Whether it is an index, whatever its settings.
    pub fn is_ours(self) -> bool {
        matches!(self, System::Index | System::IndexWith(_))
    }

    /// Whether several threads may use it at once.
    fn is_concurrent(self) -> bool {
        !matches!(self, System::BTreeMap | System::BTreeMapHuge)
    }

    /// Upper bound of its memory for an item, in bytes, to check beforehand whether there is enough.
    pub fn bytes_per_item(self, shape: Shape) -> u64 {
        (2 * (shape.bytes() + 8) + 100) as u64
    }
}

/// The operations of a load, on items chosen uniformly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Look-ups.
    Gets,
    /// Look-ups of [`FEW`] items, whose cache lines are near: what they take is the processor's time.
    FewGets,
    /// As many look-ups as overwritten values.
    Half,
    /// 99 % look-ups; the rest add up the values of 128 items in order.
    Sums,
    /// Each adds up the values of so many items in order.
    SumsOf(u32),
}

/// What a second thread does at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beside {
    /// There is none.
    Nothing,
    /// The same on the same map: the rate is that of both.
    Same,
    /// The same on a map of its own, and each has half of the items: the rate is that of both.
    Partition,
    /// It overwrites, inserts and deletes items of the same map: the rate is that of the first.
    Writer,
    /// It does so on another map of as many items: the rate is that of the first.
    WriterElsewhere,
}

impl Beside {
    /// Whether the second thread leaves another map behind than it found.
    fn changes_the_map(self) -> bool {
        matches!(self, Beside::Writer | Beside::WriterElsewhere)
    }
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpsCase {
    /// The operations.
    pub work: Work,
    /// Operations passed at once, at most 32. Maps other than ours take them one at a time.
    pub burst: usize,
    /// The second thread.
    pub beside: Beside,
}

/// Fills a map and runs loads on it in turn, several times.
#[derive(Debug, Serialize, Deserialize)]
pub struct IndexOps {
    /// The map.
    pub system: System,
    /// The form of keys.
    pub shape: Shape,
    /// Number of items.
    pub items: u64,
    /// The loads.
    pub cases: Vec<OpsCase>,
    /// Loads of a `BTreeMap` in the same process, whose rounds alternate with those of an index; none if empty.
    pub reference: Vec<OpsCase>,
    /// Number of runs of each.
    pub runs: usize,
    /// Length of one measured run.
    pub run: Duration,
    /// For the first thread (as a server) and the second.
    pub cores: Cores,
}

/// The result.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpsFigures {
    /// The figures of the map.
    pub own: MapFigures,
    /// Those of the `BTreeMap` beside it.
    pub reference: Option<MapFigures>,
}

/// The figures of a map.
#[derive(Debug, Serialize, Deserialize)]
pub struct MapFigures {
    /// For each load, operations per second in each run.
    pub rates: Vec<Vec<f64>>,
    /// Resident bytes that each item added once all were stored.
    pub bytes_per_item: f64,
    /// Items stored per second.
    pub load_rate: f64,
    /// In each run, what memory allows an index of this size: leaves read per second.
    pub floor_rates: Vec<f64>,
}

/// One operation on an item, given by its number.
#[derive(Debug, Clone, Copy)]
enum Op {
    Get(u64),
    Put(u64),
    Delete(u64),
    /// Of so many items from this one on.
    Sum(u64, u32),
}

impl Op {
    #[inline(always)]
    fn number(self) -> u64 {
        let (Op::Get(number) | Op::Put(number) | Op::Delete(number) | Op::Sum(number, _)) = self;
        number
    }

    #[inline(always)]
    fn with(self, number: u64) -> Op {
        match self {
            Op::Get(_) => Op::Get(number),
            Op::Put(_) => Op::Put(number),
            Op::Delete(_) => Op::Delete(number),
            Op::Sum(_, items) => Op::Sum(number, items),
        }
    }
}

/// A map with its keys. The value of an item is its number.
trait Table {
    fn burst(&mut self, ops: &[Op], outcome: &mut Outcome);
}

/// A map of another crate, one operation after the other.
struct Other<'a, M, K, const KEY: usize> {
    map: &'a mut M,
    keys: &'a K,
}

impl<M: Map<KEY>, K: Keys<KEY>, const KEY: usize> Table for Other<'_, M, K, KEY> {
    #[inline(always)]
    fn burst(&mut self, ops: &[Op], outcome: &mut Outcome) {
        for op in ops {
            let key = self.keys.key(op.number());
            match *op {
                Op::Get(number) => outcome.read(number, self.map.get(&key)),
                Op::Put(number) => self.map.put(key, number),
                // Only writers on another thread delete.
                Op::Delete(_) => outcome.refused += 1,
                Op::Sum(_, items) => {
                    let (sum, count) = self.map.sum(&key, items as usize);
                    outcome.summed(sum, count, items as usize);
                }
            }
        }
    }
}

/// The results of operations.
#[derive(Debug, Default)]
struct Outcome {
    found: u64,
    missing: u64,
    wrong: u64,
    refused: u64,
}

impl Outcome {
    #[inline(always)]
    fn read(&mut self, number: u64, value: Option<u64>) {
        match value {
            Some(value) if value == number => self.found += 1,
            Some(_) => self.wrong += 1,
            None => self.missing += 1,
        }
    }

    /// Each scan begins at an item, so it finds one at least.
    #[inline(always)]
    fn summed(&mut self, sum: u64, count: usize, limit: usize) {
        black_box(sum);
        self.wrong += u64::from(count == 0 || count > limit);
    }

    fn check(&self) -> Result<(), BenchError> {
        let Outcome { missing, wrong, refused, .. } = *self;
        if missing + wrong + refused > 0 { Err(BenchError::WrongAnswers { wrong, missing, refused }) } else { Ok(()) }
    }
}

/// Draws the operations of a load.
struct Draws {
    random: Random,
    work: Work,
    items: u64,
}

impl Draws {
    fn new(work: Work, items: u64, seed: u64) -> Draws {
        let items = if work == Work::FewGets { items.min(FEW) } else { items };
        Draws { random: Random::new(seed), work, items }
    }

    #[inline(always)]
    fn fill(&mut self, ops: &mut [Op]) {
        for op in ops {
            let random = self.random.next();
            let number = ((u128::from(random) * u128::from(self.items)) >> 64) as u64;
            // The lower bits are independent of the number: it comes from the upper ones.
            let share = random & 0xffff;
            *op = match self.work {
                Work::Gets | Work::FewGets => Op::Get(number),
                Work::Half if share < 0x8000 => Op::Put(number),
                Work::Sums if share < 0x10000 / 100 => Op::Sum(number, SUMMED),
                Work::SumsOf(items) => Op::Sum(number, items),
                Work::Half | Work::Sums => Op::Get(number),
            };
        }
    }
}

/// Bursts of a writer: overwritten values, and items that come and go.
struct Writer {
    random: Random,
    items: u64,
}

impl Writer {
    #[inline(always)]
    fn fill(&mut self, ops: &mut [Op]) {
        for op in ops {
            let coming = self.items + self.random.below((self.items / COMING_SHARE).max(1));
            *op = match self.random.below(4) {
                0 | 1 => Op::Put(self.random.below(self.items)),
                2 => Op::Put(coming),
                _ => Op::Delete(coming),
            };
        }
    }
}

impl Role for IndexOps {
    const NAME: &'static str = "operations on an ordered map in memory";
    type Ready = ();
    type Output = OpsFigures;
    type Error = BenchError;

    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        match self.system {
            System::BTreeMapHuge => vec![("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
            _ => Vec::new(),
        }
    }

    fn run(self, control: &Control<Self>) -> Result<OpsFigures, BenchError> {
        pin(self.cores.server)?;
        match self.shape {
            Shape::Number => Measure { ops: &self, control, keys: Numbers }.of_numbers(),
            Shape::Path => Measure { ops: &self, control, keys: Paths::new() }.of_any(),
        }
    }
}

struct Measure<'a, K> {
    ops: &'a IndexOps,
    control: &'a Control<IndexOps>,
    keys: K,
}

impl Measure<'_, Numbers> {
    fn of_numbers(&self) -> Result<OpsFigures, BenchError> {
        #[cfg(feature = "rivals")]
        if self.ops.system == System::Congee {
            return self.of_shared(maps::Congee(congee::U64Congee::new()));
        }
        self.of_any()
    }
}

impl<K> Measure<'_, K> {
    fn of_any<const KEY: usize>(&self) -> Result<OpsFigures, BenchError>
    where
        K: Keys<KEY>,
    {
        match self.ops.system {
            System::Index => self.of_index(Vectors::best()),
            System::IndexWith(Limit::Avx2) => self.of_index(Vectors::Avx2),
            System::IndexWith(Limit::Sse42) => self.of_index(Vectors::Sse42),
            System::IndexWith(Limit::Scalar) => self.of_index(Vectors::Scalar),
            System::IndexWith(Limit::SmallPages) => {
                let doing = LabError::io("turn huge pages off for this process".to_owned());
                rustix::thread::disable_transparent_huge_pages(true).map_err(|why| doing(why.into()))?;
                self.of_index(Vectors::best())
            }
            System::BTreeMap | System::BTreeMapHuge => self.of_btree(),
            System::Scc => self.of_shared(maps::Scc(scc::TreeIndex::new())),
            #[cfg(feature = "rivals")]
            System::SkipMap => self.of_shared(maps::SkipMap(crossbeam_skiplist::SkipMap::new())),
            #[cfg(feature = "rivals")]
            System::Masstree => self.of_shared(maps::Masstree(masstree::MassTree15Inline::new())),
            other => Err(BenchError::OtherSystem {
                system: other.name(),
                why: "not in this build, or not for these keys".into(),
            }),
        }
    }

    fn of_btree<const KEY: usize>(&self) -> Result<OpsFigures, BenchError>
    where
        K: Keys<KEY>,
    {
        // The process ends after this measurement: freeing the items one by one would take as long as storing them.
        let mut map = ManuallyDrop::new(BTreeMap::<[u8; KEY], u64>::new());
        let mut table = Other { map: &mut *map, keys: &self.keys };
        let (bytes_per_item, load_rate) = self.load(&mut table, |_| true)?;
        let mut rates = self.no_rates(&self.ops.cases);
        for _ in 0..self.ops.runs {
            self.round(
                &self.ops.cases,
                &mut rates,
                |_| true,
                |case| match case.beside {
                    Beside::Nothing => self.alone(&mut table, case, 1),
                    _ => Err(self.is_for_one_thread()),
                },
            )?;
        }
        Ok(OpsFigures {
            own: MapFigures { rates, bytes_per_item, load_rate, floor_rates: Vec::new() },
            reference: None,
        })
    }

    /// A map of another crate that several threads may use.
    fn of_shared<M: Sync, const KEY: usize>(&self, map: M) -> Result<OpsFigures, BenchError>
    where
        K: Keys<KEY>,
        for<'m> &'m M: Map<KEY>,
    {
        let (map, keys) = (ManuallyDrop::new(map), &self.keys);
        let (shared, mut first): (&M, &M) = (&map, &map);
        let mut table = Other { map: &mut first, keys };
        let (bytes_per_item, load_rate) = self.load(&mut table, |_| true)?;
        let mut rates = self.no_rates(&self.ops.cases);
        for _ in 0..self.ops.runs {
            self.round(
                &self.ops.cases,
                &mut rates,
                |_| true,
                |case| match case.beside {
                    Beside::Nothing => self.alone(&mut table, case, 1),
                    Beside::Same => {
                        let mut second = shared;
                        self.both(&mut table, Other { map: &mut second, keys }, case)
                    }
                    _ => Err(self.is_for_one_thread()),
                },
            )?;
        }
        Ok(OpsFigures {
            own: MapFigures { rates, bytes_per_item, load_rate, floor_rates: Vec::new() },
            reference: None,
        })
    }

    fn is_for_one_thread(&self) -> BenchError {
        BenchError::OtherSystem { system: self.ops.system.name(), why: "it is not used in this way".into() }
    }

    fn of_index<const KEY: usize>(&self, vectors: Vectors) -> Result<OpsFigures, BenchError>
    where
        K: Keys<KEY>,
    {
        let keys = &self.keys;
        // The experiment asks only for what this processor has.
        vectors.select();
        let mut btree = ManuallyDrop::new(BTreeMap::<[u8; KEY], u64>::new());
        let mut beside = Other { map: &mut *btree, keys };
        let reference = &self.ops.reference;
        let loaded = if reference.is_empty() { None } else { Some(self.load(&mut beside, |_| true)?) };
        let index = ManuallyDrop::new(new_index()?);
        let mut ours = Ours { index: &index, keys };
        let (bytes_per_item, load_rate) = self.load(&mut ours, |_| true)?;
        let has = |kind: &[Beside]| self.ops.cases.iter().any(|case| kind.contains(&case.beside));
        let mut others: Vec<ManuallyDrop<Index>> = Vec::new();
        if has(&[Beside::Partition]) {
            for which in 0..2 {
                let half = ManuallyDrop::new(new_index()?);
                self.load(&mut Ours { index: &half, keys }, |number| number % 2 == which)?;
                others.push(half);
            }
        }
        let elsewhere = ManuallyDrop::new(new_index()?);
        if has(&[Beside::WriterElsewhere]) {
            self.load(&mut Ours { index: &elsewhere, keys }, |_| true)?;
        }
        let mut measure = |case: &OpsCase| match case.beside {
            Beside::Nothing => self.alone(&mut Ours { index: &index, keys }, case, 1),
            Beside::Same => self.both(&mut Ours { index: &index, keys }, Ours { index: &index, keys }, case),
            Beside::Partition => {
                let half = |which: usize| Halves { index: &others[which], keys, which: which as u64 };
                self.both(&mut half(0), half(1), case)
            }
            Beside::Writer => self.beside_writer(&mut Ours { index: &index, keys }, Ours { index: &index, keys }, case),
            Beside::WriterElsewhere => {
                self.beside_writer(&mut Ours { index: &index, keys }, Ours { index: &elsewhere, keys }, case)
            }
        };
        let IndexOps { cases, runs, .. } = self.ops;
        let (mut rates, mut reference_rates) = (self.no_rates(cases), self.no_rates(reference));
        let mut leaves = Leaves::new(bytes_per_item * self.ops.items as f64)?;
        let mut floor_rates = Vec::new();
        for _ in 0..*runs {
            self.round(reference, &mut reference_rates, |_| true, |case| self.alone(&mut beside, case, 1))?;
            self.round(cases, &mut rates, |beside| !beside.changes_the_map(), &mut measure)?;
            floor_rates.push(leaves.reads_per_second(self.ops.run));
        }
        // Last: a writer leaves nodes that are less full.
        for _ in 0..*runs {
            self.round(cases, &mut rates, Beside::changes_the_map, &mut measure)?;
        }
        let reference = loaded.map(|(bytes_per_item, load_rate)| MapFigures {
            rates: reference_rates,
            bytes_per_item,
            load_rate,
            floor_rates: Vec::new(),
        });
        Ok(OpsFigures { own: MapFigures { rates, bytes_per_item, load_rate, floor_rates }, reference })
    }

    /// Stores the items that `is_wanted`, in random order. Returns the bytes of each, and how many were stored per
    /// second.
    fn load(&self, table: &mut impl Table, is_wanted: impl Fn(u64) -> bool) -> Result<(f64, f64), BenchError> {
        let (before, start) = (resident_bytes()?, Instant::now());
        let (mut ops, mut outcome) = (Vec::with_capacity(BURST_MAX), Outcome::default());
        for number in 0..self.ops.items {
            if is_wanted(number) {
                ops.push(Op::Put(number));
            }
            if ops.len() == BURST_MAX || number + 1 == self.ops.items {
                table.burst(&ops, &mut outcome);
                ops.clear();
            }
            if number.is_multiple_of(ITEMS_PER_LOOK) && self.control.stopping() {
                return Err(LabError::Interrupted.into());
            }
        }
        outcome.check()?;
        let items = self.ops.items as f64;
        let rate = items / start.elapsed().as_secs_f64();
        Ok((resident_bytes()?.saturating_sub(before) as f64 / items, rate))
    }

    fn no_rates(&self, cases: &[OpsCase]) -> Vec<Vec<f64>> {
        cases.iter().map(|_| Vec::new()).collect()
    }

    /// All loads that are wanted, one after the other. Adds the rate of each.
    fn round(
        &self,
        cases: &[OpsCase],
        rates: &mut [Vec<f64>],
        is_wanted: impl Fn(Beside) -> bool,
        mut measure: impl FnMut(&OpsCase) -> Result<f64, BenchError>,
    ) -> Result<(), BenchError> {
        for (case, rates) in cases.iter().zip(rates).filter(|(case, _)| is_wanted(case.beside)) {
            let rate = measure(case)?;
            self.control.live(Metric::Operations, rate);
            rates.push(rate);
            if self.control.stopping() {
                return Err(LabError::Interrupted.into());
            }
        }
        Ok(())
    }

    /// The rate of one thread.
    fn alone(&self, table: &mut impl Table, case: &OpsCase, seed: u64) -> Result<f64, BenchError> {
        let mut draws = Draws::new(case.work, self.ops.items, seed);
        let mut fill = |ops: &mut [Op]| draws.fill(ops);
        rate_for(table, case.burst, self.ops.run.mul_f64(WARM_UP_SHARE), &mut fill)?;
        rate_for(table, case.burst, self.ops.run, &mut fill)
    }

    /// The rate of two threads with the same load.
    fn both(&self, first: &mut impl Table, second: impl Table + Send, case: &OpsCase) -> Result<f64, BenchError> {
        let mut draws = Draws::new(case.work, self.ops.items, 2);
        let (first, second) = self.with_second(first, second, case, move |ops| draws.fill(ops))?;
        Ok(first + second)
    }

    /// The rate of a thread beside a writer.
    fn beside_writer(
        &self,
        first: &mut impl Table,
        second: impl Table + Send,
        case: &OpsCase,
    ) -> Result<f64, BenchError> {
        let mut writer = Writer { random: Random::new(3), items: self.ops.items };
        Ok(self.with_second(first, second, case, move |ops| writer.fill(ops))?.0)
    }

    fn with_second(
        &self,
        first: &mut impl Table,
        mut second: impl Table + Send,
        case: &OpsCase,
        mut fill: impl FnMut(&mut [Op]) + Send,
    ) -> Result<(f64, f64), BenchError> {
        let (mut ops, mut outcome) = ([Op::Get(0); BURST_MAX], Outcome::default());
        let burst = case.burst.clamp(1, BURST_MAX);
        let other = || {
            for _ in 0..BURSTS_PER_LOOK {
                fill(&mut ops[..burst]);
                second.burst(&ops[..burst], &mut outcome);
            }
            u64::from(BURSTS_PER_LOOK) * burst as u64
        };
        let (rate, others) = beside(self.ops.cores.client, other, || self.alone(first, case, 1))?;
        outcome.check()?;
        Ok((rate?, others))
    }
}

fn new_index() -> Result<Index, BenchError> {
    // Without a limit: the caller has checked the free memory.
    Index::new(usize::MAX).map_err(|why| BenchError::OtherSystem { system: "ordered index", why: why.to_string() })
}

/// Operations per second.
fn rate_for<T: Table>(
    table: &mut T,
    burst: usize,
    run: Duration,
    fill: &mut impl FnMut(&mut [Op]),
) -> Result<f64, BenchError> {
    let mut ops = [Op::Get(0); BURST_MAX];
    let ops = &mut ops[..burst.clamp(1, BURST_MAX)];
    let mut outcome = Outcome::default();
    let (start, mut bursts) = (Instant::now(), 0u64);
    let seconds = loop {
        for _ in 0..BURSTS_PER_LOOK {
            fill(ops);
            table.burst(ops, &mut outcome);
        }
        bursts += u64::from(BURSTS_PER_LOOK);
        let elapsed = start.elapsed();
        if elapsed >= run {
            break elapsed.as_secs_f64();
        }
    };
    outcome.check()?;
    Ok((bursts * ops.len() as u64) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: u64 = 1_000;

    /// All maps find the same items and the same sums.
    fn agrees<const KEY: usize>(keys: &impl Keys<KEY>, map: &mut impl Map<KEY>) {
        let mut model: BTreeMap<[u8; KEY], u64> = BTreeMap::new();
        let ops: Vec<Op> = (0..ITEMS).map(Op::Put).collect();
        Other { map: &mut model, keys }.burst(&ops, &mut Outcome::default());
        finds(keys, map);
        for number in 0..ITEMS {
            let key = keys.key(number);
            for items in [1, SUMMED_FEW, SUMMED] {
                let expected = Map::sum(&model, &key, items as usize);
                assert_eq!(map.sum(&key, items as usize), expected, "{items} from {number}");
            }
        }
    }

    /// A map finds the same items.
    fn finds<const KEY: usize>(keys: &impl Keys<KEY>, map: &mut impl Map<KEY>) {
        let ops: Vec<Op> = (0..ITEMS).map(Op::Put).collect();
        let mut outcome = Outcome::default();
        Other { map, keys }.burst(&ops, &mut outcome);
        for number in 0..ITEMS {
            assert_eq!(map.get(&keys.key(number)), Some(number));
        }
        assert_eq!(map.get(&keys.key(ITEMS)), None);
        Other { map, keys }.burst(&[Op::Get(1), Op::Sum(2, SUMMED), Op::Get(ITEMS)], &mut outcome);
        assert_eq!((outcome.found, outcome.missing, outcome.wrong, outcome.refused), (1, 1, 0, 0));
        assert!(outcome.check().is_err());
    }

    fn index_agrees<const KEY: usize>(keys: &impl Keys<KEY>) {
        let (index, mut outcome) = (new_index().unwrap(), Outcome::default());
        let mut ours = Ours { index: &index, keys };
        let ops: Vec<Op> = (0..ITEMS).map(Op::Put).collect();
        ops.chunks(BURST_MAX).for_each(|ops| ours.burst(ops, &mut outcome));
        ours.burst(&[Op::Put(ITEMS)], &mut outcome);
        assert_eq!(index.len() as u64, ITEMS + 1);
        ours.burst(&[Op::Get(3), Op::Sum(4, SUMMED), Op::Delete(ITEMS), Op::Get(5), Op::Put(6)], &mut outcome);
        ours.burst(&[Op::Get(7)], &mut outcome);
        ours.burst(&[Op::Sum(8, SUMMED)], &mut outcome);
        ours.burst(&[Op::Sum(9, SUMMED_FEW), Op::Sum(10, SUMMED_FEW)], &mut outcome);
        outcome.check().unwrap();
        assert_eq!((outcome.found, index.len() as u64), (3, ITEMS));
        ours.burst(&[Op::Get(ITEMS)], &mut outcome);
        assert_eq!(outcome.missing, 1);
        let mut half = Halves { index: &index, keys, which: 1 };
        half.burst(&[Op::Get(2), Op::Get(3), Op::Get(ITEMS - 1)], &mut outcome);
        assert_eq!((outcome.found, outcome.wrong), (6, 0));
    }

    #[test]
    fn every_map_finds_what_it_was_given() {
        agrees(&Numbers, &mut &maps::Scc(scc::TreeIndex::new()));
        agrees(&Paths::new(), &mut &maps::Scc(scc::TreeIndex::new()));
        #[cfg(feature = "rivals")]
        {
            agrees(&Numbers, &mut &maps::SkipMap(crossbeam_skiplist::SkipMap::new()));
            agrees(&Paths::new(), &mut &maps::SkipMap(crossbeam_skiplist::SkipMap::new()));
            agrees(&Numbers, &mut &maps::Masstree(masstree::MassTree15Inline::new()));
            // See [`System::does`].
            finds(&Paths::new(), &mut &maps::Masstree(masstree::MassTree15Inline::new()));
            agrees(&Numbers, &mut &maps::Congee(congee::U64Congee::new()));
        }
        index_agrees(&Numbers);
        index_agrees(&Paths::new());
    }

    #[test]
    fn loads_have_the_shares_that_they_should() {
        let mut ops = [Op::Get(0); 32];
        let mut count = |work, is: fn(&Op) -> bool| {
            let mut draws = Draws::new(work, 1000, 5);
            let counted = (0..10_000).map(|_| {
                draws.fill(&mut ops);
                assert!(ops.iter().all(|op| op.number() < 1000));
                ops.iter().filter(|op| is(op)).count()
            });
            counted.sum::<usize>() as f64 / 320_000.0
        };
        assert_eq!(count(Work::Gets, |op| matches!(op, Op::Get(_))), 1.0);
        assert_eq!(count(Work::SumsOf(SUMMED_FEW), |op| matches!(op, Op::Sum(_, SUMMED_FEW))), 1.0);
        assert!((count(Work::Half, |op| matches!(op, Op::Put(_))) - 0.5).abs() < 0.01);
        assert!((count(Work::Sums, |op| matches!(op, Op::Sum(_, SUMMED))) - 0.01).abs() < 0.002);
        assert!((count(Work::Sums, |op| matches!(op, Op::Get(_))) - 0.99).abs() < 0.002);
    }
}
