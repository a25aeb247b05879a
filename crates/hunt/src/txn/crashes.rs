//! Nodes that crash for good while transactions run: a new epoch, recovery, and the conditions that hold after it.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;
use std::time::Duration;

use dunlin_sim::fault::FaultId;
use dunlin_trial::Random;
use dunlin_txn::node::plan;
use dunlin_txn::{Configuration, NodeId, Outcome, TransactionId};

use super::harness::{Cluster, Failure, MILLISECOND};
use super::judge::{Done, Fate, History};
use crate::story::Story;

/// What a run has shown.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The run in numbers.
    pub story: Story,
    /// Transactions whose outcome was unknown at first.
    pub in_doubt: usize,
    /// Records of earlier epochs that recoveries found.
    pub recovered: usize,
}

impl Found {
    /// Judges the history of a cluster at rest.
    ///
    /// # Panics
    /// If it breaks a promise.
    pub fn judged(cluster: &Cluster, history: &History) -> Found {
        cluster.check_rest();
        history.judge();
        let mut hasher = DefaultHasher::new();
        history.done.iter().for_each(|done| format!("{done:?}").hash(&mut hasher));
        let story = Story::of(&cluster.datacenter, hasher, history.done.len() as u64);
        Found { story, in_doubt: 0, recovered: 0 }
    }
}

/// Fails a node, waits as long as its lease would take, and moves all others into the next epoch, one after the other.
pub fn fail_one(cluster: &mut Cluster, random: &mut Random, how: Failure, found: &Rc<Cell<usize>>) -> FaultId {
    let nodes: Vec<NodeId> = cluster.configuration.nodes.keys().copied().collect();
    let victim = *random.pick(&nodes).unwrap();
    let fault = cluster.fail(victim, how);
    cluster.run_for(random.between(100, 10_000) * MILLISECOND / 1000);
    next_epoch(cluster, random, &[victim], found);
    fault
}

/// Moves all nodes into the next epoch, one after the other, and lets one of them recover.
pub fn next_epoch(cluster: &mut Cluster, random: &mut Random, failed: &[NodeId], found: &Rc<Cell<usize>>) {
    let next = cluster.configuration.without(failed).unwrap();
    enter(cluster, random, next, found);
}

/// As the placer does it: without failed nodes, with new copies in place of lost ones, and with those complete that were
/// filled. Returns whether there is such an epoch.
pub fn next_placed_epoch(
    cluster: &mut Cluster,
    random: &mut Random,
    failed: &[NodeId],
    found: &Rc<Cell<usize>>,
) -> bool {
    let mut live = cluster.configuration.nodes.clone();
    live.retain(|node, _| !failed.contains(node));
    let filled = cluster.filled();
    let Some(next) = plan::next(&cluster.configuration, &live, &filled) else { return false };
    enter(cluster, random, next, found);
    for core in &cluster.cores {
        let client = core.client.clone();
        let rate = random.between(100_000, 10_000_000);
        core.spawn(async move { client.fill_copies(rate).await });
    }
    true
}

fn enter(cluster: &mut Cluster, random: &mut Random, next: Configuration, found: &Rc<Cell<usize>>) {
    let next = Rc::new(next);
    cluster.configuration = next.clone();
    let mut order: Vec<usize> = (0..cluster.cores.len()).collect();
    while !order.is_empty() {
        let at = order.swap_remove(random.index(order.len()));
        cluster.cores[at].reconfigure(&next);
        cluster.run_for(random.between(0, 200) * MILLISECOND / 1000);
    }
    let core = random.pick(&cluster.cores).unwrap().clone();
    let (epoch, found) = (next.epoch, found.clone());
    core.clone().spawn(async move {
        while core.client.epoch() == epoch {
            if let Ok(recovered) = core.client.recover().await {
                found.set(found.get() + recovered.transactions);
                return;
            }
            core.timers().sleep(Duration::from_micros(300)).await;
        }
    });
}

/// Transactions whose outcomes are requested, each with its place and what its client was told. Logs know nothing of
/// transactions without writes. Of the others, a few are requested although their clients know the outcome.
fn asked(done: &[Done]) -> Vec<(usize, Fate, TransactionId)> {
    let is_sample = |at: usize, done: &Done| !done.writes.is_empty() && at.is_multiple_of(16);
    let asked = done.iter().enumerate().filter(|(at, done)| done.fate == Fate::Unknown || is_sample(*at, done));
    asked.map(|(at, done)| (at, done.fate, done.name)).collect()
}

/// Learns the outcomes of transactions whose clients were lost, or did not know them. All other outcomes must agree
/// with what their clients were told.
pub fn ask_for_outcomes(cluster: &mut Cluster) -> usize {
    let (core, configuration) = (cluster.cores[0].clone(), cluster.configuration.clone());
    let unknown = core.history.borrow().done.iter().filter(|done| done.fate == Fate::Unknown).count();
    cluster.run_here(0, async move {
        let names = asked(&core.history.borrow().done);
        for (at, before, name) in names {
            let outcome = core.client.outcome(name).await.unwrap();
            let fate = match outcome {
                Outcome::Committed => Fate::Committed,
                Outcome::Aborted => Fate::Aborted,
                Outcome::InDoubt if name.epoch == core.client.epoch() => continue,
                Outcome::Forgotten if before != Fate::Unknown => continue,
                // All of its logs may have crashed.
                Outcome::Forgotten if configuration.may_have_lost_logs(name.epoch) => continue,
                other => panic!("after recovery, {name} is {other:?}"),
            };
            assert!(
                before == fate || before == Fate::Unknown,
                "{name} is {before:?} to its client, and {fate:?} to logs"
            );
            core.history.borrow_mut().done[at].fate = fate;
        }
    });
    unknown
}
