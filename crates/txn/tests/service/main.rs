//! The service in the simulated datacenter. Nodes crash, stand still and are cut off.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{Condition, Coordinator};
use dunlin_hunt::txn::service::{
    BANK, GRACE, MANAGER, MILLISECOND, NODES, Simulated, endpoint, manager_of, nodes_come_back, start_manager,
    start_node, turn,
};
use dunlin_sim::{CostModel, Datacenter, Fault, Topology};
use dunlin_trial::Random;
use dunlin_txn::TxnError;
use dunlin_txn::node::{Remote, RemoteConfig};

fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(few),
    };
    seeds.inspect(|seed| println!("seed {seed}"))
}

/// A client whose timeout stands for ever waits for its service for as long as that takes.
#[test]
fn a_client_may_wait_for_ever() {
    // They do not fit 64 bits of nanoseconds, or only just.
    let seconds = Duration::from_secs(u64::MAX / 1_000_000_000 + 1);
    for timeout in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1), seconds] {
        let topology = Topology::one_switch(BANK + 1, 25);
        let mut datacenter = Datacenter::new(&topology, CostModel::free(), 1).unwrap();
        let end = endpoint(datacenter.bind(BANK, 0).unwrap(), 7);
        let connected = Rc::<RefCell<Option<Result<(), String>>>>::default();
        let (result, endpoint) = (connected.clone(), end.clone());
        end.spawn(async move {
            let attempt_timeout = Duration::from_millis(50);
            let config = RemoteConfig { timeout, attempt_timeout, seed: Some(1), ..RemoteConfig::default() };
            let remote = Remote::connect(&endpoint, vec![Datacenter::addr(1, 0)], config).await;
            *result.borrow_mut() = Some(remote.map(|_| ()).map_err(|error| error.to_string()));
        });
        datacenter.spawn(BANK, 0, move || turn(&end)).unwrap();
        datacenter.run_until(1000 * MILLISECOND);
        assert_eq!(connected.take(), None, "{timeout:?} is over while the service does not run");
        start_manager(&mut datacenter, &Rc::default(), 2);
        let _stop = start_node(&mut datacenter, 1, GRACE, 3);
        datacenter.run_until(3000 * MILLISECOND);
        assert_eq!(connected.take(), Some(Ok(())), "{timeout:?}");
    }
}

/// As many nodes crash for good as there are copies, and then another one.
#[test]
fn a_bank_loses_nothing_while_nodes_crash() {
    for seed in seeds(4) {
        let mut random = Random::new(seed ^ 0xc4a5);
        let mut simulated = Simulated::start(seed, 2, GRACE);
        for left in [3, 2] {
            simulated.go_on(random.between(20, 100) as usize);
            let now = simulated.books.now();
            let nodes: Vec<u32> = now.nodes.keys().copied().collect();
            let host = *random.pick(&nodes).unwrap();
            simulated.datacenter.inject(Fault::Crash { host }).unwrap();
            simulated.go_on(random.between(20, 100) as usize);
            simulated.until_whole(left);
        }
        assert!(simulated.close().1 > 100);
    }
}

/// A node is stopped: it leaves, and the others need not wait until it has failed.
#[test]
fn a_node_that_is_stopped_leaves_first() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, GRACE);
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        simulated.stop(1 + seed as u32 % NODES);
        simulated.go_on(50);
        simulated.until_whole(NODES as usize - 1);
        assert_eq!(simulated.books.failures.get(), 0, "seed {seed}: it has left");
        simulated.close();
    }
}

/// A node stands still, or is cut off, for about as long as it takes until it is left out, and comes back: as the member
/// that it was, or as a new one.
#[test]
fn a_bank_loses_nothing_when_nodes_come_back() {
    for seed in seeds(6) {
        assert!(nodes_come_back(seed) > 100);
    }
}

/// Somebody writes over the configuration, and then mends it: no node drops what it has.
#[test]
fn a_configuration_that_cannot_be_read_costs_no_data() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, GRACE);
        simulated.go_on(50);
        let (manager, path) = (manager_of(&simulated.bank), "/txn/configuration");
        let is_mended = Rc::new(Cell::new(false));
        let (timers, told) = (simulated.bank.timers(), is_mended.clone());
        simulated.bank.spawn(async move {
            let before = manager.get(path).await.unwrap().unwrap();
            manager.set(path, b"txn 7", Condition::Always).await.unwrap();
            timers.sleep(Duration::from_millis(500)).await;
            manager.set(path, &before.value, Condition::Always).await.unwrap();
            told.set(true);
        });
        simulated.until("it is mended", |_| is_mended.get());
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        simulated.close();
    }
}

/// While nobody hears the nodes, none of them serves. Then all go on, whether or not they count as failed.
#[test]
fn nobody_serves_while_the_cluster_manager_is_cut_off() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 3, GRACE);
        simulated.go_on(50);
        let fault = simulated.datacenter.inject(Fault::Partition { hosts: vec![MANAGER] }).unwrap();
        // Three quarters of the failure timeout, and what is under way.
        simulated.run_for(200 * MILLISECOND);
        let before = simulated.books.done.borrow().len();
        simulated.run_for(300 * MILLISECOND);
        assert_eq!(simulated.books.done.borrow().len(), before, "seed {seed}: it has served without a lease");
        assert_eq!(simulated.books.failures.get(), u64::from(NODES), "seed {seed}: all have failed");
        simulated.datacenter.lift(fault);
        simulated.go_on(50);
        simulated.close();
    }
}

/// All nodes with copies of a partition fail. They are waited for: first they come back, then they do not.
#[test]
fn a_partition_is_given_up_only_after_the_grace() {
    let grace = Duration::from_secs(2);
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, grace);
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        let faults = simulated.fail_together(|host| Fault::Pause { host });
        simulated.run_for(300 * MILLISECOND);
        faults.into_iter().for_each(|fault| simulated.datacenter.lift(fault));
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        simulated.fail_together(|host| Fault::Crash { host });
        simulated.run_for(grace.as_nanos() as u64 - 100 * MILLISECOND);
        assert_eq!(simulated.books.now().lost().count(), 0, "seed {seed}: they are waited for");
        simulated.until("a partition is lost", |books| books.now().lost().count() > 0);
        simulated.until("that is said", |books| {
            let done = books.done.borrow();
            done.iter().any(|(_, done)| matches!(done, Err(TxnError::PartitionLost { .. })))
        });
    }
}
