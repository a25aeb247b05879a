//! `rpc-workers`: section 3.2. Latency of quick calls alone, and beside calls whose handler waits 1 ms, on a worker thread and
//! in the event loop.

use std::time::Duration;

use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::measure::Percentiles;
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, Mode, Setup, SlowServer, WorkersClient};

/// How often the unloaded latency the loaded one may be.
const FACTOR: f64 = 2.0;
/// Slow calls outstanding where there are any.
const SLOW: usize = 1;
/// Time a server waits for its client to come and go.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 3);
    for carrier in Carrier::ALL {
        let alone = format!("{} quick calls alone", carrier.name());
        let target = Target::CaseTimes { case: alone.clone(), factor: FACTOR };
        measure(lab, &alone, (carrier, Mode::Worker, 0), None)?;
        let case = format!("{} beside 1 ms in a worker", carrier.name());
        measure(lab, &case, (carrier, Mode::Worker, SLOW), Some(target))?;
        let case = format!("{} beside 1 ms in the event loop", carrier.name());
        measure(lab, &case, (carrier, Mode::Dispatch, SLOW), None)?;
    }
    Ok(())
}

fn measure(
    lab: &mut Lab,
    case: &str,
    (carrier, mode, slow): (Carrier, Mode, usize),
    target: Option<Target>,
) -> Result<(), BenchError> {
    let setup = Setup::new(carrier);
    let measured = lab.case(case, |lab| {
        let server = SlowServer { setup: setup.clone(), mode, core: lab.cores()?.server };
        let mut server = lab.anywhere(server, lab.run_length() + CLIENT_SLACK)?;
        let client = WorkersClient { setup: setup.clone(), server: server.ready()?, slow, run: lab.run_length() };
        let percentiles: Percentiles = lab.client(client, lab.run_length())?.result()?;
        server.stop()?;
        Ok(percentiles)
    })?;
    lab.push(RowBuilder::new(case, Metric::LatencyP50, spread(&measured, |p| p.p50)?));
    let row = RowBuilder::new(case, Metric::LatencyP99, spread(&measured, |p| p.p99)?);
    lab.push(match target {
        Some(target) => row.target(target),
        None => row,
    });
    Ok(())
}
