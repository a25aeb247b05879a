//! `sim-reorder`: 8 MB requests at 100 Gbit/s while one packet in a hundred is overtaken by others, with both kinds of
//! recovery. The paper has no such experiment: eRPC treats reordered packets as lost (section 5.3).

use std::time::Duration;

use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};
use dunlin_rpc::config::Recovery;
use dunlin_sim::fault::PacketFaults;

use super::transfer::{RECOVERIES, Transfer};
use crate::{BenchError, Lab};

/// Virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(300);
const TIME_MIN: u64 = 10_000_000;
/// Maximum delay of a packet: a few round trips, as by a detour over another path.
const LATE_MAX_NS: u64 = 10_000;
/// Shares of packets that are overtaken.
const ORDERS: [(f64, &str); 2] = [(0.0, "in order"), (0.01, "1 % reordered")];

type Place = ((Recovery, &'static str), (f64, &'static str));

const FIGURES: [Figure<Place, f64>; 1] = [Figure::new(Metric::Bandwidth, |_, rate| *rate)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    let cases = Cases::along("recovery", RECOVERIES, |(_, name)| *name).by("order", ORDERS, |(_, name)| *name);
    lab.simulate_each(&cases, &FIGURES, |trial, ((recovery, _), (reorder, _))| {
        let faults = PacketFaults { reorder: *reorder, reorder_max_ns: LATE_MAX_NS, ..PacketFaults::default() };
        Ok(Transfer { recovery: *recovery, faults, time }.run(trial, 0, 0)?.rate)
    })
}
