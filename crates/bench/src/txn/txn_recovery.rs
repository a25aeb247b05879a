//! `txn-recovery`: how long a killed node's partitions, and the others, are not served. Simulated nodes under load; one
//! of them stops. When its membership lease has run out, all others enter the configuration without it, and one client
//! recovers. Probes read a key of each kind again and again; the longest time between two of their answers counts.
//!
//! Who notices the failure, and gives the configuration, is not part of it: the time of a lease stands for that.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_rpc::Timers;
use dunlin_sim::{CostModel, Fault, SimTransport, ThreadClock};
use dunlin_txn::{Client, Configuration, NodeId, TableId};

use super::FEW_BELOW;
use super::simulated::{Node, Nodes};
use super::workload::{KEY_BYTES, ObjectStore, key_of};
use crate::{BenchError, Lab, Trial};

const NODES: u32 = 5;
const REPLICAS: usize = 3;
const OBJECTS: u64 = 2_000;
const OBJECT_TABLE: TableId = TableId(0);
/// Tasks of each node under load, each with a transaction of three keys at a time.
const TASKS: usize = 4;
/// The membership lease.
const LEASE: Duration = Duration::from_millis(10);
/// Required time beyond the lease.
const BEYOND: Duration = Duration::from_millis(50);
/// Within this time, nobody notices that a partition was not served: a few transactions at this load.
const UNAFFECTED: Duration = Duration::from_millis(1);
/// CPU time of each request, in nanoseconds.
const REQUEST_NANOS: u64 = 500;
/// Kills.
const KILLS: u64 = 50;
const FEW_KILLS: u64 = 1;
const FEW_OBJECTS: u64 = 300;
/// Virtual time before the kill, and after the recovery.
const BEFORE: u64 = 2_000_000;
const AFTER: u64 = 5_000_000;
const RECOVERY_MAX: u64 = 1_000_000_000;
const STEP: u64 = 100_000;
/// Pause of a probe after each answer, and after each error.
const PAUSE: Duration = Duration::from_micros(20);

/// Gaps of one kill, in nanoseconds.
struct Gaps {
    affected: u64,
    others: u64,
    records: u64,
}

/// One of the gaps, in nanoseconds.
type GapOf = fn(&Gaps) -> u64;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (kills, objects) = if lab.run_length() < FEW_BELOW { (FEW_KILLS, FEW_OBJECTS) } else { (KILLS, OBJECTS) };
    lab.expect_simulations(1);
    let gaps = lab.simulate("kills", |trial| {
        (0..kills).map(|kill| measure(trial, kill, objects)).collect::<Result<Vec<_>, _>>()
    })?;
    let gaps: Vec<Gaps> = gaps.into_iter().flatten().collect();
    let figures: [(&str, Duration, GapOf); 2] = [
        ("partitions of the killed node", LEASE + BEYOND, |gaps| gaps.affected),
        ("other partitions", UNAFFECTED, |gaps| gaps.others),
    ];
    for (what, limit, of) in figures {
        let limit = limit.as_nanos() as f64;
        let mut latencies = Latencies::new();
        gaps.iter().for_each(|gaps| latencies.record(of(gaps)));
        for (metric, quantile) in [(Metric::LatencyP50, 0.5), (Metric::LatencyMax, 1.0)] {
            let case = format!("no service of {what}, {kills} kills");
            let row = RowBuilder::of_seeds(case, metric, &[latencies.quantile(quantile)])?;
            lab.push(row.target(Target::Absolute(limit)));
        }
    }
    let records: f64 = gaps.iter().map(|gaps| gaps.records as f64).sum::<f64>() / gaps.len().max(1) as f64;
    lab.note(format!(
        "{NODES} simulated nodes, {REPLICAS} copies, {objects} objects, {TASKS} tasks a node with O(3,2). The lease of {} ms is \
         part of each time: nobody may take the node for failed earlier. Recovery found {records:.1} transactions in the logs \
         on average. The configuration is given, not found: the cluster manager has no part in it.",
        LEASE.as_millis()
    ));
    Ok(())
}

/// The longest time between two answers for a key, since the probe began.
#[derive(Default)]
struct Probe {
    last: Cell<u64>,
    longest: Cell<u64>,
}

impl Probe {
    /// Reads a key again and again, each time in a transaction of its own.
    async fn watch(
        self: Rc<Self>,
        client: Client<SimTransport>,
        (clock, timers): (ThreadClock, Timers),
        key: [u8; KEY_BYTES],
        is_over: Rc<Cell<bool>>,
    ) -> Result<(), BenchError> {
        self.last.set(clock.now());
        while !is_over.get() {
            let mut tx = client.begin();
            let found = tx.get(OBJECT_TABLE, &key).await;
            if found.is_ok() && tx.commit().await.is_ok() {
                self.note(clock.now());
                self.last.set(clock.now());
            }
            timers.sleep(PAUSE).await;
        }
        // A key that is not served until the end has a gap until then.
        self.note(clock.now());
        Ok(())
    }

    fn note(&self, now: u64) {
        self.longest.set(self.longest.get().max(now - self.last.get()));
    }
}

/// A key whose primary was on the failed node, or one without a copy there; none of the prober's own.
fn find_key(configuration: &Configuration, failed: NodeId, prober: NodeId, affected: bool) -> [u8; KEY_BYTES] {
    let fits = |key: &[u8; KEY_BYTES]| {
        let copies = configuration.copies(configuration.partition_of(OBJECT_TABLE, key));
        let primary = copies[0].node;
        if affected { primary == failed } else { primary != prober && copies.iter().all(|copy| copy.node != failed) }
    };
    (0..FEW_OBJECTS).map(key_of).find(fits).unwrap_or_default()
}

fn measure(trial: Trial<'_>, kill: u64, objects: u64) -> Result<Gaps, BenchError> {
    let workload = ObjectStore { reads: 3, writes: 2, objects };
    let mut nodes = Nodes::start(trial, NODES, REPLICAS, CostModel::default(), &workload)?;
    nodes.charge(REQUEST_NANOS);
    (0..NODES as usize).for_each(|node| nodes.work(node, TASKS));
    let failed = 1 + (kill % u64::from(NODES)) as usize;
    let prober = failed % nodes.all.len();
    let probes: [Rc<Probe>; 2] = Default::default();
    let is_over = Rc::<Cell<bool>>::default();
    for (probe, affected) in probes.iter().zip([true, false]) {
        let Node { client, member, place, .. } = &nodes.all[prober];
        let key = find_key(&nodes.configuration, failed as NodeId, place.node, affected);
        let clocks = (member.clock(), member.endpoint().timers());
        member.spawn(probe.clone().watch(client.clone(), clocks, key, is_over.clone()));
    }
    // Kills at different moments of the transactions.
    trial.run_for(&mut nodes.cluster, BEFORE + kill * 7_919)?;
    nodes.check()?;
    nodes.cluster.datacenter().inject(Fault::Crash { host: failed as u32 - 1 })?;
    trial.run_for(&mut nodes.cluster, LEASE.as_nanos() as u64)?;
    let next = Rc::new(nodes.configuration.without(&[failed as NodeId])?);
    let left = || nodes.all.iter().filter(|node| node.place.node != failed as NodeId);
    for node in left() {
        let entered = node.participant.borrow_mut().reconfigure(next.clone());
        entered.map_err(|why| BenchError::Transactions(why.to_string()))?;
        node.client.reconfigure(next.clone());
    }
    let recovered = Rc::<Cell<Option<u64>>>::default();
    let (client, timers, found) =
        (nodes.all[prober].client.clone(), nodes.all[prober].member.endpoint().timers(), recovered.clone());
    nodes.all[prober].member.spawn(async move {
        loop {
            match client.recover().await {
                Ok(done) => {
                    found.set(Some(done.transactions as u64));
                    return Ok(());
                }
                Err(_) => timers.sleep(PAUSE).await,
            }
        }
    });
    let is_recovered = || recovered.get().is_some();
    trial.run_until(&mut nodes.cluster, (STEP, RECOVERY_MAX), "the cluster has not recovered", is_recovered)?;
    trial.run_for(&mut nodes.cluster, AFTER)?;
    is_over.set(true);
    nodes.all.iter().for_each(|node| node.tasks.end());
    trial.run_for(&mut nodes.cluster, AFTER)?;
    let [affected, others] = probes.map(|probe| probe.longest.get());
    Ok(Gaps { affected, others, records: recovered.get().unwrap_or(0) })
}
