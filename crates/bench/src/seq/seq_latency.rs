//! `seq-latency`: Figure 4.17 of Kalia's thesis. The latency of a number by Spec-S0, with answers in bursts and one by
//! one, from one in flight to 128, and by RPC with one caller. In the paper answers in bursts take up to 1 us longer.
//! Here a burst of one is sent like a single answer, so with one in flight both should be equal.

use dunlin_lab::measure::{Measured, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_lab::spread;

use super::seq_runs;
use crate::rpc::roles::{Carrier, LatencyFloor, Setup};
use crate::rpc::runs;
use crate::seq::roles::{Answers, NumberFigures, SeqCallers, SeqServing};
use crate::{BenchError, Lab};

/// Bytes of a request and of an answer of Spec-S0.
const BYTES: usize = dunlin_seq::direct::packet::SHORT_BYTES;
/// Calls in flight, besides one at a time.
const LOADS: [usize; 2] = [16, 128];

const ANSWERS: [(Answers, &str); 2] = [(Answers::Single, "an answer each"), (Answers::Bursts, "bursts")];

type Figure = fn(&Percentiles) -> f64;

const PERCENTILES: [(Metric, Figure); 2] = [(Metric::LatencyP50, |p| p.p50), (Metric::LatencyP99, |p| p.p99)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (1 + ANSWERS.len() * (1 + LOADS.len())));
    for carrier in Carrier::ALL {
        let name = carrier.name();
        let setup = Setup::new(carrier);
        one_at_a_time(lab, &format!("{name} RPC, one at a time"), carrier, |lab| {
            seq_runs::with_sequencer(lab, &setup, SeqServing::Rpc(Answers::Bursts), 0, |server| {
                let run = lab.run_length();
                let client = SeqCallers { setup: setup.clone(), server, callers: 1, timed: true, run };
                lab.client(client, run)?.result()
            })
        })?;
        for (answers, what) in ANSWERS {
            one_at_a_time(lab, &format!("{name} Spec-S0, {what}, one at a time"), carrier, |lab| {
                direct(lab, &setup, answers, 1)
            })?;
        }
        for in_flight in LOADS {
            for (answers, what) in ANSWERS {
                let case = format!("{name} Spec-S0, {what}, {in_flight} in flight");
                let measured = lab.case(&case, |lab| {
                    let figures = direct(lab, &setup, answers, in_flight)?;
                    Ok((figures.rate, latency(&figures)?))
                })?;
                lab.push(RowBuilder::new(&case, Metric::Operations, spread(&measured, |(rate, _)| *rate)?));
                for (metric, figure) in PERCENTILES {
                    lab.push(RowBuilder::new(&case, metric, spread(&measured, |(_, latency)| figure(latency))?));
                }
            }
        }
    }
    lab.note(
        "The thesis has up to 1 us more for answers in batches (Figure 4.17), at a NIC that is told of all of them at \
         once. Compare bursts with an answer each with the same number of calls in flight.",
    );
    Ok(())
}

fn direct(lab: &Lab, setup: &Setup, answers: Answers, in_flight: usize) -> Result<NumberFigures, BenchError> {
    let load = seq_runs::DirectLoad { clients: 1, in_flight, timed: true, start: 0, beyond: 0, run: lab.run_length() };
    seq_runs::direct(lab, setup, SeqServing::Direct { answers, queues: 1 }, &load)
}

fn latency(figures: &NumberFigures) -> Result<Percentiles, BenchError> {
    figures.latency.ok_or(BenchError::no_samples("a latency measurement"))
}

/// A case beside the bare ping-pong.
fn one_at_a_time(
    lab: &mut Lab,
    case: &str,
    carrier: Carrier,
    measure: impl Fn(&Lab) -> Result<NumberFigures, BenchError>,
) -> Result<(), BenchError> {
    let measured = lab.case_beside_floor(
        case,
        |floor: &Percentiles| floor.p50,
        |lab| {
            let floor = LatencyFloor { carrier, size: BYTES, cores: lab.cores()?, run: lab.run_length() };
            let floor = lab.anywhere(floor, lab.run_length())?.result()?;
            Ok(Measured { ours: latency(&measure(lab)?)?, floor })
        },
    )?;
    for (metric, figure) in PERCENTILES {
        lab.push(runs::row(case, metric, &measured, figure)?);
    }
    Ok(())
}
