//! `serve-handle`: the cost of a call through a handle, compared with a direct call by the endpoint's own thread. That
//! thread is also the server: on a machine with two cores a server, an owner and a caller cannot all poll.

use std::time::Duration;

use dunlin_lab::measure::{Gaps, Measured, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Carrier, Crossing, CrossingCalls};
use crate::{BenchError, Lab};

/// Pauses between calls: longer than an endpoint polls before it sleeps.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(2)];
/// Limit of a handle's cost beyond its floor, in nanoseconds: beyond a direct call while its endpoint is awake, and
/// beyond a counter that wakes the endpoint's task while it sleeps.
const HANDLE_NANOS_MORE: f64 = 2_000.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 4);
    for carrier in Carrier::ALL {
        let name = carrier.name();
        let case = format!("{name} handle beside the bare call, call after call");
        let measured = beside(lab, &case, carrier, (Crossing::Handle, Crossing::None), None)?;
        let p50 = runs::row(&case, Metric::LatencyP50, &measured, |p| p.p50)?;
        lab.push(p50.target(Target::FloorPlus(HANDLE_NANOS_MORE)));
        lab.push(runs::row(&case, Metric::LatencyP99, &measured, |p| p.p99)?);

        let case = format!("{name} handle beside two counters, after a pause");
        let measured = beside(lab, &case, carrier, (Crossing::Handle, Crossing::Counters), Some(pauses()))?;
        let p50 = runs::row(&case, Metric::LatencyP50, &measured, |p| p.p50)?;
        lab.push(p50.target(Target::FloorPlus(HANDLE_NANOS_MORE)));

        for (gaps, when) in [(None, "call after call"), (Some(pauses()), "after a pause")] {
            let case = format!("{name} hand-made channels, {when}");
            let p50 = lab.case(&case, |lab| calls(lab, carrier, Crossing::Channels, gaps.clone()))?;
            lab.push(RowBuilder::new(case, Metric::LatencyP50, spread(&p50, |p| p.p50)?));
        }
    }
    lab.note("the endpoint calls itself, so that owner and caller have a core each: with a server of its own, three threads would poll");
    Ok(())
}

fn pauses() -> Gaps {
    Gaps::between(PAUSES[0], PAUSES[1])
}

fn beside(
    lab: &mut Lab,
    case: &str,
    carrier: Carrier,
    (ours, floor): (Crossing, Crossing),
    gaps: Option<Gaps>,
) -> Result<dunlin_lab::measure::BesideFloor<Percentiles>, BenchError> {
    lab.case_beside_floor(
        case,
        |floor: &Percentiles| floor.p50,
        |lab| {
            let floor = calls(lab, carrier, floor, gaps.clone())?;
            Ok(Measured { floor, ours: calls(lab, carrier, ours, gaps.clone())? })
        },
    )
}

fn calls(lab: &Lab, carrier: Carrier, crossing: Crossing, gaps: Option<Gaps>) -> Result<Percentiles, BenchError> {
    let role = CrossingCalls { carrier, crossing, gaps, cores: lab.cores()?, run: lab.run_length() };
    lab.anywhere(role, lab.run_length())?.result()
}
