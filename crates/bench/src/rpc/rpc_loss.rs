//! `rpc-loss`: 8 MiB requests while both sides lose a share of the packets they send, with the paper's recovery and
//! with selective recovery.
//!
//! The loss rates are those of Table 4. Timeouts, packets and credit returns differ from the paper, so its figures are
//! not shown here but in `sim-loss`, which has the paper's.

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use super::runs;
use crate::rpc::roles::{Carrier, LossRecovery, Setup};
use crate::{BenchError, Lab};

const SIZE: usize = 8 << 20;
/// The loss rates of Table 4.
pub(crate) const LOSSES: [f64; 5] = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3];
/// Nothing is lost in any run, but packets pass through the fault injector, like those of the other rows.
const NO_LOSS: f64 = 1e-15;
/// Required shares of the lossless bandwidth for selective recovery.
pub(crate) const KEPT: [(f64, f64); 2] = [(1e-4, 0.9), (1e-3, 0.7)];

type Place = ((Carrier, LossRecovery), f64);

type Column = Figure<Place, f64>;

const FIGURES: [Column; 1] =
    [Column::new(Metric::Bandwidth, |_, bandwidth| *bandwidth).target(|((carrier, recovery), loss)| {
        let kept = KEPT.iter().find(|(at, _)| at == loss && *recovery == LossRecovery::Selective);
        kept.map(|(_, factor)| Target::CaseTimes { case: format!("{} no loss", carrier.name()), factor: *factor })
    })];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let lossless = runs::transports().joined("").by("recovery", [LossRecovery::Selective], |_| "").by(
        "loss",
        [NO_LOSS],
        |_| " no loss",
    );
    let lossy = runs::transports()
        .joined(" ")
        .by("recovery", [LossRecovery::GoBackN, LossRecovery::Selective], |recovery| recovery.name())
        .by("loss", LOSSES, |loss| format!("loss {loss:.0e}"));
    lab.measure_each(&lossless.and(lossy), &FIGURES, |lab, ((carrier, recovery), loss)| {
        let credits = runs::LARGE_CREDITS;
        let setup = Setup { credits, recovery: *recovery, loss: *loss, ..Setup::new(*carrier) };
        runs::bandwidth_without_floor(lab, &setup, SIZE)
    })
}
