//! `misbehaving`: beyond the paper. Clients that make a server hold memory, that send what no honest end sends, or that
//! are stopped in the middle of sending, together with a working client. The working client should keep the rate that
//! it has alone, and the server's memory should stay within its budget.
//!
//! Each run measures the working load alone and together with the misbehaving clients, each on a new server, in
//! alternating order. *Rate kept* is one rate divided by the other, without corrections. The misbehaving clients may
//! therefore use only little of the core that they share with the working one, and a row says how much.

mod connections;
mod hoarders;
mod losses;
mod stopped;

use std::time::{Duration, Instant};

use dunlin_lab::measure::{Spread, main_thread_cpu_nanos_of, peak_resident_bytes_of, resident_bytes_of};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{LabError, spread};

use crate::{BenchError, Lab};

/// Required share of its rate that a working client keeps.
const RATE_KEPT_MIN: f64 = 0.95;
/// Limit of the client core's time that misbehaving clients use, in percent: half of what the working client may lose
/// is left for the server's effect.
const TAKEN_MAX: f64 = 2.5;
/// Limit of the increase of a working client's p99 latency, in nanoseconds. A client that queues behind another one
/// waits for much longer.
const P99_MORE_MAX: f64 = 1e6;
/// A load takes a measured run divided by this: there are many, and all must take less than three minutes.
const LOADS_PER_RUN: u32 = 2;

/// The result of a working client.
#[derive(Debug, Clone, Copy)]
struct Work {
    rate: f64,
    p99: f64,
}

/// A working client alone and together with others, in one run.
#[derive(Debug, Clone, Copy)]
struct Pair {
    alone: Work,
    beside: Work,
}

impl Pair {
    /// The share of the rate that is kept.
    fn kept(&self) -> f64 {
        self.beside.rate / self.alone.rate
    }
}

/// The cost of the misbehaving clients in one run.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Share of the clients' core, from 0 to 1.
    taken: f64,
    /// Peak growth of the server, in bytes.
    grown: f64,
}

/// One run: each working load, and the cost for the server and the core.
#[derive(Debug, Clone)]
struct Seen {
    works: Vec<Pair>,
    cost: Cost,
}

impl Seen {
    fn new(alone: Vec<Work>, beside: Vec<Work>, cost: Cost) -> Self {
        let works = alone.into_iter().zip(beside).map(|(alone, beside)| Pair { alone, beside }).collect();
        Seen { works, cost }
    }
}

/// Whether the working load is first measured alone or together with others. Runs alternate, so that drift over time
/// favours neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    AloneFirst,
    BesideFirst,
}

impl Order {
    /// The order of this run; the next run has the other.
    fn next(&mut self) -> Order {
        let other = if *self == Order::AloneFirst { Order::BesideFirst } else { Order::AloneFirst };
        std::mem::replace(self, other)
    }

    /// Measures both in this order.
    fn take<A, B>(
        self,
        alone: impl FnOnce() -> Result<A, BenchError>,
        beside: impl FnOnce() -> Result<B, BenchError>,
    ) -> Result<(A, B), BenchError> {
        match self {
            Order::AloneFirst => {
                let alone = alone()?;
                Ok((alone, beside()?))
            }
            Order::BesideFirst => {
                let beside = beside()?;
                Ok((alone()?, beside))
            }
        }
    }
}

/// Measures and reports one or several cases.
type Measure = fn(&mut Lab) -> Result<(), BenchError>;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(13);
    lab.note(format!(
        "In the column of floors stands the working client alone. *Rate kept* is its rate beside the misbehaving clients divided by that, and \
         nothing is taken off. It, the misbehaving clients and nothing else share one core, and the server has the other: in brackets stand \
         the threads of the server's core | those of the clients' core. The row of the misbehaving clients is what they use of that core, at most \
         {TAKEN_MAX} %: more would spoil the rate that they are there to threaten. The memory of a server is that by which it grew, at its most."
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

/// Length of one load.
fn load_length(lab: &Lab) -> Duration {
    lab.run_length() / LOADS_PER_RUN
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

/// Measures, and returns the share of a core that these processes used meanwhile.
fn sharing<T>(processes: &[u32], measure: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, f64), BenchError> {
    let used = || processes.iter().map(|process| main_thread_cpu_nanos_of(*process)).sum::<Result<u64, LabError>>();
    let (before, since) = (used()?, Instant::now());
    let measured = measure()?;
    let taken = (used()? - before) as f64 / since.elapsed().as_nanos() as f64;
    Ok((measured, taken))
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
        let pairs: Vec<Pair> = seen.iter().filter_map(|seen| seen.works.get(place).copied()).collect();
        push_load(lab, &format!("{case}, {load}"), rate, &pairs)?;
    }
    let taken = spread(seen, |seen| seen.cost.taken * 100.0)?;
    let row = RowBuilder::new(format!("{case}, the misbehaving clients"), Metric::CoreShare, taken);
    lab.push(row.target(Target::Absolute(TAKEN_MAX)));
    let row = RowBuilder::new(format!("{case}, the server"), Metric::Memory, spread(seen, |seen| seen.cost.grown)?);
    lab.push(row.target(Target::Absolute(memory_max)));
    Ok(())
}

/// The rows of one load.
fn push_load(lab: &mut Lab, case: &str, rate: Metric, pairs: &[Pair]) -> Result<(), BenchError> {
    let row = RowBuilder::new(case, rate, spread(pairs, |pair| pair.beside.rate)?);
    lab.push(row.floor(spread(pairs, |pair| pair.alone.rate)?));
    let row = RowBuilder::new(format!("{case}, rate kept"), Metric::Advantage, spread(pairs, Pair::kept)?);
    let row = row.limit("a load of half of --for varies by more than 5 % where two cores are not quiet");
    lab.push(row.target(Target::Absolute(RATE_KEPT_MIN)));
    let row = RowBuilder::new(case, Metric::LatencyP99, spread(pairs, |pair| pair.beside.p99)?);
    let target = Target::FloorPlus(P99_MORE_MAX);
    lab.push(row.floor(spread(pairs, |pair| pair.alone.p99)?).target(target));
    Ok(())
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

    fn pair(alone: f64, beside: f64) -> Pair {
        Pair { alone: Work { rate: alone, p99: 1.0 }, beside: Work { rate: beside, p99: 1.0 } }
    }

    /// A client that sleeps between its calls does not get slower because others use the core meanwhile: if it does,
    /// something else is slow.
    #[test]
    fn half_of_the_rate_is_lost_however_much_of_the_core_is_taken() {
        for taken in [0.0, 0.5, 0.9] {
            let cost = Cost { taken, grown: 0.0 };
            let seen = Seen::new(vec![pair(100.0, 50.0).alone], vec![pair(100.0, 50.0).beside], cost);
            assert!(seen.works[0].kept() < RATE_KEPT_MIN, "{taken} taken");
        }
        assert!(pair(100.0, 96.0).kept() >= RATE_KEPT_MIN);
    }

    #[test]
    fn orders_are_mirrored() {
        let mut order = Order::AloneFirst;
        let calls = std::cell::RefCell::new(String::new());
        let note = |what: &str| {
            calls.borrow_mut().push_str(what);
            Ok(())
        };
        for _ in 0..4 {
            order.next().take(|| note("A"), || note("B")).unwrap();
        }
        assert_eq!(calls.into_inner(), "ABBAABBA");
    }
}
