//! `seq-latency`: Figure 4.17 of Kalia's thesis. The latency of a number by Spec-S0, with answers in bursts and one by
//! one, from one in flight to 128, and by RPC with one caller. In the paper answers in bursts take up to 1 us longer.
//! Here a burst of one is sent like a single answer, so with one in flight both should be equal.

use dunlin_lab::Figure;
use dunlin_lab::measure::{Measured, Percentiles};
use dunlin_lab::report::Metric;

use super::seq_runs;
use crate::rpc::roles::{Carrier, LatencyFloor, Setup};
use crate::rpc::runs::transports;
use crate::seq::roles::{Answers, SeqCallers, SeqServing};
use crate::{BenchError, Lab};

/// Bytes of a request and of an answer of Spec-S0.
const BYTES: usize = dunlin_seq::direct::packet::SHORT_BYTES;
/// Calls in flight, besides one at a time.
const LOADS: [usize; 2] = [16, 128];

/// How a client gets its numbers: by RPC without answers of Spec-S0.
type Way = (Option<Answers>, &'static str);

const WAYS: [Way; 3] = [(None, "RPC"), SINGLE, BURSTS];
const SINGLE: Way = (Some(Answers::Single), "Spec-S0, an answer each");
const BURSTS: Way = (Some(Answers::Bursts), "Spec-S0, bursts");

const ONE_AT_A_TIME: [Figure<(Carrier, Way), Percentiles>; 2] = [
    Figure::with_floor(Metric::LatencyP50, |_, latency| latency.p50),
    Figure::with_floor(Metric::LatencyP99, |_, latency| latency.p99),
];

type Place = ((Carrier, Way), usize);
/// A rate, and the latencies.
type Seen = (f64, Percentiles);

const IN_FLIGHT: [Figure<Place, Seen>; 3] = [
    Figure::new(Metric::Operations, |_, (rate, _)| *rate),
    Figure::new(Metric::LatencyP50, |_, (_, latency)| latency.p50),
    Figure::new(Metric::LatencyP99, |_, (_, latency)| latency.p99),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = transports().joined(" ").by("way", WAYS, |(_, name)| *name).with(", one at a time");
    // Beside the bare ping-pong.
    lab.pair_each(
        &cases,
        &ONE_AT_A_TIME,
        |floor| floor.p50,
        |lab, (carrier, way)| {
            let floor = LatencyFloor { carrier: *carrier, size: BYTES, cores: lab.cores()?, run: lab.run_length() };
            let floor = lab.anywhere(floor, lab.run_length())?.result()?;
            Ok(Measured { ours: measure(lab, *carrier, *way, 1)?.1, floor })
        },
    )?;
    let cases = transports().joined(" ").by("way", [SINGLE, BURSTS], |(_, name)| *name).joined(", ").by(
        "in flight",
        LOADS,
        |in_flight| format!("{in_flight} in flight"),
    );
    lab.measure_each(&cases, &IN_FLIGHT, |lab, ((carrier, way), in_flight)| measure(lab, *carrier, *way, *in_flight))?;
    lab.note(
        "The thesis has up to 1 us more for answers in batches (Figure 4.17), at a NIC that is told of all of them at \
         once. That is an average over ten cores that share a counter, with one addition for a burst in both modes, as \
         clients are added. Here it is the median of one core and one client, and an answer each is an addition each. \
         Compare bursts with an answer each with the same number of calls in flight.",
    );
    Ok(())
}

/// The rate of one client, and its latencies.
fn measure(lab: &Lab, carrier: Carrier, (answers, _): Way, in_flight: usize) -> Result<Seen, BenchError> {
    let (setup, run) = (Setup::new(carrier), lab.run_length());
    let figures = match answers {
        None => {
            seq_runs::with_sequencer(lab, &setup, SeqServing::Rpc(Answers::Bursts), 0, |server| {
                let client = SeqCallers { setup: setup.clone(), server, callers: in_flight, timed: true, run };
                lab.client(client, run)?.result()
            })?
            .0
        }
        Some(answers) => {
            let load = seq_runs::DirectLoad { clients: 1, in_flight, timed: true, start: 0, beyond: 0, run };
            seq_runs::direct(lab, &setup, SeqServing::Direct { answers, queues: 1 }, &load)?.0
        }
    };
    let latency = figures.latency.ok_or(BenchError::no_samples("a latency measurement"))?;
    Ok((figures.rate, latency))
}
