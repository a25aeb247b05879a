//! `sim-latency`: Table 2 on the simulated clusters. One client and one server under one switch, one 32 B call
//! outstanding.
//!
//! The presets and the cost model are composed of published parts (see `docs/simulation.md`). This experiment adds them
//! up with the real protocol, so it shows whether a round trip through the model has the right length.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_rpc::{EndpointConfig, MsgBuf};
use dunlin_sim::{CostModel, Topology};

use super::paper;
use crate::datacenter::{Cluster, SINK};
use crate::{BenchError, Lab, Trial};

const BYTES: usize = 32;
/// Virtual time for each second of the run length, and its minimum: a few calls.
const TIME: Duration = Duration::from_millis(100);
const TIME_MIN: u64 = 100_000;
/// Tolerated deviation from the paper's figure.
const TOLERANCE: f64 = 0.15;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let clusters = [(Topology::cx5(), paper::LATENCY), (Topology::cx4(), paper::LATENCY_CX4)];
    lab.expect_simulations(clusters.len());
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    for (topology, figure) in clusters {
        let case = format!("{} 32 B, same switch", topology.name);
        let seen = lab.simulate(&case, |trial| measure(trial, &topology, time))?;
        let at = |figure: fn(&Percentiles) -> f64| seen.iter().map(figure).collect::<Vec<_>>();
        let bounds = figure.value * (1.0 - TOLERANCE)..=figure.value * (1.0 + TOLERANCE);
        lab.push(RowBuilder::of_seeds(&case, Metric::LatencyP50, &at(|p| p.p50))?.paper(Some(figure)).within(bounds));
        lab.push(RowBuilder::of_seeds(&case, Metric::LatencyP99, &at(|p| p.p99))?);
    }
    Ok(())
}

fn measure(trial: Trial<'_>, topology: &Topology, time: u64) -> Result<Percentiles, BenchError> {
    let mut cluster = Cluster::of_trial(trial, topology, CostModel::default())?;
    let server = cluster.join(0, 0, EndpointConfig::default())?;
    server.serve(BYTES, 0)?;
    let client = cluster.join(1, 0, EndpointConfig::default())?;
    let latencies = Rc::new(RefCell::new(Latencies::new()));
    let (connecting, clock, seen) = (client.connect(server.addr()), client.clock(), latencies.clone());
    client.spawn(async move {
        let session = connecting.await?;
        let mut request = MsgBuf::with_len(BYTES)?;
        loop {
            let start = clock.now();
            let reply = session.call(SINK, request).await.map_err(|failure| failure.error)?;
            seen.borrow_mut().record(clock.now() - start);
            request = reply.request;
        }
    });
    trial.run_for(&mut cluster, time)?;
    latencies.borrow().percentiles()
}
