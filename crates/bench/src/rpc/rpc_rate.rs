//! `rpc-rate`: Figure 4. 32 B echoes in batches, up to 60 in flight: two threads that are client and server to each
//! other, as in the paper, and one client thread with one server thread, for which the paper has no figure.

use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};

use super::runs;
use crate::rpc::roles::{Carrier, Congestion, Factor, Setup, Symmetric};
use crate::{BenchError, Lab};

/// Requests in a batch, as in the paper.
const BATCHES: [usize; 3] = [1, 3, 11];
/// The batch size of the paper's section 6.2.
const PAPER_BATCH: usize = 3;
/// The batch size for comparison with UDP without batching.
const PLAIN_BATCH: usize = 11;
const PLAIN_CASE: &str = "udp B=11, no offload, no coalescing";

/// Congestion control of threads that are both client and server. Ours is the default across a network; the paper's is
/// Timely.
const CONTROLS: [(Congestion, &str); 2] =
    [(Congestion::Swift, "congestion control"), (Congestion::Off, "no congestion control")];

type Control = (Congestion, &'static str);

const SYMMETRIC: [Figure<(Carrier, Control), f64>; 1] = [Figure::new(Metric::Rate, |_, rate| *rate)];

type OneWay = Figure<(Carrier, usize), f64>;

const ONE_WAY: [OneWay; 1] = [OneWay::with_floor(Metric::Rate, |_, rate| *rate).target(|place| match place {
    (Carrier::Shm, 3) => Some(Target::Absolute(10e6)),
    (Carrier::Udp, PLAIN_BATCH) => {
        let five_times = Target::CaseTimes { case: PLAIN_CASE.into(), factor: 5.0 };
        Some(Target::All(vec![Target::Absolute(2e6), five_times]))
    }
    _ => None,
})];

const PLAIN: [Figure<&str, f64>; 1] = [Figure::new(Metric::Rate, |_, rate| *rate)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = runs::transports().with(" B=3, each thread client and server").by(
        "congestion control",
        CONTROLS,
        |(_, name)| *name,
    );
    lab.measure_each(&cases, &SYMMETRIC, |lab, (carrier, (congestion, _))| {
        symmetric(lab, Setup { congestion: *congestion, ..Setup::new(*carrier) })
    })?;
    let cases = runs::transports().joined(" ").by("batch", BATCHES, |batch| format!("B={batch}"));
    lab.pair_each(&cases, &ONE_WAY, runs::time_per_unit, |lab, (carrier, batch)| {
        runs::rate(lab, &Setup::new(*carrier), &runs::small_load(lab, *batch))
    })?;
    let plain = Setup { without: vec![Factor::Coalescing, Factor::Offload], ..Setup::new(Carrier::Udp) };
    lab.measure_each(&Cases::along("batching", [PLAIN_CASE], |case| *case), &PLAIN, |lab, _| {
        runs::rate_without_floor(lab, &plain, &runs::small_load(lab, PLAIN_BATCH))
    })
}

/// The rate of requests of each of two threads, while it serves as many.
fn symmetric(lab: &Lab, setup: Setup) -> Result<f64, BenchError> {
    let load = runs::small_load(lab, PAPER_BATCH);
    let role = |peer| Symmetric { setup: setup.clone(), peer, sessions: runs::SESSIONS, load: load.clone() };
    let mut first = lab.server(role(None), lab.run_length())?;
    let second = lab.client(role(Some(first.ready()?)), lab.run_length())?.result()?;
    Ok((first.stop()? + second) / 2.0)
}
