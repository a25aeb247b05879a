//! `rpc-rate`: Figure 4. 32 B echoes in batches, up to 60 in flight, one client thread and one server thread.

use super::{paper, runs};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, Factor, Setup};

/// Requests in a batch, as in the paper.
const BATCHES: [usize; 3] = [1, 3, 11];
/// The batch of the comparison with UDP that batches nothing.
const PLAIN_BATCH: usize = 11;
const PLAIN_CASE: &str = "udp B=11, no offload, no coalescing";

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * BATCHES.len() + 1);
    for carrier in Carrier::ALL {
        for batch in BATCHES {
            let case = format!("{} B={batch}", carrier.name());
            let load = runs::small_load(lab, batch);
            let measured = runs::rate_case(lab, &case, &Setup::new(carrier), &load)?;
            let mut row = runs::row(&case, Metric::Rate, &measured, |rate| *rate)?;
            if batch == 3 {
                row = row.paper(Some(paper::RATE_B3));
            }
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
