//! The experiments on transactions: FaSST's workloads (Kalia et al., OSDI 2016, section 6).
//!
//! The nodes share two processors, so rates are per second of processor time of all nodes together. Every run ends with
//! a check of all items: see [`workload::Workload::check`].

mod roles;
mod tasks;
mod txn_object_store;
mod workload;

use std::time::Duration;

use dunlin_lab::measure::Measured;
use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};
use crate::{BenchError, Lab};
use roles::{ClusterFigures, Shape, TxnCluster};
use workload::Load;

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[Experiment {
    name: "txn-object-store",
    paper: "FaSST Figure 7",
    about: "transactions on 1 and 4 keys of other nodes, per second of processor time, with 1 to 3 copies",
    run: txn_object_store::run,
}];

const ROLES: &[Entry] = &[Entry::of::<TxnCluster>()];

/// Nodes of a cluster whose rate is measured: as many on each processor, and more than a transaction has keys.
const NODES: u32 = 6;
/// Tasks of each node, and calls in flight for the floor.
const TASKS: usize = 20;
const CALLS: usize = 60;
/// Runs below this length measure nothing of interest; they have few cases.
const FEW_BELOW: Duration = Duration::from_millis(100);

/// One run: a rate that is compared with the floor's, and everything else that was measured.
#[derive(Debug, Clone)]
struct Sample {
    rate: f64,
    figures: ClusterFigures,
}

/// A cluster whose rate is measured.
fn rate_shape(replicas: usize) -> Shape {
    Shape { nodes: NODES, strangers: 0, replicas, tasks: TASKS, calls: CALLS, is_timed: false }
}

/// Runs a cluster once.
fn run_cluster(lab: &Lab, shape: Shape, load: Load) -> Result<ClusterFigures, BenchError> {
    let run = lab.run_length();
    let cluster = TxnCluster { shape, load, cores: lab.cores()?, run, floor_run: run };
    lab.anywhere(cluster, 2 * run + LOADING)?.result()
}

/// Time for loading the items, and for the check at the end.
const LOADING: Duration = Duration::from_secs(40);

/// The rate of a cluster beside its floor.
fn measure(lab: &Lab, shape: Shape, load: Load) -> Result<Measured<Sample>, BenchError> {
    let figures = run_cluster(lab, shape, load)?;
    let floor = Sample { rate: figures.floor(), figures: figures.clone() };
    Ok(Measured { ours: Sample { rate: figures.rate, figures }, floor })
}

/// The cost of a floor, for [`dunlin_lab::Lab::pair_each`].
fn cost(floor: &Sample) -> f64 {
    1.0 / floor.figures.call_rate
}

/// Share of runs of transactions that conflict, in percent.
fn conflicts(sample: &Sample) -> f64 {
    let ClusterFigures { locked, changed, .. } = sample.figures;
    100.0 * (locked + changed) as f64 / (sample.figures.transactions() + locked + changed) as f64
}
