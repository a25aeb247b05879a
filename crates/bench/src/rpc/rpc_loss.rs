//! `rpc-loss`: 8 MiB requests while both sides lose a share of the packets they send, with the paper's recovery and
//! with selective recovery.
//!
//! The loss rates are those of Table 4. Timeouts, packets and credit returns differ from the paper, so its figures are
//! not shown here but in `sim-loss`, which has the paper's.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::{paper, runs};
use crate::rpc::roles::{Carrier, LossRecovery, Setup};
use crate::{BenchError, Lab};

const SIZE: usize = 8 << 20;
/// Nothing is lost in any run, but packets pass through the fault injector, like those of the other rows.
const NO_LOSS: f64 = 1e-15;
/// Required shares of the lossless bandwidth for selective recovery.
const KEPT: [(f64, f64); 2] = [(1e-4, 0.9), (1e-3, 0.7)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (1 + 2 * paper::BANDWIDTH_BY_LOSS.len()));
    for carrier in Carrier::ALL {
        let lossless = format!("{} no loss", carrier.name());
        measure(lab, &lossless, carrier, LossRecovery::Selective, NO_LOSS, None)?;
        for recovery in [LossRecovery::GoBackN, LossRecovery::Selective] {
            for (loss, _) in paper::BANDWIDTH_BY_LOSS {
                let case = format!("{} {} loss {loss:.0e}", carrier.name(), recovery.name());
                let kept = KEPT.iter().find(|(at, _)| *at == loss && recovery == LossRecovery::Selective);
                let target = kept.map(|(_, factor)| Target::CaseTimes { case: lossless.clone(), factor: *factor });
                measure(lab, &case, carrier, recovery, loss, target)?;
            }
        }
    }
    Ok(())
}

fn measure(
    lab: &mut Lab,
    case: &str,
    carrier: Carrier,
    recovery: LossRecovery,
    loss: f64,
    target: Option<Target>,
) -> Result<(), BenchError> {
    let setup = Setup { credits: runs::LARGE_CREDITS, recovery, loss, ..Setup::new(carrier) };
    let rates = lab.case(case, |lab| runs::bandwidth_without_floor(lab, &setup, SIZE))?;
    let mut row = RowBuilder::new(case, Metric::Bandwidth, spread(&rates, |bandwidth| *bandwidth)?);
    if let Some(target) = target {
        row = row.target(target);
    }
    lab.push(row);
    Ok(())
}
