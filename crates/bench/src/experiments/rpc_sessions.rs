//! `rpc-sessions`: section 6.3. Calls on random ones of 20,000 sessions between two endpoints, against 100 sessions, and what
//! memory an idle session takes.

use super::{paper, runs};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, SessionFigures, SessionsClient, Setup};

/// What a node of the paper has.
const MANY: usize = 20_000;
const FEW: usize = 100;
/// Requests in a batch, as in the paper.
const BATCH: usize = 3;
/// Share of the rate of few sessions that many must reach.
const RATE_SHARE: f64 = 0.85;
/// Bytes that an idle session may take.
const SESSION_BYTES_MAX: f64 = 1024.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 2);
    for carrier in Carrier::ALL {
        let few_case = format!("{} {FEW} sessions", carrier.name());
        let few = lab.case(&few_case, |lab| measure(lab, carrier, FEW))?;
        lab.push(RowBuilder::new(&few_case, Metric::Rate, spread(&few, |figures| figures.rate)?));

        let case = format!("{} {MANY} sessions", carrier.name());
        let many = lab.case(&case, |lab| measure(lab, carrier, MANY))?;
        lab.push(
            RowBuilder::new(&case, Metric::Rate, spread(&many, |figures| figures.rate)?)
                .paper(Some(paper::RATE_MANY_SESSIONS))
                .target(Target::CaseTimes { case: few_case, factor: RATE_SHARE }),
        );
        for (end, spread) in [
            ("client", spread(&many, |figures| figures.client_bytes)?),
            ("server", spread(&many, |figures| figures.server_bytes)?),
        ] {
            let row = RowBuilder::new(format!("{case}, {end}"), Metric::SessionMemory, spread);
            lab.push(row.target(Target::Absolute(SESSION_BYTES_MAX)));
        }
    }
    Ok(())
}

fn measure(lab: &Lab, carrier: Carrier, sessions: usize) -> Result<SessionFigures, BenchError> {
    // One credit each: what the paper recommends for very many sessions.
    let setup = Setup { credits: 1, sessions: MANY as u32 + 64, ..Setup::new(carrier) };
    runs::with_server(lab, &setup, |server| {
        let client = SessionsClient { setup: setup.clone(), server, sessions, load: runs::small_load(lab, BATCH) };
        lab.client(client, lab.run_length())?.result()
    })
}
