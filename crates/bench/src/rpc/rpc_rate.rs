//! `rpc-rate`: Figure 4. 32 B echoes in batches, up to 60 in flight: two threads that are client and server to each
//! other, as in the paper, and one client thread with one server thread, for which the paper has no figure.

use dunlin_lab::report::{Metric, PaperFigure, RowBuilder, Target};
use dunlin_lab::spread;

use super::{paper, runs};
use crate::rpc::roles::{Carrier, Congestion, Factor, Setup, Symmetric};
use crate::{BenchError, Lab};

/// Requests in a batch, as in the paper.
const BATCHES: [usize; 3] = [1, 3, 11];
/// The batch size of the paper's section 6.2.
const PAPER_BATCH: usize = 3;
/// The batch size for comparison with UDP without batching.
const PLAIN_BATCH: usize = 11;
const PLAIN_CASE: &str = "udp B=11, no offload, no coalescing";

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (BATCHES.len() + CONTROLS.len()) + 1);
    for carrier in Carrier::ALL {
        symmetric(lab, carrier)?;
        for batch in BATCHES {
            let case = format!("{} B={batch}", carrier.name());
            let load = runs::small_load(lab, batch);
            let measured = runs::rate_case(lab, &case, &Setup::new(carrier), &load)?;
            let mut row = runs::row(&case, Metric::Rate, &measured, |rate| *rate)?;
            if let Some(target) = target(carrier, batch) {
                row = row.target(target);
            }
            lab.push(row);
        }
    }
    let plain = Setup { without: vec![Factor::Coalescing, Factor::Offload], ..Setup::new(Carrier::Udp) };
    let load = runs::small_load(lab, PLAIN_BATCH);
    let rates = lab.case(PLAIN_CASE, |lab| runs::rate_without_floor(lab, &plain, &load))?;
    lab.push(RowBuilder::new(PLAIN_CASE, Metric::Rate, spread(&rates, |rate| *rate)?));
    Ok(())
}

/// Congestion control of threads that are both client and server, with the paper's figure. Ours is the default across a
/// network; the paper's is Timely.
const CONTROLS: [(Congestion, &str, PaperFigure); 2] = [
    (Congestion::Swift, "congestion control", paper::RATE_B3),
    (Congestion::Off, "no congestion control", paper::RATE_B3_UNCONTROLLED),
];

/// The rate of requests of each of two threads, while it serves as many.
fn symmetric(lab: &mut Lab, carrier: Carrier) -> Result<(), BenchError> {
    for (congestion, control, figure) in CONTROLS {
        let case = format!("{} B=3, each thread client and server, {control}", carrier.name());
        let setup = Setup { congestion, ..Setup::new(carrier) };
        let rates = lab.case(&case, |lab| {
            let load = runs::small_load(lab, PAPER_BATCH);
            let role = |peer| Symmetric { setup: setup.clone(), peer, sessions: runs::SESSIONS, load: load.clone() };
            let mut first = lab.server(role(None), lab.run_length())?;
            let second = lab.client(role(Some(first.ready()?)), lab.run_length())?.result()?;
            Ok((first.stop()? + second) / 2.0)
        })?;
        lab.push(RowBuilder::new(case, Metric::Rate, spread(&rates, |rate| *rate)?).paper(Some(figure)));
    }
    Ok(())
}

fn target(carrier: Carrier, batch: usize) -> Option<Target> {
    match (carrier, batch) {
        (Carrier::Shm, 3) => Some(Target::Absolute(10e6)),
        (Carrier::Udp, PLAIN_BATCH) => {
            let five_times = Target::CaseTimes { case: PLAIN_CASE.into(), factor: 5.0 };
            Some(Target::All(vec![Target::Absolute(2e6), five_times]))
        }
        _ => None,
    }
}
