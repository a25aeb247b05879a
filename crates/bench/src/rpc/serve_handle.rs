//! `serve-handle`: the cost of a call through a handle, compared with a direct call by the endpoint's own thread. That
//! thread is also the server: on a machine with two cores a server, an owner and a caller cannot all poll.

use std::time::Duration;

use dunlin_lab::Figure;
use dunlin_lab::measure::{Gaps, Measured, Percentiles};
use dunlin_lab::report::{Metric, Target};

use super::runs;
use crate::rpc::roles::{Carrier, Crossing, CrossingCalls};
use crate::{BenchError, Lab};

/// Pauses between calls: longer than an endpoint polls before it sleeps.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(2)];
/// Limit of a handle's cost beyond its floor, in nanoseconds: beyond a direct call while its endpoint is awake, and
/// beyond a counter that wakes the endpoint's task while it sleeps.
const HANDLE_NANOS_MORE: f64 = 2_000.0;

/// What is compared: a crossing with its floor.
type Beside = (Crossing, &'static str);

const BESIDE: [Beside; 2] = [
    (Crossing::None, "handle beside the bare call, call after call"),
    (Crossing::Counters, "handle beside two counters, after a pause"),
];

type Column = Figure<(Carrier, Beside), Percentiles>;

const HANDLES: [Column; 2] = [
    Column::with_floor(Metric::LatencyP50, |_, p| p.p50).target(|_| Some(Target::FloorPlus(HANDLE_NANOS_MORE))),
    Column::with_floor(Metric::LatencyP99, |_, p| p.p99).only_if(|(_, (floor, _))| *floor == Crossing::None),
];

/// Whether calls pause, and the name of that.
type When = (bool, &'static str);

const WHEN: [When; 2] = [(false, "call after call"), (true, "after a pause")];

const CHANNELS: [Figure<(Carrier, When), Percentiles>; 1] = [Figure::new(Metric::LatencyP50, |_, p| p.p50)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = runs::transports().joined(" ").by("floor", BESIDE, |(_, name)| *name);
    lab.pair_each(
        &cases,
        &HANDLES,
        |floor| floor.p50,
        |lab, (carrier, (floor, _))| {
            let pauses = *floor != Crossing::None;
            let floor = calls(lab, *carrier, *floor, pauses)?;
            Ok(Measured { floor, ours: calls(lab, *carrier, Crossing::Handle, pauses)? })
        },
    )?;
    let cases = runs::transports().with(" hand-made channels").by("calls", WHEN, |(_, when)| *when);
    lab.measure_each(&cases, &CHANNELS, |lab, (carrier, (pauses, _))| {
        calls(lab, *carrier, Crossing::Channels, *pauses)
    })?;
    lab.note("the endpoint calls itself, so that owner and caller have a core each: with a server of its own, three threads would poll");
    Ok(())
}

fn calls(lab: &Lab, carrier: Carrier, crossing: Crossing, pauses: bool) -> Result<Percentiles, BenchError> {
    let gaps = pauses.then(|| Gaps::between(PAUSES[0], PAUSES[1]));
    let role = CrossingCalls { carrier, crossing, gaps, cores: lab.cores()?, run: lab.run_length() };
    lab.anywhere(role, lab.run_length())?.result()
}
