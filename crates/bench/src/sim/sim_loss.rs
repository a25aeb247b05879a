//! `sim-loss`: Table 4 in virtual time. 8 MB requests at 100 Gbit/s with packet loss, with the paper's recovery
//! (go-back-N after 5 ms) and with selective recovery. The paper's figures are for go-back-N, so they are shown only
//! with those rows.
//!
//! Each case continues until [`LOSSES_MIN`] packets are lost or [`PACKETS`] are sent for each second of the run length.
//! A row with fewer losses has no target; a note says how many each had. At the lowest loss rate that takes a run
//! length of half a minute.

use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;
use dunlin_rpc::config::Recovery;
use dunlin_sim::fault::PacketFaults;

use super::paper;
use super::transfer::{LINK_RATE, RECOVERIES, Transfer, Transferred};
use crate::{BenchError, Lab};

/// Virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(300);
const TIME_MIN: u64 = 10_000_000;
/// Minimum number of losses for a rate.
const LOSSES_MIN: u64 = 100;
/// Maximum number of packets in a case, for each second of the run length.
const PACKETS: f64 = 30e6;
/// Required shares of the lossless rate for selective recovery, by loss rate.
const KEPT: [(f64, f64); 2] = [(1e-4, 0.9), (1e-3, 0.7)];
/// The shape of the paper's column: the same share of the lossless rate, within this factor.
const SHAPE_FACTOR: f64 = 2.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(RECOVERIES.len() * (paper::BANDWIDTH_BY_LOSS.len() + 1));
    let (time, length) = (lab.virtual_time(TIME).max(TIME_MIN), lab.run_length());
    for (recovery, name) in RECOVERIES {
        let lossless = format!("{name}, no loss");
        let mut measure = |case: &str, loss: f64| {
            let packets_max = (PACKETS * length.as_secs_f64()) as u64;
            let losses_min = if loss > 0.0 { LOSSES_MIN } else { 0 };
            lab.simulate(case, |trial| {
                Transfer { recovery, faults: PacketFaults::loss(loss), time }.run(trial, losses_min, packets_max)
            })
        };
        let rates = |seen: &[Transferred]| seen.iter().map(|seen| seen.rate).collect::<Vec<f64>>();
        let seen = measure(&lossless, 0.0)?;
        let without_loss = spread(&seen, |seen| seen.rate)?.median;
        let row = RowBuilder::of_seeds(&lossless, Metric::Bandwidth, &rates(&seen))?;
        let is_papers = recovery == Recovery::GoBackN;
        let mut rows = vec![row.paper(is_papers.then_some(paper::BANDWIDTH_8_MIB))];
        let mut notes = Vec::new();
        for (loss, figure) in paper::BANDWIDTH_BY_LOSS {
            let case = format!("{name}, loss {loss:.0e}");
            let seen = measure(&case, loss)?;
            let losses: Vec<u64> = seen.iter().map(|seen| seen.losses).collect();
            let is_enough = losses.iter().all(|losses| *losses >= LOSSES_MIN);
            notes.push(format!(
                "{case}: {losses:?} packets were lost{}.",
                if is_enough { "" } else { ", too few for a target" }
            ));
            let mut row = RowBuilder::of_seeds(&case, Metric::Bandwidth, &rates(&seen))?;
            if is_papers {
                row = row.paper(Some(figure));
                let like_paper = without_loss * figure.value / paper::BANDWIDTH_8_MIB.value;
                if is_enough {
                    row = row.within(like_paper / SHAPE_FACTOR..=(like_paper * SHAPE_FACTOR).min(LINK_RATE as f64));
                }
            } else if let Some((_, factor)) = KEPT.into_iter().find(|(rate, _)| *rate == loss && is_enough) {
                row = row.target(Target::CaseTimes { case: lossless.clone(), factor });
            }
            rows.push(row);
        }
        rows.into_iter().for_each(|row| lab.push(row));
        notes.into_iter().for_each(|note| lab.note(note));
    }
    Ok(())
}
