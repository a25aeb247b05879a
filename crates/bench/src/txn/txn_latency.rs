//! `txn-latency`: figure 10 of FaSST, the latency of TATP against its load, on six nodes; and each transaction of TATP
//! alone at low load, from a client on a processor of its own, beside a bare call of the same client to the same nodes.

use dunlin_lab::measure::{Measured, Percentiles};
use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};

use super::roles::{ClusterFigures, Shape};
use super::workload::{KINDS, Load, Tatp, UPDATE_LOCATION};
use super::{CALLS, Coalescing, FEW_BELOW, NODES, run_cluster};
use crate::{BenchError, Lab};

/// Tasks of each node, as in the paper from 1 to 19.
const TASKS: [usize; 5] = [1, 2, 5, 10, 19];
const SUBSCRIBERS: u64 = 60_000;
const ITEMS: u64 = 10;
/// Nodes beside the client of the second part: as many as there are copies.
const FEW_NODES: u32 = 3;
/// Required times of the bare call: a read of one key, and `UPDATE_LOCATION`.
const READ_TIMES: f64 = 1.5;
const UPDATE_TIMES: f64 = 8.0;

type Seen = (f64, Percentiles);

const LOADED: [Figure<usize, Seen>; 3] = [
    Figure::new(Metric::Operations, |_, (rate, _): &Seen| *rate),
    Figure::new(Metric::LatencyP50, |_, (_, latency): &Seen| latency.p50),
    Figure::new(Metric::LatencyP99, |_, (_, latency): &Seen| latency.p99),
];

const ALONE: [Figure<usize, Percentiles>; 2] = [
    Figure::with_floor(Metric::LatencyP50, |_, latency: &Percentiles| latency.p50).target(target),
    Figure::with_floor(Metric::LatencyP99, |_, latency: &Percentiles| latency.p99),
];

fn target(kind: &usize) -> Option<Target> {
    match *kind {
        0 => Some(Target::FloorTimes(READ_TIMES)),
        UPDATE_LOCATION => Some(Target::FloorTimes(UPDATE_TIMES)),
        _ => None,
    }
}

fn latency_of(figures: &ClusterFigures, kind: usize) -> Result<Percentiles, BenchError> {
    figures.latencies[kind].percentiles.ok_or(BenchError::no_samples("a latency measurement"))
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (is_short, subscribers) = (lab.run_length() < FEW_BELOW, lab.items(SUBSCRIBERS * ITEMS) / ITEMS);
    let cases = Cases::along("tasks", TASKS, |tasks| {
        format!("TATP, {tasks} {} a node", if *tasks == 1 { "task" } else { "tasks" })
    })
    .only(|tasks| *tasks == 1 || !is_short);
    lab.measure_each(&cases, &LOADED, |lab, tasks| {
        let shape = Shape {
            nodes: NODES,
            strangers: 0,
            processors: 2,
            replicas: 3,
            tasks: *tasks,
            calls: CALLS,
            is_timed: true,
            coalescing: Coalescing::All,
        };
        let figures = run_cluster(lab, shape, Load::Tatp(Tatp { subscribers, only: None }))?;
        Ok((figures.rate, latency_of(&figures, KINDS.len())?))
    })?;
    let cases = Cases::along("transaction", 0..KINDS.len(), |kind| format!("{} alone", KINDS[*kind]))
        .only(|kind| *kind == 0 || *kind == UPDATE_LOCATION || !is_short);
    lab.pair_each(
        &cases,
        &ALONE,
        |floor| floor.p50,
        |lab, kind| {
            let shape = Shape {
                nodes: FEW_NODES,
                strangers: 1,
                processors: 2,
                replicas: FEW_NODES as usize,
                tasks: 1,
                calls: 1,
                is_timed: true,
                coalescing: Coalescing::All,
            };
            let figures = run_cluster(lab, shape, Load::Tatp(Tatp { subscribers, only: Some(*kind) }))?;
            let floor = figures.call_latency.ok_or(BenchError::no_samples("a latency measurement"))?;
            Ok(Measured { ours: latency_of(&figures, *kind)?, floor })
        },
    )?;
    lab.note(
        "Against the load: six nodes on two processors, so a transaction waits while other nodes of its processor have their \
         turns; rates are per second of processor time of all nodes. FaSST's latencies are of 154 cores that each serve one \
         thread. Alone: a client that is no member on one processor, three nodes on the other, three copies. All keys are \
         remote. The floor is a call of 96 B of the same client, by the callback layer.",
    );
    Ok(())
}
