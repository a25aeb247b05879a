//! `kv-latency`: Figure 4.10 of Kalia's thesis (HERD): latency against throughput. Each row is a point of the curve,
//! with a number of operations in flight, each of which starts when another ends.
//!
//! HERD's 5 us is at 26 million operations per second of six server cores and 51 clients. No row here has that load, so
//! the figure is not shown.

use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, Target};

use super::kv_runs::{self, Ask, HERD_GETS, ITEMS, KvRun};
use crate::rpc::roles::{Carrier, LatencyFloor};
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Operations in flight.
const IN_FLIGHT: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Required median of one operation at a time over shared memory, in nanoseconds.
const UNLOADED_MAX: f64 = 1_000.0;
/// Bytes of a bare ping-pong over UDP: the size of a response.
const PING_BYTES: usize = 64;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * IN_FLIGHT.len());
    for carrier in Carrier::ALL {
        for in_flight in IN_FLIGHT {
            point(lab, carrier, in_flight)?;
        }
    }
    Ok(())
}

fn point(lab: &mut Lab, carrier: Carrier, in_flight: usize) -> Result<(), BenchError> {
    let name = format!("{}, {in_flight} in flight", carrier.name());
    let items = lab.items(ITEMS);
    let ask = Ask { in_flight, ..Ask::small(carrier, items, Mix::gets(HERD_GETS, Popularity::Uniform)) };
    let runs = lab.case_beside_floor(&name, |floor: &KvRun| floor.p50, |lab| measure(lab, &ask))?;
    lab.push(kv_runs::plain_row(&name, Metric::Operations, &runs, |run| run.rate)?);
    let p50 = runs.spread(|run| run.p50)?;
    let p99 = runs.spread(|run| run.p99)?;
    let mut row = kv_runs::plain_row(&name, Metric::LatencyP50, &runs, |run| run.p50)?.repeated(runs.repeated());
    let mut tail = kv_runs::plain_row(&name, Metric::LatencyP99, &runs, |run| run.p99)?;
    if in_flight == 1 {
        (row, tail) = (row.floor(p50.floor), tail.floor(p99.floor));
        if carrier == Carrier::Shm {
            row = row.target(Target::Absolute(UNLOADED_MAX));
        }
    }
    lab.push(row);
    lab.push(tail);
    Ok(())
}

/// A bare ping-pong, then the load.
fn measure(lab: &Lab, ask: &Ask) -> Result<Measured<KvRun>, BenchError> {
    let floor = LatencyFloor { carrier: ask.carrier, size: PING_BYTES, cores: lab.cores()?, run: lab.run_length() };
    let floor = lab.anywhere(floor, lab.run_length())?.result()?;
    let floor = KvRun { rate: f64::NAN, p50: floor.p50, p99: floor.p99, hits: f64::NAN };
    Ok(Measured { ours: kv_runs::filled(lab, ask)?, floor })
}
