//! The scenarios that a seed selects.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_sim::Fault;
use dunlin_trial::Random;
use dunlin_txn::{Limits, NodeId};

use super::crashes::{Found, ask_for_outcomes, fail_one, next_epoch, next_placed_epoch};
use super::harness::{Cluster, Failure, MILLISECOND, Shape, limits};
use super::work;

/// Random work while packets are lost, duplicated and reordered.
pub fn harmed_packets(seed: u64) -> Found {
    let mut cluster = Cluster::new(seed, Shape::draw(seed));
    cluster.harm_packets();
    let history = cluster.run(work::mixed);
    Found::judged(&cluster, &history)
}

/// The same while nodes stop for longer than their peers wait, and are not declared failed: when they resume, all work
/// continues.
pub fn paused_nodes(seed: u64) -> Found {
    let mut random = Random::new(seed ^ 0x9a05);
    let mut cluster = Cluster::new(seed, Shape::draw(seed));
    cluster.harm_packets();
    cluster.begin(work::mixed);
    for _ in 0..random.between(1, 2) {
        cluster.run_for(random.between(1, 4000) * MILLISECOND / 1000);
        let host = random.between(0, u64::from(cluster.shape.nodes) - 1) as u32;
        let pause = cluster.datacenter.inject(Fault::Pause { host }).unwrap();
        cluster.run_for(random.between(50, 400) * MILLISECOND);
        cluster.datacenter.lift(pause);
    }
    cluster.finish();
    Found::judged(&cluster, &cluster.take_history())
}

/// The same while nodes crash.
pub fn crashed_nodes(seed: u64) -> Found {
    crashed_nodes_with(seed, limits())
}

pub fn crashed_nodes_with(seed: u64, limits: Limits) -> Found {
    let mut random = Random::new(seed ^ 0xc4a5);
    let replicas = random.between(2, 3) as usize;
    let nodes = random.between(4, 5) as u32;
    let mut cluster = Cluster::new(seed, Shape { replicas, nodes, limits, ..Shape::draw(seed) });
    cluster.harm_packets();
    cluster.begin(work::mixed);
    let recovered = Rc::<Cell<usize>>::default();
    for _ in 0..random.between(1, replicas as u64 - 1) {
        cluster.run_for(random.between(1, 4000) * MILLISECOND / 1000);
        fail_one(&mut cluster, &mut random, Failure::Crash, &recovered);
    }
    cluster.finish();
    let in_doubt = ask_for_outcomes(&mut cluster);
    Found { in_doubt, recovered: recovered.get(), ..Found::judged(&cluster, &cluster.take_history()) }
}

/// Clients that are not members stop, are cut off or crash, and no epoch ends for them. Their locks are free soon, and
/// those that resume do no harm.
pub fn strangers_stopped(seed: u64) -> Found {
    let mut random = Random::new(seed ^ 0x57a6);
    let replicas = random.between(2, 3) as usize;
    let drawn = Shape::draw(seed);
    let workers = drawn.workers.max(4);
    let shape = Shape { replicas, workers, strangers: 2, lock_age: Duration::from_millis(50), ..drawn };
    let mut cluster = Cluster::new(seed, shape);
    cluster.harm_packets();
    cluster.begin(work::mixed);
    cluster.run_for(random.between(1, 3000) * MILLISECOND / 1000);
    let stranger = shape.nodes + random.between(1, 2) as u32;
    let host = stranger - 1;
    match random.between(0, 2) {
        0 => drop(cluster.fail(stranger, Failure::Crash)),
        how => {
            let fault = if how == 1 { Fault::Pause { host } } else { Fault::Partition { hosts: vec![host] } };
            let stopped = cluster.datacenter.inject(fault).unwrap();
            cluster.run_for(random.between(20, 4000) * MILLISECOND);
            cluster.datacenter.lift(stopped);
        }
    }
    cluster.finish();
    cluster.run_for(1000 * MILLISECOND);
    cluster.check_rest();
    let fenced = cluster.fenced();
    // The next epoch, in which all outcomes are known.
    let recovered = Rc::<Cell<usize>>::default();
    next_epoch(&mut cluster, &mut random, &[], &recovered);
    cluster.finish();
    let in_doubt = ask_for_outcomes(&mut cluster);
    assert_eq!(recovered.get(), 0, "seed {seed}: all was brought to its end before");
    Found { in_doubt, recovered: fenced, ..Found::judged(&cluster, &cluster.take_history()) }
}

/// A node restarts without its data, and that goes unnoticed for a while.
pub fn restarted_nodes(seed: u64) -> Found {
    let mut random = Random::new(seed ^ 0x4e57);
    let replicas = random.between(2, 3) as usize;
    let mut cluster = Cluster::new(seed, Shape { replicas, ..Shape::draw(seed) });
    cluster.begin(work::mixed);
    cluster.run_for(random.between(1, 4000) * MILLISECOND / 1000);
    let recovered = Rc::<Cell<usize>>::default();
    fail_one(&mut cluster, &mut random, Failure::Restart, &recovered);
    cluster.finish();
    let in_doubt = ask_for_outcomes(&mut cluster);
    Found { in_doubt, recovered: recovered.get(), ..Found::judged(&cluster, &cluster.take_history()) }
}

/// Nodes crash one after the other, and new copies are filled on others while work goes on: as many copies fail in turn
/// as there ever were. Some crash before the copies are complete.
pub fn refilled_copies(seed: u64) -> Found {
    let mut random = Random::new(seed ^ 0xf177);
    let replicas = random.between(2, 3) as usize;
    let shape = Shape { replicas, nodes: 5, transactions: 60, ..Shape::draw(seed) };
    let mut cluster = Cluster::new(seed, shape);
    cluster.harm_packets();
    cluster.begin(work::mixed);
    let (recovered, mut filled) = (Rc::<Cell<usize>>::default(), 0);
    for round in 0..3 {
        cluster.run_for(random.between(1, 4000) * MILLISECOND / 1000);
        let nodes: Vec<NodeId> = cluster.configuration.nodes.keys().copied().collect();
        let victim = *random.pick(&nodes).unwrap();
        cluster.fail(victim, Failure::Crash);
        cluster.run_for(random.between(100, 10_000) * MILLISECOND / 1000);
        assert!(next_placed_epoch(&mut cluster, &mut random, &[victim], &recovered), "seed {seed}: {round}");
        // Before two more copies of a partition may fail, there must be two.
        let is_early = round == 0 && replicas == 3 && random.chance(30);
        let end = cluster.datacenter.now() + 20_000 * MILLISECOND;
        while !is_early && !cluster.configuration.filling.is_empty() {
            assert!(cluster.datacenter.now() < end, "seed {seed}: copies are not filled");
            cluster.run_for(random.between(1, 30) * MILLISECOND);
            let complete = cluster.filled().len();
            if complete == cluster.configuration.filling.len() || (complete > 0 && random.chance(20)) {
                filled += complete;
                next_placed_epoch(&mut cluster, &mut random, &[], &recovered);
            }
        }
    }
    cluster.finish();
    ask_for_outcomes(&mut cluster);
    let mut history = cluster.take_history();
    history.settle_forgotten();
    Found { in_doubt: filled, recovered: recovered.get(), ..Found::judged(&cluster, &history) }
}

/// A node is cut off, the others go on without it, and it comes back uninformed: they refuse all writes of it and its
/// clients. Its reads may be stale here, where participants have no guard by the cluster manager's leases.
pub fn node_cut_off(seed: u64) -> Found {
    let mut random = Random::new(seed ^ 0xc07f);
    let replicas = random.between(2, 3) as usize;
    let shape = Shape { replicas, transactions: 40, writes_min: 1, ..Shape::draw(seed) };
    let mut cluster = Cluster::new(seed, shape);
    cluster.harm_packets();
    cluster.begin(work::mixed);
    cluster.run_for(random.between(1, 4000) * MILLISECOND / 1000);
    let recovered = Rc::<Cell<usize>>::default();
    let cut = fail_one(&mut cluster, &mut random, Failure::CutOff, &recovered);
    cluster.run_for(random.between(0, 300) * MILLISECOND);
    cluster.datacenter.lift(cut);
    cluster.finish();
    let in_doubt = ask_for_outcomes(&mut cluster);
    Found { in_doubt, recovered: recovered.get(), ..Found::judged(&cluster, &cluster.take_history()) }
}
