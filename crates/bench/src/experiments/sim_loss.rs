//! `sim-loss`: Table 4 in virtual time. 8 MB requests at 100 Gbit/s while packets are lost, with the paper's recovery (go-back-N after 5 ms)
//! and with selective recovery.

use std::time::Duration;

use dunlin_rpc::config::Recovery;
use dunlin_sim::fault::PacketFaults;

use super::paper;
use super::transfer::{RECOVERIES, Transfer};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};

/// Virtual time for each second of the run length, and the least of it.
const TIME: Duration = Duration::from_millis(300);
const TIME_MIN: u64 = 10_000_000;
/// What selective recovery keeps of the rate without loss, by loss rate.
const KEPT: [(f64, f64); 2] = [(1e-4, 0.9), (1e-3, 0.7)];
/// The shape of the paper's column: as much of the rate without loss as there, give or take this factor.
const SHAPE_FACTOR: f64 = 2.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(RECOVERIES.len() * (paper::BANDWIDTH_BY_LOSS.len() + 1));
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    for (recovery, name) in RECOVERIES {
        let lossless = format!("{name}, no loss");
        let mut measure = |case: &str, loss| {
            lab.simulate(case, |trial| Transfer { recovery, faults: PacketFaults::loss(loss), time }.run(trial))
        };
        let rates = measure(&lossless, 0.0)?;
        let without_loss = spread(&rates, |rate| *rate)?.median;
        let mut rows = vec![RowBuilder::of_seeds(&lossless, Metric::Bandwidth, &rates)?.paper(Some(paper::BANDWIDTH_8_MIB))];
        for (loss, figure) in paper::BANDWIDTH_BY_LOSS {
            let case = format!("{name}, loss {loss:.0e}");
            let mut row = RowBuilder::of_seeds(&case, Metric::Bandwidth, &measure(&case, loss)?)?;
            match recovery {
                Recovery::GoBackN => {
                    let like_paper = without_loss * figure.value / paper::BANDWIDTH_8_MIB.value;
                    row = row.paper(Some(figure)).within(like_paper / SHAPE_FACTOR..=like_paper * SHAPE_FACTOR);
                }
                Recovery::Selective => {
                    if let Some((_, factor)) = KEPT.into_iter().find(|(rate, _)| *rate == loss) {
                        row = row.target(Target::CaseTimes { case: lossless.clone(), factor });
                    }
                    row = row.paper(Some(figure));
                }
            }
            rows.push(row);
        }
        rows.into_iter().for_each(|row| lab.push(row));
    }
    Ok(())
}
