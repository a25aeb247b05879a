//! `sim-reorder`: 8 MB requests at 100 Gbit/s while one packet in a hundred is overtaken by others, with both kinds of
//! recovery. The paper has no such experiment: eRPC treats reordered packets as lost (section 5.3).

use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_sim::fault::PacketFaults;

use super::transfer::{RECOVERIES, Transfer};
use crate::{BenchError, Lab};

/// Virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(300);
const TIME_MIN: u64 = 10_000_000;
const REORDERED: f64 = 0.01;
/// Maximum delay of a packet: a few round trips, as by a detour over another path.
const LATE_MAX_NS: u64 = 10_000;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let none = PacketFaults::default();
    let reordering = PacketFaults { reorder: REORDERED, reorder_max_ns: LATE_MAX_NS, ..none };
    let orders = [("in order", none), ("1 % reordered", reordering)];
    lab.expect_simulations(RECOVERIES.len() * orders.len());
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    for (recovery, name) in RECOVERIES {
        for (order, faults) in orders {
            let case = format!("{name}, {order}");
            let rates = lab
                .simulate(&case, |trial| Transfer { recovery, faults, time }.run(trial, 0, 0).map(|seen| seen.rate))?;
            lab.push(RowBuilder::of_seeds(&case, Metric::Bandwidth, &rates)?);
        }
    }
    Ok(())
}
