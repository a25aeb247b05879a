//! `kv-latency`: Figure 4.10 of Kalia's thesis (HERD): latency against throughput. Each row is a point of the curve,
//! with a number of operations in flight, each of which starts when another ends.
//!
//! HERD's 5 us is at 26 million operations per second of six server cores and 51 clients. No row here has that load, so
//! the figure is not shown.

use dunlin_lab::Figure;
use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, Target};

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS, KvRun};
use crate::rpc::roles::{Carrier, LatencyFloor};
use crate::rpc::runs::transports;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Operations in flight.
const IN_FLIGHT: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Required median of one operation at a time over shared memory, in nanoseconds.
const UNLOADED_MAX: f64 = 1_000.0;
/// Bytes of a bare ping-pong over UDP: the size of a response.
const PING_BYTES: usize = 64;

type Column = Figure<(Carrier, usize), KvRun>;

const FIGURES: [Column; 3] = [
    Column::new(Metric::Operations, |_, run| run.rate),
    Column::with_floor(Metric::LatencyP50, |_, run| run.p50)
        .floor_if(|(_, in_flight)| *in_flight == 1)
        .target(|place| (*place == (Carrier::Shm, 1)).then_some(Target::Absolute(UNLOADED_MAX))),
    Column::with_floor(Metric::LatencyP99, |_, run| run.p99).floor_if(|(_, in_flight)| *in_flight == 1),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = transports().by("in flight", IN_FLIGHT, |in_flight| format!("{in_flight} in flight"));
    // A bare ping-pong, then the load.
    lab.pair_each(
        &cases,
        &FIGURES,
        |floor| floor.p50,
        |lab, (carrier, in_flight)| {
            let (run, cores) = (lab.run_length(), lab.cores()?);
            let floor = LatencyFloor { carrier: *carrier, size: PING_BYTES, cores, run };
            let floor = lab.anywhere(floor, run)?.result()?;
            let floor = KvRun { rate: f64::NAN, p50: floor.p50, p99: floor.p99, hits: f64::NAN };
            let small = Ask::small(*carrier, lab.items(ITEMS), Mix::gets(HERD_GETS, Popularity::Uniform));
            Ok(Measured { ours: kv_runs::filled(lab, &Ask { in_flight: *in_flight, ..small })?, floor })
        },
    )
}
