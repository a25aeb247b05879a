//! `misbehaving`: beyond the paper. Clients that hold what a server must keep for them, that send what no honest end sends, or that are
//! stopped in the middle of it, beside a client that works. Its rate should stay what it is alone, and the server's memory within its
//! budget.
//!
//! Each run starts a server, takes the working load alone, starts the misbehaving clients, and takes the load again. Both share the core
//! of clients, so what the misbehaving ones use of it is measured, and the working client is held to what is left.

mod connections;
mod hoarders;
mod losses;
mod stopped;

use std::time::Instant;

use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::measure::{Spread, main_thread_cpu_nanos_of, peak_resident_bytes_of, resident_bytes_of};
use crate::report::{Metric, RowBuilder, Target};

/// Share of its rate that a working client keeps, of the processor time that is left to it.
const RATE_KEPT_MIN: f64 = 0.95;

/// What a working client came to.
#[derive(Debug, Clone, Copy)]
struct Work {
    rate: f64,
    p99: f64,
}

/// One run of a case.
#[derive(Debug, Clone, Copy)]
struct Seen {
    alone: Work,
    beside: Work,
    /// Share of the clients' core that the misbehaving clients had meanwhile, from 0 to 1.
    taken: f64,
    /// Bytes by which the server grew at its most, from before the misbehaving clients came.
    grown: f64,
}

impl Seen {
    /// What is kept of the rate, of the processor time that is left.
    fn kept(&self) -> f64 {
        self.beside.rate / self.alone.rate / (1.0 - self.taken).max(f64::EPSILON)
    }
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(9);
    lab.note(
        "In the column of floors stands the working client alone. It, the misbehaving clients and nothing else share one core, the server has \
         the other, with one thread each. *Rate kept* is against the processor time that the misbehaving clients leave; what they cost \
         the server counts as lost. The memory of a server is that by which it grew, at its most.",
    );
    connections::run(lab)?;
    hoarders::responses(lab)?;
    hoarders::connects(lab)?;
    hoarders::unreachable(lab)?;
    hoarders::guesses(lab)?;
    stopped::run(lab)?;
    losses::calls(lab)?;
    losses::short_path(lab)
}

/// How much memory a process gained.
struct Growth {
    process: u32,
    before: u64,
}

impl Growth {
    /// From now on.
    fn of(process: u32) -> Result<Self, BenchError> {
        Ok(Growth { process, before: resident_bytes_of(process)? })
    }

    /// At its most, until now.
    fn most(&self) -> Result<f64, BenchError> {
        Ok(peak_resident_bytes_of(self.process)?.saturating_sub(self.before) as f64)
    }
}

/// Measures, and gives the share of a core that these processes had meanwhile.
fn sharing<T>(processes: &[u32], measure: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, f64), BenchError> {
    let used = || processes.iter().map(|process| main_thread_cpu_nanos_of(*process)).sum::<Result<u64, BenchError>>();
    let (before, since) = (used()?, Instant::now());
    let measured = measure()?;
    let taken = (used()? - before) as f64 / since.elapsed().as_nanos() as f64;
    Ok((measured, taken))
}

/// The rows that every case has. `memory_max` is the budget of the server, in bytes.
fn push(lab: &mut Lab, case: &str, rate: Metric, seen: &[Seen], memory_max: f64) -> Result<(), BenchError> {
    let row = RowBuilder::new(case, rate, spread(seen, |seen| seen.beside.rate)?);
    lab.push(row.floor(spread(seen, |seen| seen.alone.rate)?));
    let row = RowBuilder::new(format!("{case}, rate kept"), Metric::Advantage, spread(seen, Seen::kept)?);
    lab.push(row.target(Target::Absolute(RATE_KEPT_MIN)));
    let row = RowBuilder::new(case, Metric::LatencyP99, spread(seen, |seen| seen.beside.p99)?);
    lab.push(row.floor(spread(seen, |seen| seen.alone.p99)?));
    let taken = spread(seen, |seen| seen.taken * 100.0)?;
    lab.push(RowBuilder::new(format!("{case}, the misbehaving clients"), Metric::CoreShare, taken));
    let row = RowBuilder::new(format!("{case}, the server"), Metric::Memory, spread(seen, |seen| seen.grown)?);
    lab.push(row.target(Target::Absolute(memory_max)));
    Ok(())
}

/// A row that says how often the misbehaviour was seen while the working load was measured, of the run that saw it least. The row fails if that did
/// not see it at all: the others show nothing then.
fn push_seen(lab: &mut Lab, case: String, events: impl Iterator<Item = u64>) {
    let least = Spread::single(events.min().unwrap_or(0) as f64);
    lab.push(RowBuilder::new(case, Metric::Events, least).target(Target::Absolute(1.0)));
}
