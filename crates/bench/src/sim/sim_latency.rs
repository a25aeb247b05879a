//! `sim-latency`: Table 2 on the simulated clusters. One client and one server under one switch, one 32 B call
//! outstanding.
//!
//! The presets and the cost model are composed of published parts (see `docs/simulation.md`). This experiment adds them
//! up with the real protocol, so it shows whether a round trip through the model has the right length.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};
use dunlin_rpc::{EndpointConfig, MsgBuf};
use dunlin_sim::{CostModel, Topology};

use crate::datacenter::{Cluster, SINK};
use crate::{BenchError, Lab, Trial};

const BYTES: usize = 32;
/// Virtual time for each second of the run length, and its minimum: a few calls.
const TIME: Duration = Duration::from_millis(100);
const TIME_MIN: u64 = 100_000;
/// Tolerated factors of the paper's figure.
const LIKE_PAPER: RangeInclusive<f64> = 0.85..=1.15;

type Column = Figure<Topology, Percentiles>;

const FIGURES: [Column; 2] = [
    Column::new(Metric::LatencyP50, |_, p| p.p50).like_paper(|_| Some(LIKE_PAPER)),
    Column::new(Metric::LatencyP99, |_, p| p.p99),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    let clusters = lab.topology().map_or_else(|| vec![Topology::cx5(), Topology::cx4()], |theirs| vec![theirs.clone()]);
    let cases = Cases::along("cluster", clusters, |topology| topology.name.clone()).with(" 32 B, same switch");
    lab.simulate_each(&cases, &FIGURES, |trial, topology| measure(trial, topology, time))
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
    Ok(latencies.borrow().percentiles()?)
}
