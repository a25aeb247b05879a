//! The experiments on transactions: FaSST's workloads (Kalia et al., OSDI 2016, section 6).
//!
//! The nodes share two processors, so rates are per second of processor time of all nodes together. Every run ends with
//! a check of all items: see [`workload::Workload::check`].

mod roles;
mod simulated;
mod tasks;
mod txn_latency;
mod txn_object_store;
mod txn_recovery;
mod txn_sim;
mod txn_smallbank;
mod txn_tatp;
mod txn_ycsb;
mod workload;

use std::time::Duration;

use dunlin_lab::Cases;
use dunlin_lab::measure::Measured;
use dunlin_lab::peer::Entry;
use serde::{Deserialize, Serialize};

use crate::experiments::{Area, Experiment};
use crate::{BenchError, Lab};
use roles::{ClusterFigures, Shape, TxnCluster};
use workload::Load;

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "txn-object-store",
        paper: "FaSST Figure 7",
        about: "transactions on 1 and 4 keys of other nodes, per second of processor time, with 1 to 3 copies",
        run: txn_object_store::run,
    },
    Experiment {
        name: "txn-tatp",
        paper: "FaSST Figure 8",
        about: "TATP per second of processor time, with the standard's shares of successes",
        run: txn_tatp::run,
    },
    Experiment {
        name: "txn-smallbank",
        paper: "FaSST Figure 9",
        about: "SmallBank per second of processor time, 4 % of the accounts in 90 % of the transactions",
        run: txn_smallbank::run,
    },
    Experiment {
        name: "txn-ycsb",
        paper: "",
        about: "YCSB A, B and C in transactions of four items, per second of processor time",
        run: txn_ycsb::run,
    },
    Experiment {
        name: "txn-latency",
        paper: "FaSST Figure 10",
        about: "latency of TATP against its load, and of each transaction alone beside a bare call",
        run: txn_latency::run,
    },
    Experiment {
        name: "txn-sim",
        paper: "FaSST Figures 8 and 9",
        about: "TATP and SmallBank on 3 to 50 simulated nodes with measured costs: the rate of a node",
        run: txn_sim::run,
    },
    Experiment {
        name: "txn-recovery",
        paper: "FaSST section 5.1",
        about: "time without service of a killed node's partitions and of others, on simulated nodes",
        run: txn_recovery::run,
    },
];

const ROLES: &[Entry] = &[Entry::of::<TxnCluster>()];

/// Nodes of a cluster whose rate is measured: as many on each processor, and more than a transaction has keys.
const NODES: u32 = 6;
/// Tasks of each node, and calls in flight for the floor.
const TASKS: usize = 20;
const CALLS: usize = 60;
/// Runs below this length measure nothing of interest; they have few cases.
const FEW_BELOW: Duration = Duration::from_millis(100);

/// Required share of a floor.
const SHARE_OF_FLOOR: f64 = 0.5;

/// How rates are to be read.
const UNIT: &str = "Rates are per second of processor time of all nodes together: six nodes of one core each share two \
     processors, which turn their event loops one after the other. The floor is the rate if the calls of a transaction \
     were all of its work: the rate of calls of 96 B alone, on the same nodes just before, divided by the messages of a \
     transaction. FaSST's figures are per core of a machine.";

/// Which requests to one core form one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalescing {
    /// All of one phase.
    All,
    /// All but those that validate.
    NotValidation,
    /// None.
    Nothing,
}

impl Coalescing {
    const ALL: [Coalescing; 3] = [Coalescing::All, Coalescing::NotValidation, Coalescing::Nothing];

    /// What a case's name adds.
    fn name(self) -> &'static str {
        match self {
            Coalescing::All => "",
            Coalescing::NotValidation => ", a message for each validated key",
            Coalescing::Nothing => ", a message for each key",
        }
    }

    fn cases(name: &str) -> Cases<Coalescing> {
        Cases::along("coalescing", Coalescing::ALL, |it| format!("{name}{}", it.name()))
    }
}

/// One run: a rate that is compared with the floor's, and everything else that was measured.
#[derive(Debug, Clone)]
struct Sample {
    rate: f64,
    figures: ClusterFigures,
}

/// A cluster whose rate is measured.
fn rate_shape(replicas: usize, coalescing: Coalescing) -> Shape {
    Shape {
        nodes: NODES,
        strangers: 0,
        processors: 2,
        replicas,
        tasks: TASKS,
        calls: CALLS,
        is_timed: false,
        coalescing,
    }
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

impl Sample {
    /// Runs of transactions that conflict, of 100.
    fn of_100(&self, conflicts: u64) -> f64 {
        let ClusterFigures { locked, changed, .. } = self.figures;
        100.0 * conflicts as f64 / (self.figures.transactions() + locked + changed) as f64
    }

    /// Share of transactions that found what they were to read or change.
    fn success(&self) -> f64 {
        self.figures.successful.iter().sum::<u64>() as f64 / self.figures.transactions() as f64
    }
}

fn locked<A>(_: &A, sample: &Sample) -> f64 {
    sample.of_100(sample.figures.locked)
}

fn changed<A>(_: &A, sample: &Sample) -> f64 {
    sample.of_100(sample.figures.changed)
}
