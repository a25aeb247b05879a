//! `rpc-latency`: Table 2. A 32 B echo, one outstanding, server and client each on its own core.

use dunlin_lab::measure::Percentiles;
use dunlin_lab::report::{Metric, Target};

use super::{paper, runs};
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};

type Figure = fn(&Percentiles) -> f64;

const PERCENTILES: [(Metric, Figure); 3] =
    [(Metric::LatencyP50, |p| p.p50), (Metric::LatencyP99, |p| p.p99), (Metric::LatencyP999, |p| p.p999)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len());
    for carrier in Carrier::ALL {
        let case = format!("{} 32 B", carrier.name());
        let measured = runs::latency_case(lab, &case, &Setup::new(carrier))?;
        for (metric, figure) in PERCENTILES {
            let mut row = runs::row(&case, metric, &measured, figure)?;
            if metric == Metric::LatencyP50 {
                row = row.paper(Some(paper::LATENCY)).target(target(carrier));
            }
            lab.push(row);
        }
    }
    Ok(())
}

fn target(carrier: Carrier) -> Target {
    match carrier {
        Carrier::Shm => Target::All(vec![Target::Absolute(600.0), Target::FloorTimes(2.5)]),
        Carrier::Udp => Target::FloorPlus(500.0),
    }
}
