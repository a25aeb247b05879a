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

use super::transfer::{LINK_RATE, RECOVERIES, Transfer, Transferred};
use crate::rpc::rpc_loss::{KEPT, LOSSES};
use crate::{BenchError, Lab};

/// Virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(300);
const TIME_MIN: u64 = 10_000_000;
/// Minimum number of losses for a rate.
const LOSSES_MIN: u64 = 100;
/// Maximum number of packets in a case, for each second of the run length.
const PACKETS: f64 = 30e6;
/// The shape of the paper's column: the same share of the lossless rate, within this factor.
const SHAPE_FACTOR: f64 = 2.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(RECOVERIES.len() * (LOSSES.len() + 1));
    let (time, length) = (lab.virtual_time(TIME).max(TIME_MIN), lab.run_length());
    for (recovery, name) in RECOVERIES {
        let lossless = format!("{name}, no loss");
        let measure = |lab: &mut Lab, case: &str, loss: f64| {
            let packets_max = (PACKETS * length.as_secs_f64()) as u64;
            let losses_min = if loss > 0.0 { LOSSES_MIN } else { 0 };
            lab.simulate(case, |trial| {
                Transfer { recovery, faults: PacketFaults::loss(loss), time }.run(trial, losses_min, packets_max)
            })
        };
        let rates = |seen: &[Transferred]| seen.iter().map(|seen| seen.rate).collect::<Vec<f64>>();
        let name_of = |loss: f64| format!("{name}, loss {loss:.0e}");
        let cases: Vec<String> = LOSSES.into_iter().map(name_of).chain([lossless.clone()]).collect();
        if !lab.wants_any(cases.iter().map(String::as_str)) {
            continue;
        }
        // The targets of the others refer to it.
        let seen = measure(lab, &lossless, 0.0)?;
        let without_loss = spread(&seen, |seen| seen.rate)?.median;
        lab.push(RowBuilder::of_seeds(&lossless, Metric::Bandwidth, &rates(&seen))?);
        for loss in LOSSES {
            let case = name_of(loss);
            if !lab.wants(&case) {
                continue;
            }
            let seen = measure(lab, &case, loss)?;
            let losses: Vec<u64> = seen.iter().map(|seen| seen.losses).collect();
            let is_enough = losses.iter().all(|losses| *losses >= LOSSES_MIN);
            let row = RowBuilder::of_seeds(&case, Metric::Bandwidth, &rates(&seen))?;
            let paper = |case: &str| lab.paper(case, Metric::Bandwidth);
            let kept = KEPT.into_iter().find(|(at, _)| *at == loss && recovery == Recovery::Selective);
            let row = match (paper(&case).zip(paper(&lossless)), kept) {
                _ if !is_enough => row,
                (Some((figure, of_lossless)), _) => {
                    let like_paper = without_loss * figure / of_lossless;
                    row.within(like_paper / SHAPE_FACTOR..=(like_paper * SHAPE_FACTOR).min(LINK_RATE as f64))
                }
                (None, Some((_, factor))) => row.target(Target::CaseTimes { case: lossless.clone(), factor }),
                (None, None) => row,
            };
            lab.push(row);
            let too_few = if is_enough { "" } else { ", too few for a target" };
            lab.note(format!("{case}: {losses:?} packets were lost{too_few}."));
        }
    }
    Ok(())
}
