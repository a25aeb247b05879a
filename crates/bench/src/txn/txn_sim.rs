//! `txn-sim`: figures 8 and 9 of FaSST. TATP and SmallBank on 3 to 50 simulated nodes of one core each. The same code as
//! on real nodes, with the CPU costs that were measured just before: calls as they are calibrated, and the rest of a
//! transaction's processor time, divided by its messages, with each request. A node's rate should not depend on the
//! number of nodes.

use std::time::Duration;

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_net::Addr;
use dunlin_sim::CostModel;

use super::simulated::Nodes;
use super::workload::{Load, SmallBank, Tatp, Workload};
use super::{Coalescing, FEW_BELOW, TASKS, rate_shape, run_cluster};
use crate::datacenter::calibrate;
use crate::{BenchError, Lab, Trial};

/// Measured virtual time for each second of the run length, its minimum and its maximum.
const TIME: Duration = Duration::from_millis(1);
const TIME_MIN: u64 = 100_000;
const TIME_MAX: u64 = 4_000_000;
const SETTLING: u64 = 100_000;
/// Nodes. Replication needs three.
const NODES: [u32; 6] = [3, 6, 11, 20, 35, 50];
const FEW_NODES: [u32; 2] = [3, 4];
const REPLICAS: usize = 3;
/// Subscribers, and accounts, of each node.
const SUBSCRIBERS: u64 = 100;
const ACCOUNTS: u64 = 5_000;
const FEW_ACCOUNTS: u64 = 100;
/// Items of the real cluster whose costs are measured.
const ITEMS: u64 = 200_000;
/// How flat the rate of a node is to be.
const FLAT: f64 = 0.95;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let is_short = lab.run_length() < FEW_BELOW;
    let nodes: &[u32] = if is_short { &FEW_NODES } else { &NODES };
    lab.expect_simulations(2 * nodes.len());
    let at: Addr = Addr::Shm(super::roles::name(0)?);
    let cost = calibrate(&at)?;
    let time = lab.virtual_time(TIME).clamp(TIME_MIN, TIME_MAX);
    let items = lab.items(ITEMS);
    let tatp = Load::Tatp(Tatp { subscribers: items / 10, only: None });
    let charge = beyond_calls(lab, "TATP", tatp)?;
    sizes(lab, "TATP", nodes, (cost, charge, time), |nodes| Tatp { subscribers: SUBSCRIBERS * nodes, only: None })?;
    let charge = beyond_calls(lab, "SmallBank", Load::SmallBank(SmallBank { accounts: items }))?;
    let accounts = if is_short { FEW_ACCOUNTS } else { ACCOUNTS };
    sizes(lab, "SmallBank", nodes, (cost, charge, time), |nodes| SmallBank { accounts: accounts * nodes })
}

/// The processor time of a transaction beyond that of its calls, for each of its messages, in nanoseconds.
fn beyond_calls(lab: &mut Lab, name: &str, load: Load) -> Result<u64, BenchError> {
    let figures = run_cluster(lab, rate_shape(REPLICAS, Coalescing::All), load)?;
    let (messages, call) = (figures.messages_of_all(), 1e9 / figures.call_rate);
    let beyond = (1e9 / figures.rate / messages - call).max(0.0);
    lab.note(format!(
        "{name} on six real nodes: {:.3} M transactions and {:.2} M calls alone in a second of processor time, {messages:.2} \
         messages a transaction; so {beyond:.0} ns are charged with each request, beyond the calibrated packets.",
        figures.rate / 1e6,
        figures.call_rate / 1e6
    ));
    Ok(beyond as u64)
}

fn sizes<W: Workload>(
    lab: &mut Lab,
    name: &str,
    nodes: &[u32],
    (cost, charge, time): (CostModel, u64, u64),
    workload: impl Fn(u64) -> W,
) -> Result<(), BenchError> {
    let case = |nodes: u32| format!("{name}, {nodes} nodes: transactions of a node");
    for count in nodes {
        let workload = workload(u64::from(*count));
        let rates = lab.simulate(&case(*count), |trial| measure(trial, *count, (cost, charge, time), &workload))?;
        let mut row = RowBuilder::of_seeds(case(*count), Metric::Operations, &rates)?;
        if *count != nodes[0] {
            row = row.target(Target::CaseTimes { case: case(nodes[0]), factor: FLAT });
        }
        lab.push(row);
    }
    Ok(())
}

/// Transactions of a node in a second.
fn measure<W: Workload>(
    trial: Trial<'_>,
    count: u32,
    (cost, charge, time): (CostModel, u64, u64),
    workload: &W,
) -> Result<f64, BenchError> {
    let mut nodes = Nodes::start(trial, count, REPLICAS, cost, workload)?;
    nodes.charge(charge);
    for node in 0..count as usize {
        nodes.work(node, TASKS);
    }
    trial.run_for(&mut nodes.cluster, SETTLING)?;
    let before = nodes.done();
    trial.run_for(&mut nodes.cluster, time)?;
    let done = nodes.done() - before;
    // Tasks end, so that they do not keep their endpoints.
    nodes.all.iter().for_each(|node| node.tasks.end());
    trial.run_for(&mut nodes.cluster, SETTLING)?;
    nodes.check()?;
    Ok(done as f64 * 1e9 / time as f64 / f64::from(count))
}
