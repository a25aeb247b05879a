//! `seq-speculation`: section 4.7.1 of Kalia's thesis. A client of Spec-S0 guesses the upper half of its number, and a
//! wrong guess costs an answer of eight bytes instead of four. The sequencer starts shortly before a wrap of the lower
//! half, the only place where a guess can be wrong, and far from one. Counts, so the medium does not matter.
//!
//! The paper's bound is one long answer for each client in 2^32 numbers. With several calls of a client in flight, each
//! of them may have been sent before the client learns of the new upper half.

use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::seq_runs;
use crate::rpc::roles::{Carrier, Setup};
use crate::seq::roles::{Answers, SeqServing};
use crate::{BenchError, Lab};

const CLIENTS: usize = 8;
/// Calls in flight of each client: one, as the paper's bound has it, and several.
const IN_FLIGHT: [usize; 2] = [1, 16];
/// A number whose lower half is zero.
const WRAP: u64 = 5 << 32;
/// Numbers before and after the wrap that a run draws at least.
const NEAR: u64 = 10_000;
/// A start far from a wrap.
const FAR: u64 = WRAP + (1 << 20);
/// Maximum length of a run, so that it does not reach the next wrap: at 100 M/s that takes 43 s.
const RUN_MAX: Duration = Duration::from_secs(20);

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * IN_FLIGHT.len() * 2);
    for carrier in Carrier::ALL {
        for in_flight in IN_FLIGHT {
            near(lab, carrier, in_flight)?;
            far(lab, carrier, in_flight)?;
        }
    }
    lab.note(format!(
        "Far from a wrap no guess is wrong, so the share of all 2^32 numbers from one wrap to the next is the count \
         divided by 2^32. The share of the {} numbers around a wrap is the highest.",
        2 * NEAR
    ));
    Ok(())
}

fn case(carrier: Carrier, in_flight: usize, place: &str) -> String {
    format!("{} {CLIENTS} clients, {in_flight} in flight each, {place}", carrier.name())
}

fn near(lab: &mut Lab, carrier: Carrier, in_flight: usize) -> Result<(), BenchError> {
    let case = case(carrier, in_flight, "across a wrap");
    let wrong = counts(lab, &case, carrier, in_flight, (WRAP - NEAR, WRAP + NEAR))?;
    let count = RowBuilder::new(format!("{case}: wrong guesses"), Metric::Calls, spread(&wrong, |wrong| *wrong)?);
    lab.push(count.target(Target::Absolute((CLIENTS * in_flight) as f64)));
    let share = spread(&wrong, |wrong| 100.0 * wrong / (2 * NEAR) as f64)?;
    lab.push(RowBuilder::new(format!("{case}: wrong guesses of {} numbers", 2 * NEAR), Metric::Share, share));
    Ok(())
}

fn far(lab: &mut Lab, carrier: Carrier, in_flight: usize) -> Result<(), BenchError> {
    let case = case(carrier, in_flight, "far from a wrap");
    let wrong = counts(lab, &case, carrier, in_flight, (FAR, FAR + 2 * NEAR))?;
    let row = RowBuilder::new(format!("{case}: wrong guesses"), Metric::Calls, spread(&wrong, |wrong| *wrong)?);
    lab.push(row.target(Target::Absolute(0.0)));
    Ok(())
}

/// The answers of all eight bytes that the server of each run sent.
fn counts(
    lab: &mut Lab,
    case: &str,
    carrier: Carrier,
    in_flight: usize,
    (start, beyond): (u64, u64),
) -> Result<Vec<f64>, BenchError> {
    let (setup, serving) = (Setup::new(carrier), SeqServing::Direct { answers: Answers::Bursts, queues: 1 });
    let run = lab.run_length().min(RUN_MAX);
    let load = seq_runs::DirectLoad { clients: CLIENTS, in_flight, timed: false, start, beyond, run };
    lab.case(case, |lab| Ok(seq_runs::direct(lab, &setup, serving, &load)?.1 as f64))
}
