//! A cluster of nodes that run transactions over shared memory: two threads, each on a processor of its own, turn the
//! event loops of half of the nodes each. So the nodes need no more processors than there are, and the time that they
//! use together is the time of the two threads.

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dunlin_lab::measure::{Cores, Latencies, Percentiles, pin, thread_cpu_nanos};
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::Addr;
use dunlin_txn::wire::Kind;
use dunlin_txn::{Configuration, Member, Plan};
use serde::{Deserialize, Serialize};

use super::node::{INCARNATION, Moment, Node, Remains, check, name};
use super::stage::{Stage, Step};
use crate::txn::Coalescing;
use crate::txn::workload::{Item, Load, Workload};
use crate::{BenchError, WARM_UP_SHARE};

/// Turns of all nodes of a thread between two looks at the step.
const TURNS_PER_LOOK: u32 = 32;
/// Time limit for loading, and for every other step that waits.
const LOADING_MAX: Duration = Duration::from_secs(60);
const STEP_MAX: Duration = Duration::from_secs(20);

/// The size of a cluster, and of its load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Nodes with a participant, on one core each.
    pub nodes: u32,
    /// Nodes that are only clients. If there are any, only they run transactions, and have a processor of their own.
    pub strangers: u32,
    /// Processors of the nodes: one or two.
    pub processors: usize,
    /// Copies of each partition.
    pub replicas: usize,
    /// Tasks of each node that runs transactions.
    pub tasks: usize,
    /// Calls in flight of each such node for the floor.
    pub calls: usize,
    /// Whether latencies are recorded.
    pub is_timed: bool,
    /// Which requests to one core form one message.
    pub coalescing: Coalescing,
}

/// A cluster, its load and its floor, until all is checked.
#[derive(Debug, Serialize, Deserialize)]
pub struct TxnCluster {
    /// Its size.
    pub shape: Shape,
    /// Its transactions.
    pub load: Load,
    /// The processors of its threads.
    pub cores: Cores,
    /// Length of the measured run.
    pub run: Duration,
    /// Length of the measured run of the floor.
    pub floor_run: Duration,
}

/// Latencies of transactions of one kind.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Latency {
    /// The percentiles, if there were any transactions.
    pub percentiles: Option<Percentiles>,
}

/// What a cluster measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterFigures {
    /// Calls per second of processor time, without transactions.
    pub call_rate: f64,
    /// The latency of such a call.
    pub call_latency: Option<Percentiles>,
    /// Transactions per second of processor time: those that ended as they should.
    pub rate: f64,
    /// Successful ones, by kind.
    pub successful: Vec<u64>,
    /// Those that did not find what they were to read or change, by kind.
    pub unsuccessful: Vec<u64>,
    /// Runs that conflicted with a lock.
    pub locked: u64,
    /// Runs whose validation failed.
    pub changed: u64,
    /// Messages of a transaction to other nodes, by kind: execute, validate, log, backups, primaries, abort.
    pub messages: [f64; 6],
    /// Share of requests of the execution phase that went to other nodes, in percent.
    pub remote: f64,
    /// Latencies by kind, and of all.
    pub latencies: Vec<Latency>,
    /// Processor time of the measured run, of all threads, in seconds.
    pub seconds: f64,
}

impl ClusterFigures {
    /// Transactions of the measured run.
    pub fn transactions(&self) -> u64 {
        self.successful.iter().chain(&self.unsuccessful).sum()
    }

    /// Messages of a transaction to other nodes.
    pub fn messages_of_all(&self) -> f64 {
        self.messages.iter().sum()
    }

    /// The rate if the calls of a transaction were all its work.
    pub fn floor(&self) -> f64 {
        self.call_rate / self.messages_of_all().max(1e-9)
    }
}

/// The kinds of messages that are counted.
const KINDS: [Kind; 6] =
    [Kind::Execute, Kind::Validate, Kind::Log, Kind::CommitBackup, Kind::CommitPrimary, Kind::Abort];

impl Role for TxnCluster {
    const NAME: &'static str = "nodes with transactions";
    type Ready = ();
    type Output = ClusterFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<ClusterFigures, BenchError> {
        match self.load {
            Load::ObjectStore(workload) => self.run_with(workload, control),
            Load::Tatp(workload) => self.run_with(workload, control),
            Load::SmallBank(workload) => self.run_with(workload, control),
            Load::Ycsb(workload) => self.run_with(workload, control),
        }
    }
}

/// The figures of one thread.
#[derive(Default)]
struct Seen {
    floor: [Mark; 2],
    work: [Mark; 2],
    call_latencies: Vec<Latencies>,
    latencies: Vec<Vec<Latencies>>,
    remains: Vec<Remains>,
}

/// A moment of one thread.
#[derive(Default)]
struct Mark {
    cpu: u64,
    nodes: Vec<Moment>,
}

/// The configuration of a cluster of such nodes.
pub(in crate::txn) fn configuration(
    addr: impl Fn(u32) -> Result<Addr, BenchError>,
    nodes: u32,
    replicas: usize,
    tables: Vec<dunlin_txn::Table>,
) -> Result<Configuration, BenchError> {
    let member = |node| Ok::<_, BenchError>((node, Member { incarnation: INCARNATION, cores: vec![addr(node)?] }));
    let nodes = (1..=nodes).map(member).collect::<Result<_, _>>()?;
    Ok(Plan { cluster: 1, nodes, partitions_per_core: 2, replicas, tables, seed: [7; 16] }.configure()?)
}

impl TxnCluster {
    fn run_with<W: Workload>(&self, workload: W, control: &Control<Self>) -> Result<ClusterFigures, BenchError> {
        let shape = self.shape;
        let mut threads: Vec<Vec<u32>> = vec![Vec::new(); shape.processors];
        for node in 1..=shape.nodes + shape.strangers {
            let thread = if shape.strangers == 0 { node % 2 } else { u32::from(node <= shape.nodes) };
            threads[thread as usize % shape.processors].push(node);
        }
        let stage = Arc::new(Stage::new(threads.len()));
        let cores = [self.cores.client, self.cores.server];
        let configuration =
            configuration(|node| name(node).map(Addr::Shm), shape.nodes, shape.replicas, workload.tables())?;
        let running: Vec<_> = threads
            .into_iter()
            .zip(cores)
            .map(|(nodes, core)| {
                let (stage, workload, configuration) = (stage.clone(), workload.clone(), configuration.clone());
                thread::spawn(move || {
                    let seen = pin(core)
                        .map_err(BenchError::from)
                        .and_then(|()| run_nodes(&nodes, shape, configuration, &workload, &stage));
                    seen.inspect_err(|error| stage.fail(error))
                })
            })
            .collect();
        let stopping = || control.stopping() || running.iter().any(thread::JoinHandle::is_finished);
        let steps = self.steps(&stage, stopping);
        let mut seen = Vec::new();
        for thread in running {
            seen.push(thread.join().map_err(|_| BenchError::Transactions("a thread panicked".to_owned()))??);
        }
        steps?;
        let loaded = weight_at_first(&workload);
        let figures = figures(&workload, &mut seen)?;
        control.live(Metric::Operations, figures.rate);
        check(&workload, loaded, seen.into_iter().flat_map(|seen| seen.remains).collect())?;
        Ok(figures)
    }

    fn steps(&self, stage: &Stage, stopping: impl Fn() -> bool) -> Result<(), BenchError> {
        let (run, floor_run) = (self.run, self.floor_run);
        for (step, time, limit) in [
            (Step::Start, Duration::ZERO, STEP_MAX),
            (Step::Load, Duration::ZERO, LOADING_MAX),
            (Step::Floor, floor_run.mul_f64(WARM_UP_SHARE), STEP_MAX),
            (Step::FloorMeasured, floor_run, STEP_MAX),
            (Step::FloorEnd, Duration::ZERO, STEP_MAX),
            (Step::Work, run.mul_f64(WARM_UP_SHARE), STEP_MAX),
            (Step::WorkMeasured, run, STEP_MAX),
            (Step::WorkEnd, Duration::ZERO, STEP_MAX),
            (Step::Settle, Duration::ZERO, STEP_MAX),
        ] {
            stage.complete(step, (time, limit), &stopping)?;
        }
        stage.enter(Step::Check)
    }
}

/// The weight of all items that are loaded.
fn weight_at_first<W: Workload>(workload: &W) -> i64 {
    let mut items: Vec<Item> = Vec::new();
    let mut weight = 0;
    for part in 0..workload.parts() {
        items.clear();
        workload.load(part, &mut items);
        weight += items.iter().map(|(table, key, value)| workload.weight(*table, key, value)).sum::<i64>();
    }
    weight
}

/// Turns the nodes of one thread until all is done.
fn run_nodes<W: Workload>(
    numbers: &[u32],
    shape: Shape,
    configuration: Configuration,
    workload: &W,
    stage: &Stage,
) -> Result<Seen, BenchError> {
    let configuration = Rc::new(configuration);
    let start = |number: &u32| Node::start(*number, shape, &configuration, workload);
    let nodes: Vec<Node<W>> = numbers.iter().map(start).collect::<Result<_, _>>()?;
    let mark = || Mark { cpu: thread_cpu_nanos(), nodes: nodes.iter().map(Node::moment).collect() };
    let (mut seen, mut current, mut has_arrived) = (Seen::default(), None, false);
    loop {
        for _ in 0..TURNS_PER_LOOK {
            nodes.iter().for_each(Node::turn);
        }
        let Some(step) = stage.step() else { return Ok(seen) };
        if current != Some(step) {
            (current, has_arrived) = (Some(step), false);
            match step {
                Step::FloorMeasured => seen.floor[0] = mark(),
                Step::FloorEnd => {
                    seen.floor[1] = mark();
                    seen.call_latencies = nodes.iter().filter_map(Node::echo_latencies).collect();
                }
                Step::WorkMeasured => seen.work[0] = mark(),
                Step::WorkEnd => {
                    seen.work[1] = mark();
                    seen.latencies = nodes.iter().map(Node::latencies).collect();
                }
                Step::Check => {
                    seen.remains = nodes.iter().map(Node::remains).collect();
                    return Ok(seen);
                }
                _ => {}
            }
            nodes.iter().try_for_each(|node| node.enter(step))?;
        }
        if let Some(error) = nodes.iter().find_map(Node::failure) {
            return Err(error);
        }
        if !has_arrived && nodes.iter().all(|node| node.is_done(step)) {
            has_arrived = true;
            stage.arrive();
        }
    }
}

/// The sum of a count over all nodes in a measured run.
fn total(marks: &[&[Mark; 2]], count: impl Fn(&Moment) -> u64) -> u64 {
    let of = |mark: &Mark| mark.nodes.iter().map(&count).sum::<u64>();
    marks.iter().map(|[before, after]| of(after) - of(before)).sum()
}

fn seconds(marks: &[&[Mark; 2]]) -> f64 {
    marks.iter().map(|[before, after]| (after.cpu - before.cpu) as f64 / 1e9).sum()
}

fn figures<W: Workload>(workload: &W, seen: &mut [Seen]) -> Result<ClusterFigures, BenchError> {
    let kinds = workload.kinds().len();
    let mut latencies: Vec<Latencies> = (0..=kinds).map(|_| Latencies::new()).collect();
    let mut calls = Latencies::new();
    for seen in &mut *seen {
        seen.call_latencies.iter().for_each(|more| calls.add(more));
        for of_node in &seen.latencies {
            for (kind, more) in of_node.iter().enumerate() {
                latencies[kind].add(more);
                latencies[kinds].add(more);
            }
        }
    }
    let floors: Vec<&[Mark; 2]> = seen.iter().map(|seen| &seen.floor).collect();
    let works: Vec<&[Mark; 2]> = seen.iter().map(|seen| &seen.work).collect();
    let by_kind = |count: fn(&Moment) -> &Vec<u64>| -> Vec<u64> {
        (0..kinds).map(|kind| total(&works, |moment| count(moment).get(kind).copied().unwrap_or(0))).collect()
    };
    let done = total(&works, |moment| moment.tally.all());
    if done == 0 {
        return Err(BenchError::no_samples("a cluster with transactions"));
    }
    let messages = KINDS.map(|kind| total(&works, |moment| moment.client.messages_of(kind)) as f64 / done as f64);
    let local = total(&works, |moment| moment.client.local_of(Kind::Execute)) as f64 / done as f64;
    let seconds_of_work = seconds(&works);
    Ok(ClusterFigures {
        call_rate: total(&floors, |moment| moment.echoes) as f64 / seconds(&floors),
        call_latency: calls.percentiles().ok(),
        rate: done as f64 / seconds_of_work,
        successful: by_kind(|moment| &moment.tally.successful),
        unsuccessful: by_kind(|moment| &moment.tally.unsuccessful),
        locked: total(&works, |moment| moment.client.locked),
        changed: total(&works, |moment| moment.client.changed),
        messages,
        remote: 100.0 * messages[0] / (messages[0] + local).max(1e-9),
        latencies: latencies.iter().map(|latencies| Latency { percentiles: latencies.percentiles().ok() }).collect(),
        seconds: seconds_of_work,
    })
}
