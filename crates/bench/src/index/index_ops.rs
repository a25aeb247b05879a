//! `index-ops`: operations on an ordered index in memory, beside `BTreeMap` and the ordered maps of other crates.
//! Targets are multiples of `BTreeMap`, one operation at a time, because it has no bursts. It is in the same process as
//! the index, and the rounds of the two alternate. All others have a process of their own.
//!
//! The paper measures its Masstree behind a network only, so none of its figures is shown.

use std::time::Duration;

use dunlin_index::Vectors;
use dunlin_lab::measure::{Spread, available_bytes};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{LabError, spread};

use super::roles::{Beside, FEW, IndexOps, Limit, MapFigures, OpsCase, SUMMED, SUMMED_FEW, Shape, System, Work};
use crate::{BenchError, Lab};

/// Items and their keys, in the order in which they are measured.
const SIZES: [(u64, Shape); 4] =
    [(1_000_000, Shape::Number), (1_000_000, Shape::Path), (10_000_000, Shape::Number), (10_000_000, Shape::Path)];
/// Up to this number, a process has three maps: one more in two halves, and one that another thread writes to.
const ITEMS_THRICE_MAX: u64 = 1_000_000;
/// The burst size for comparisons, and others.
const BURST: usize = 16;
const OTHER_BURSTS: [usize; 2] = [8, 32];
/// Bytes of a value.
const VALUE_BYTES: usize = 8;
/// Maximum average time of storing one item: far more than any map takes on a busy machine.
const LOAD_MAX: Duration = Duration::from_micros(20);
/// Memory per item as a reserve.
const SPARE_BYTES: u64 = 32;

/// The goals, as multiples of `BTreeMap`.
const ONE_AT_A_TIME: f64 = 1.5;
const BURSTS_FEW: f64 = 6.0;
const BURSTS_MANY: f64 = 8.0;
const BURSTS_PATHS: f64 = 6.0;
const SUMS: f64 = 5.0;
/// The goal for memory, in bytes for each item of 8 + 8.
const ITEM_BYTES_MAX: f64 = 40.0;
/// The goals for a second thread, as multiples of one thread.
const BESIDE_A_WRITER: f64 = 0.8;
const TWO_THREADS: f64 = 1.8;

/// Loads of scans only.
const SCANS: [Work; 2] = [Work::SumsOf(SUMMED_FEW), Work::SumsOf(SUMMED)];
const GETS: OpsCase = OpsCase { work: Work::Gets, burst: BURST, beside: Beside::Nothing };

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    // Even, so that two partitions have as many.
    let mut sizes = SIZES.map(|(items, shape)| (lab.items(items) & !1, shape)).to_vec();
    // Limited sizes are equal: each shape is measured once.
    sizes.sort_by_key(|(items, shape)| (*items, shape.bytes()));
    sizes.dedup();
    lab.expect_cases(0);
    for (items, shape) in sizes {
        let rivals = System::RIVALS.iter().copied().filter(|system| system.takes(shape));
        let limited = limits().into_iter().map(System::IndexWith).filter(|_| items <= ITEMS_THRICE_MAX);
        let first = [System::Index, System::IndexWith(Limit::SmallPages), System::BTreeMapHuge];
        let systems: Vec<System> = first.into_iter().chain(limited).chain(rivals).collect();
        lab.expect_steps(systems.len());
        for system in systems {
            lab.step(format!("{}, {items} items", system.name()));
            measure(lab, system, items, shape)?;
        }
    }
    lab.note(match Vectors::best() {
        Vectors::Avx512 => "Interior nodes are searched with AVX-512.",
        Vectors::Avx2 => "This processor has no AVX-512: interior nodes are searched with AVX2.",
        Vectors::Sse42 => {
            "This processor has no AVX2, or not what comes with it: interior nodes are searched with SSE4.2."
        }
        Vectors::Scalar => "This processor has no SSE4.2 and POPCNT: interior nodes are searched without vectors.",
    });
    lab.note(
        "Dunlin asks for huge pages for its nodes, and glibc asks for none for the nodes of BTreeMap: one row each is the \
         other way round.",
    );
    lab.note(
        "The floor of GETs in bursts of 16 is the rate of reading two lines of a leaf in as much memory, without a tree: \
         sixteen first lines at random, then a line that each of them names.",
    );
    if System::RIVALS.len() > 1 {
        lab.note(
            "crossbeam-skiplist overwrites a value by removing the item first, so look-ups on another thread miss it: no \
             row of two threads with writes.",
        );
    } else {
        lab.note(
            "This build has no crossbeam-skiplist, masstree and congee: they need the cargo feature `rivals` or `peers`.",
        );
    }
    Ok(())
}

/// The vector instructions that are left out in rows of their own: those that this processor has.
fn limits() -> Vec<Limit> {
    match Vectors::best() {
        Vectors::Scalar => Vec::new(),
        Vectors::Sse42 => vec![Limit::Scalar],
        Vectors::Avx2 => vec![Limit::Sse42, Limit::Scalar],
        Vectors::Avx512 => vec![Limit::Avx2, Limit::Sse42, Limit::Scalar],
    }
}

/// The loads of a system.
fn cases(system: System, items: u64, shape: Shape) -> Vec<OpsCase> {
    let case = |work, burst| OpsCase { work, burst, beside: Beside::Nothing };
    if !system.is_ours() {
        let two = |work| OpsCase { work, burst: 1, beside: Beside::Same };
        let one = [Work::Gets, Work::Half, Work::Sums].map(|work| case(work, 1));
        let scans = SCANS.iter().filter(|_| system == System::BTreeMap).map(|work| case(*work, 1));
        let cases = one.into_iter().chain(scans).chain([Work::Gets, Work::Half, Work::Sums].map(two));
        return cases.filter(|case| system.does(*case, shape)).collect();
    }
    if system != System::Index {
        return vec![case(Work::Gets, 1), GETS, case(Work::Sums, BURST)];
    }
    let mut cases = Vec::new();
    for work in [Work::Gets, Work::Half, Work::Sums].into_iter().chain(SCANS) {
        cases.extend([case(work, 1), case(work, BURST)]);
    }
    cases.push(case(Work::FewGets, BURST));
    cases.extend(OTHER_BURSTS.map(|burst| case(Work::Gets, burst)));
    let two = |work, beside| OpsCase { work, burst: BURST, beside };
    for work in [Work::Gets, Work::Half, Work::Sums] {
        cases.extend([1, BURST].map(|burst| OpsCase { work, burst, beside: Beside::Same }));
    }
    cases.push(two(Work::Gets, Beside::Writer));
    if items <= ITEMS_THRICE_MAX {
        cases.extend([
            two(Work::Gets, Beside::Partition),
            two(Work::Half, Beside::Partition),
            two(Work::Gets, Beside::WriterElsewhere),
        ]);
    }
    cases
}

fn measure(lab: &mut Lab, system: System, items: u64, shape: Shape) -> Result<(), BenchError> {
    let name = size_name(system, items, shape);
    let maps = if system == System::Index && items <= ITEMS_THRICE_MAX { 3 } else { 1 };
    let reference = if system == System::Index { cases(System::BTreeMap, items, shape) } else { Vec::new() };
    let maps = maps + u64::from(!reference.is_empty());
    let needed = maps * items * (system.bytes_per_item(shape) + SPARE_BYTES);
    let available = available_bytes()?;
    if needed > available {
        lab.note(crate::store::too_little_memory(&name, needed, available));
        return Ok(());
    }
    let (runs, run, cores) = (lab.runs(), lab.run_length(), lab.cores()?);
    let ops = IndexOps { system, shape, items, cases: cases(system, items, shape), reference, runs, run, cores };
    let cases = ops.cases.len() + ops.reference.len();
    let measured = run * (2 * cases * runs) as u32 + LOAD_MAX * (maps * items) as u32;
    // It pins its threads itself: there may be two.
    match lab.anywhere(ops, measured)?.result() {
        // If one is too slow for this machine, the figures of the others are kept.
        Err(BenchError::Lab(LabError::TimedOut { limit, .. })) if !system.is_ours() => {
            lab.note(format!("{name} was given up: it was not done within {limit:?}."));
            Ok(())
        }
        figures => {
            let figures = figures?;
            if let Some(reference) = &figures.reference {
                push(lab, System::BTreeMap, items, shape, reference)?;
            }
            push(lab, system, items, shape, &figures.own)
        }
    }
}

fn push(lab: &mut Lab, system: System, items: u64, shape: Shape, figures: &MapFigures) -> Result<(), BenchError> {
    for (case, rates) in cases(system, items, shape).iter().zip(&figures.rates) {
        let row =
            RowBuilder::new(case_name(system, items, shape, case), Metric::Operations, spread(rates, |rate| *rate)?);
        let row = match target(system, items, shape, case) {
            Some(target) => row.target(target).limit(limit(case)),
            None => row,
        };
        let has_floor = *case == GETS && !figures.floor_rates.is_empty();
        lab.push(if has_floor { row.floor(spread(&figures.floor_rates, |rate| *rate)?) } else { row });
    }
    let name = size_name(system, items, shape);
    let row = RowBuilder::new(name.clone(), Metric::ItemMemory, Spread::single(figures.bytes_per_item));
    let has_target = system == System::Index && shape == Shape::Number && is_full_size(items, shape);
    lab.push(if has_target { row.target(Target::Absolute(ITEM_BYTES_MAX)) } else { row });
    lab.push(RowBuilder::new(
        format!("{name}, stored in random order"),
        Metric::Operations,
        Spread::single(figures.load_rate),
    ));
    Ok(())
}

/// The goal of a case of ours.
fn target(system: System, items: u64, shape: Shape, case: &OpsCase) -> Option<Target> {
    if system != System::Index || !is_full_size(items, shape) {
        return None;
    }
    let of = |system, case: &OpsCase, factor| {
        Some(Target::CaseTimes { case: case_name(system, items, shape, case), factor })
    };
    let against_btree = |factor| of(System::BTreeMap, &OpsCase { burst: 1, ..*case }, factor);
    match (case.work, case.burst, case.beside, shape) {
        (Work::Gets, 1, Beside::Nothing, _) => against_btree(ONE_AT_A_TIME),
        (Work::Gets, BURST, Beside::Nothing, Shape::Number) => {
            against_btree(if items < 10_000_000 { BURSTS_FEW } else { BURSTS_MANY })
        }
        (Work::Gets, BURST, Beside::Nothing, Shape::Path) => against_btree(BURSTS_PATHS),
        (Work::Sums, BURST, Beside::Nothing, Shape::Number) => against_btree(SUMS),
        (Work::Gets, BURST, Beside::Writer, _) => of(system, &GETS, BESIDE_A_WRITER),
        (Work::Gets, BURST, Beside::Same, _) => of(system, &GETS, TWO_THREADS),
        _ => None,
    }
}

/// What limits a case, if it misses its goal.
fn limit(case: &OpsCase) -> String {
    match (case.burst, case.beside) {
        (1, Beside::Nothing) => "cache misses, one after the other".to_owned(),
        (_, Beside::Nothing) => format!(
            "the processor: the row with {FEW} items, whose lines are near, shows the rate without memory, and the floor \
             of GETs the rate without instructions"
        ),
        _ => "memory that both threads use".to_owned(),
    }
}

/// With fewer items, all of them fit a cache, and the goals mean nothing.
fn is_full_size(items: u64, shape: Shape) -> bool {
    SIZES.contains(&(items, shape))
}

fn size_name(system: System, items: u64, shape: Shape) -> String {
    let items = if items.is_multiple_of(1_000_000) { format!("{} M", items / 1_000_000) } else { items.to_string() };
    format!("{}, {items} items of {} + {VALUE_BYTES} B", system.name(), shape.bytes())
}

fn case_name(system: System, items: u64, shape: Shape, case: &OpsCase) -> String {
    let work = match case.work {
        Work::Gets => "GET".to_owned(),
        Work::FewGets => {
            return format!("{}, GET of {FEW} items, bursts of {}", size_name(system, items, shape), case.burst);
        }
        Work::Half => "50 % GET, 50 % PUT".to_owned(),
        Work::Sums => format!("99 % GET, 1 % sum of {SUMMED}"),
        Work::SumsOf(items) => format!("sums of {items}"),
    };
    let bursts = if case.burst == 1 { "one at a time".to_owned() } else { format!("bursts of {}", case.burst) };
    let beside = match case.beside {
        Beside::Nothing => "",
        Beside::Same => ", two threads",
        Beside::Partition => ", two threads with a partition each",
        Beside::Writer => ", beside a writer",
        Beside::WriterElsewhere => ", beside a writer of another index",
    };
    format!("{}, {work}, {bursts}{beside}", size_name(system, items, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_refer_to_rows_that_are_measured() {
        for (items, shape) in SIZES {
            let names: Vec<String> = [System::BTreeMap, System::Index]
                .into_iter()
                .flat_map(|system| cases(system, items, shape).into_iter().map(move |case| (system, case)))
                .map(|(system, case)| case_name(system, items, shape, &case))
                .collect();
            let goals: Vec<Target> = cases(System::Index, items, shape)
                .iter()
                .filter_map(|case| target(System::Index, items, shape, case))
                .collect();
            assert!(goals.len() >= 4, "{goals:?}");
            for goal in goals {
                let Target::CaseTimes { case, .. } = goal else { panic!("{goal:?}") };
                assert!(names.contains(&case), "{case}");
            }
            assert!(target(System::Index, items - 2, shape, &GETS).is_none());
            assert!(target(System::Index, items, shape, &OpsCase { burst: 1, ..GETS }).is_some());
        }
    }
}
