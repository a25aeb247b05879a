//! `rpc-loss`: Table 4. 8 MiB requests while both sides lose a share of the packets they send.

use super::{paper, runs};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder};
use crate::roles::{Carrier, Setup};

const SIZE: usize = 8 << 20;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * paper::BANDWIDTH_BY_LOSS.len());
    for carrier in Carrier::ALL {
        for (loss, figure) in paper::BANDWIDTH_BY_LOSS {
            let case = format!("{} loss {loss:.0e}", carrier.name());
            let setup = Setup { credits: runs::LARGE_CREDITS, loss, ..Setup::new(carrier) };
            let rates = lab.case(&case, |lab| runs::bandwidth_without_floor(lab, &setup, SIZE))?;
            let row = RowBuilder::new(case, Metric::Bandwidth, spread(&rates, |bandwidth| *bandwidth)?);
            lab.push(row.paper(Some(figure)));
        }
    }
    Ok(())
}
