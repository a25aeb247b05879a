//! `rpc-wakeup`: beyond the paper, whose endpoints always poll. The cost of an idle endpoint, and the delay from
//! sending a packet until the handler of a sleeping endpoint runs.

use std::time::Duration;

use dunlin_lab::measure::{Gaps, Measured, Percentiles};
use dunlin_lab::peer::Peer;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Alarm, Carrier, IdleWatcher, Setup, Sleeper, WakeFloor};
use crate::{BenchError, Lab};

/// Pauses between packets: longer than an endpoint polls before it sleeps.
const GAPS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(2)];
/// Minimum time for which an idle endpoint is observed.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// Limit of the core share of an idle endpoint, in percent.
const IDLE_PERCENT_MAX: f64 = 1.0;
/// Limit of the additional time for waking a sleeping endpoint, compared with a bare wake-up, in nanoseconds.
const WAKE_NANOS_MORE: f64 = 5_000.0;
/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 2);
    for carrier in Carrier::ALL {
        let case = format!("{} idle, one session open", carrier.name());
        if lab.wants(&case) {
            let shares = lab.case(&case, |lab| idle_percent(lab, carrier))?;
            let row = RowBuilder::new(case, Metric::IdleShare, spread(&shares, |percent| *percent)?);
            lab.push(row.target(Target::Absolute(IDLE_PERCENT_MAX)));
        }

        let case = format!("{} from call to handler of a sleeping endpoint", carrier.name());
        if !lab.wants(&case) {
            continue;
        }
        let measured = lab.case_beside_floor(&case, |floor: &Percentiles| floor.p50, |lab| wake_up(lab, carrier))?;
        let p50 = runs::row(&case, Metric::LatencyP50, &measured, |p| p.p50)?;
        lab.push(p50.target(Target::FloorPlus(WAKE_NANOS_MORE)));
        lab.push(runs::row(&case, Metric::LatencyP99, &measured, |p| p.p99)?);
    }
    Ok(())
}

fn idle_percent(lab: &Lab, carrier: Carrier) -> Result<f64, BenchError> {
    let idle = lab.run_length().max(IDLE_MIN);
    let setup = Setup::new(carrier);
    let mut sleeper = lab.server(Sleeper { setup: setup.clone() }, idle + CLIENT_SLACK)?;
    let percent = lab.client(IdleWatcher { setup, server: sleeper.ready()?, idle }, idle)?.result()?;
    sleeper.stop()?;
    Ok(percent)
}

fn wake_up(lab: &Lab, carrier: Carrier) -> Result<Measured<Percentiles>, BenchError> {
    let (run, gaps) = (lab.run_length(), Gaps::between(GAPS[0], GAPS[1]));
    let floor = WakeFloor { carrier, gaps: gaps.clone(), cores: lab.cores()?, run };
    let floor = lab.anywhere(floor, run)?.result()?;

    let setup = Setup::new(carrier);
    let mut sleeper: Peer<Sleeper> = lab.server(Sleeper { setup: setup.clone() }, run + CLIENT_SLACK)?;
    let alarm = Alarm { setup, server: sleeper.ready()?, process: sleeper.id(), gaps, run };
    let ours = lab.client(alarm, run)?.result()?;
    let waits = sleeper.stop()?;
    // Its transport confirms this: before each call that found it asleep, it had gone to sleep.
    if waits < ours.count {
        return Err(BenchError::no_samples("a sleeping endpoint: it was awake"));
    }
    Ok(Measured { ours, floor })
}
