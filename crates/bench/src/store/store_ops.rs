//! `store-ops`: one thread and a table in memory, compared with random reads of memory. The papers do not measure a
//! table without a network, so none of their figures is shown.

use std::time::Duration;

use dunlin_lab::measure::{BesideFloor, available_bytes};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{LabError, spread};

use crate::store::roles::{CacheFigures, CacheFill, Kind, StoreCase, StoreFigures, StoreOps, System};
use crate::workload::Popularity;
use crate::{BenchError, Lab};

/// Number of items, and the required rate of GETs of uniform keys in bursts of [`BURST`]: two sizes that fit the caches
/// of a large processor, one that fits none.
const SIZES: [(u64, f64); 3] = [(1_000_000, 15e6), (4_000_000, 15e6), (50_000_000, 8e6)];
/// Above this number of items, storing them takes most of the time; then systems other than the services' default are
/// measured [`RUNS_OF_OTHERS`] times.
const ITEMS_MANY: u64 = 4_000_000;
const RUNS_OF_OTHERS: usize = 3;
/// Time limit for another map to store that many: slower ones are given up, which the report notes.
const OTHERS_LOAD_MAX: Duration = Duration::from_secs(60);
/// The burst size for comparisons.
const BURST: usize = 16;
/// Other burst sizes.
const OTHER_BURSTS: [usize; 5] = [1, 2, 4, 8, 32];
/// Shares of reads.
const GETS: [f64; 3] = [1.0, 0.95, 0.5];
/// Maximum average time of storing one item: far more than any table takes on a busy machine, so that only a hang is
/// ended.
const LOAD_MAX: Duration = Duration::from_micros(20);
/// Memory per item for the floor, and as a reserve.
const SPARE_BYTES: u64 = 96;

/// Memory of the cache whose losses are counted, given by a number of items, and its fill level.
const LOSS_ITEMS: u64 = 4_000_000;
const LOSS_BYTES_PER_ITEM: u64 = 80;
const LOSS_MEMORY_MIN: u64 = 4 << 20;
const LOSS_LOAD: f64 = 0.9;
/// How many times the capacity is stored to determine how many items the cache holds.
const LOSS_OFFERED: u64 = 2;
/// Limit of reads that may miss, in percent.
const LOST_MAX: f64 = 0.1;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let mut sizes = SIZES.map(|(items, target)| (lab.items(items), target)).to_vec();
    sizes.dedup_by_key(|(items, _)| *items);
    let systems = systems();
    lab.expect_cases(1);
    lab.expect_steps(sizes.len() * systems.len() + 1);
    for (items, target) in sizes {
        for system in &systems {
            lab.step(format!("{}, {items} items", system.name()));
            // A process has all loads of a table, and the target of ours refers to another's.
            let refers = |system: &System| *system == System::Partition(Kind::SHIPPED) || *system == System::Hashbrown;
            let together = systems.iter().filter(|other| *other == system || refers(other) && refers(system));
            let names = together
                .flat_map(|system| cases(*system).into_iter().map(move |case| name(system.name(), items, &case)));
            if lab.wants_any(names.collect::<Vec<_>>().iter().map(String::as_str)) {
                measure(lab, *system, items, target)?;
            }
        }
    }
    lab.step("what a cache loses");
    losses(lab)
}

/// What stands in the name of the row of losses, whose number of items is only known once the cache is full.
const LOSSES: &str = "Dunlin, cache, 90 % of the items it holds";

/// The losses of a cache before it is full: of small items, which are in the index, so that only the index can lose
/// them. First the number of items of a full cache is measured.
fn losses(lab: &mut Lab) -> Result<(), BenchError> {
    if !lab.wants(LOSSES) {
        return Ok(());
    }
    let memory = (lab.items(LOSS_ITEMS) * LOSS_BYTES_PER_ITEM).max(LOSS_MEMORY_MIN);
    let offered = LOSS_OFFERED * memory / LOSS_BYTES_PER_ITEM;
    let fill = |lab: &Lab, items| lab.server(CacheFill { memory, items }, LOAD_MAX * 2 * offered as u32)?.result();
    let full = fill(lab, offered)?.kept;
    let items = (full as f64 * LOSS_LOAD) as u64;
    let name = format!("{}, {:.0} % of the {full} items it holds", Kind::SHIPPED.name(), LOSS_LOAD * 100.0);
    let figures = lab.case(&name, |lab| fill(lab, items))?;
    if let Some(CacheFigures { kept, evicted_index, evicted_log, .. }) =
        figures.first().filter(|figures| figures.lost > 0.0)
    {
        lab.note(format!(
            "{name}: {items} stored, {kept} kept; {evicted_index} left the index and {evicted_log} the log."
        ));
    }
    let row = RowBuilder::new(name, Metric::Lost, spread(&figures, |figures| figures.lost * 100.0)?);
    lab.push(row.target(Target::Absolute(LOST_MAX)));
    Ok(())
}

fn systems() -> Vec<System> {
    Kind::ALL.map(System::Partition).into_iter().chain([System::Hashbrown]).chain(System::CONCURRENT).collect()
}

/// The loads for a system: the maps have no bursts.
fn cases(system: System) -> Vec<StoreCase> {
    let case = |gets, popularity, burst| StoreCase { gets, popularity, burst };
    let every = |burst| GETS.map(|gets| Popularity::CHOSEN.map(|popularity| case(gets, popularity, burst))).concat();
    match system {
        System::Partition(kind) if kind == Kind::SHIPPED => {
            let others = OTHER_BURSTS.map(|burst| case(1.0, Popularity::Uniform, burst));
            [every(BURST), others.to_vec()].concat()
        }
        System::Partition(_) => vec![
            case(1.0, Popularity::Uniform, 1),
            case(1.0, Popularity::Uniform, BURST),
            case(0.95, Popularity::Zipf, BURST),
            case(0.5, Popularity::Uniform, BURST),
        ],
        System::Hashbrown => every(1),
        _ => vec![case(1.0, Popularity::Uniform, 1), case(0.95, Popularity::Zipf, 1)],
    }
}

fn measure(lab: &mut Lab, system: System, items: u64, target: f64) -> Result<(), BenchError> {
    let needed = items * (system.bytes_per_item() + SPARE_BYTES);
    let available = available_bytes()?;
    if needed > available {
        let name = format!("{} with {items} items", system.name());
        lab.note(super::too_little_memory(&name, needed, available));
        return Ok(());
    }
    let is_shipped = system == System::Partition(Kind::SHIPPED);
    let is_ours = matches!(system, System::Partition(_));
    let are_many = items > ITEMS_MANY;
    let runs = if is_shipped || !are_many { lab.runs() } else { lab.runs().min(RUNS_OF_OTHERS) };
    let load_max = if is_ours || !are_many { LOAD_MAX * items as u32 } else { OTHERS_LOAD_MAX };
    let ops = StoreOps { system, items, cases: cases(system), runs, run: lab.run_length() };
    let measured = lab.run_length() * (2 * ops.cases.len() * runs) as u32 + load_max;
    match lab.server(ops, measured)?.result() {
        // If one is too slow for this machine, the figures of the others are kept.
        Err(BenchError::Lab(LabError::TimedOut { limit, .. })) if !is_ours => {
            lab.note(format!("{} with {items} items was given up: it was not done within {limit:?}.", system.name()));
            Ok(())
        }
        figures => {
            lab.taken(&table_name(system.name(), items), runs);
            push(lab, system, items, target, figures?)
        }
    }
}

fn push(lab: &mut Lab, system: System, items: u64, target: f64, figures: StoreFigures) -> Result<(), BenchError> {
    for (case, runs) in cases(system).iter().zip(figures.runs) {
        let lost = runs.iter().map(|run| run.lost).fold(0.0, f64::max);
        let spread = BesideFloor::of(runs.iter().map(|run| run.measured()).collect()).spread(|rate| *rate)?;
        let name = name(system.name(), items, case);
        let mut row = RowBuilder::new(&name, Metric::Operations, spread.ours).floor(spread.floor);
        let is_shipped = system == System::Partition(Kind::SHIPPED);
        if is_shipped && *case == (StoreCase { gets: 1.0, popularity: Popularity::Uniform, burst: BURST }) {
            let one_by_one = StoreCase { burst: 1, ..*case };
            let hashbrown =
                Target::CaseTimes { case: self::name(System::Hashbrown.name(), items, &one_by_one), factor: 1.0 };
            let absolute = Target::Absolute(target);
            let is_full_size = SIZES.iter().any(|(size, _)| *size == items);
            row = row.target(if is_full_size { Target::All(vec![absolute, hashbrown]) } else { hashbrown });
        }
        // The table that std has, for one thread, and one access at a time since it has no bursts.
        if matches!(system, System::Partition(_)) && [1, BURST].contains(&case.burst) {
            let one_by_one = StoreCase { burst: 1, ..*case };
            row = row.rival(self::name(System::Hashbrown.name(), items, &one_by_one));
        }
        lab.push(row);
        if lost > 0.0 {
            lab.note(format!("{name}: {:.4} % of the reads found nothing that was stored.", lost * 100.0));
        }
    }
    Ok(())
}

fn table_name(system: &str, items: u64) -> String {
    let items = if items.is_multiple_of(1_000_000) { format!("{} M", items / 1_000_000) } else { items.to_string() };
    format!("{system}, {items} items")
}

fn name(system: &str, items: u64, case: &StoreCase) -> String {
    let StoreCase { gets, popularity, burst } = case;
    let bursts = if *burst == 1 { "one at a time".to_owned() } else { format!("bursts of {burst}") };
    format!("{}, {:.0} % GET, {}, {bursts}", table_name(system, items), gets * 100.0, popularity.name())
}
