//! `rpc-latency`: Table 2. A 32 B echo, one outstanding, server and client each on its own core.

use dunlin_lab::Figure;
use dunlin_lab::measure::Percentiles;
use dunlin_lab::report::{Metric, Target};

use super::runs;
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};

type Column = Figure<Carrier, Percentiles>;

const FIGURES: [Column; 3] = [
    Column::with_floor(Metric::LatencyP50, |_, p| p.p50).target(|carrier| match carrier {
        Carrier::Shm => Some(Target::All(vec![Target::Absolute(600.0), Target::FloorTimes(2.5)])),
        Carrier::Udp => Some(Target::FloorPlus(500.0)),
    }),
    Column::with_floor(Metric::LatencyP99, |_, p| p.p99),
    Column::with_floor(Metric::LatencyP999, |_, p| p.p999),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = runs::transports().with(" 32 B");
    lab.pair_each(&cases, &FIGURES, |floor| floor.p50, |lab, carrier| runs::latency(lab, &Setup::new(*carrier)))
}
