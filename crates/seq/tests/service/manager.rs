//! The office under a cluster manager whose entry somebody changes: deletes it, restores an older copy, sets it to what
//! is no office, or leaves no room for it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Coordinator, Limits, Transaction, WatchmanConfig};
use dunlin_net::Addr;
use dunlin_net::loopback::LoopbackTransport;
use dunlin_seq::reserve::{
    Coordinated, CoordinatedConfig, CoordinatedOffice, Keeper, KeeperConfig, Reserve, ReserveError, Reserved,
};
use dunlin_seq::{Counter, RUN_MAX};
use dunlin_smr::{Beginning, Client as SmrClient, ClientConfig as SmrConfig, MemoryLog, Node, NodeConfig};
use futures::future::join;

use crate::net::{Net, TestEndpoint};

const REPLICA: u32 = 50;
const LEASE: Duration = Duration::from_millis(60);
const RANGE: u64 = 1000;
const PATH: &str = "/seq";

type Manager = Embedded<LoopbackTransport>;

fn start_manager(net: &mut Net) -> (Node<Machine, MemoryLog>, Watchman) {
    start_limited(net, Limits::default())
}

fn start_limited(net: &mut Net, limits: Limits) -> (Node<Machine, MemoryLog>, Watchman) {
    let (clock, endpoint, hearing) = (net.clone(), net.start(REPLICA), Hearing::default());
    let config = NodeConfig {
        tick: Duration::from_millis(1),
        heartbeat_ticks: 1,
        election_ticks: 5,
        seed: Some(1),
        clock: Rc::new(move || clock.now()),
        ..NodeConfig::new(1)
    };
    let beginning = Beginning::First(vec![(1, Addr::Node(REPLICA))]);
    let machine = Machine::new(limits, hearing.clone());
    let node = Node::start(&endpoint, config, MemoryLog::new(), machine, beginning).unwrap();
    let config = WatchmanConfig { failure_timeout: 2 * LEASE, look_every: Duration::from_millis(5) };
    let watchman = Watchman::start(&endpoint, &node, connect(&endpoint), hearing, config).unwrap();
    (node, watchman)
}

fn connect(endpoint: &TestEndpoint) -> SmrClient<LoopbackTransport> {
    let config = SmrConfig { timeout: LEASE / 4, attempt_timeout: LEASE / 10, ..SmrConfig::default() };
    SmrClient::new(endpoint, vec![(1, Addr::Node(REPLICA))], config)
}

/// A sequencer's reservations, with its membership.
fn reserve(endpoint: &TestEndpoint, member: u64) -> Coordinated<Manager> {
    let config = CoordinatedConfig { lease: LEASE, ..CoordinatedConfig::new(member) };
    let reserve = Coordinated::new(Embedded::new(connect(endpoint)), config).unwrap();
    endpoint.spawn(reserve.attend());
    reserve
}

/// The next numbers, as a keeper gets them.
async fn more(reserve: &mut Coordinated<Manager>) -> Reserved {
    for _ in 0..10 {
        match reserve.extend(RANGE).await {
            Ok(reserved) => return reserved,
            Err(ReserveError::Fenced) => return reserve.take(RANGE).await.unwrap(),
            Err(ReserveError::Failed(_) | ReserveError::Wrong(_)) => {}
        }
    }
    panic!("nothing is reserved");
}

/// What happens to the entry.
fn setbacks() -> [Transaction; 3] {
    let older = |epoch| CoordinatedOffice { epoch, reserved: RANGE }.encode();
    [Transaction::new().delete(PATH), Transaction::new().set(PATH, older(1)), Transaction::new().set(PATH, older(0))]
}

#[test]
fn a_holder_goes_on_above_what_it_had_when_the_entry_goes_back() {
    for setback in setbacks() {
        let mut net = Net::new();
        let _manager = start_manager(&mut net);
        let endpoint = net.endpoint();
        let (mut reserve, operator) = (reserve(&endpoint, 1), Embedded::new(connect(&endpoint)));
        net.run(async {
            let first = reserve.take(RANGE).await.unwrap();
            assert_eq!((first.epoch, first.range), (1, 0..RANGE));
            assert_eq!(reserve.extend(RANGE).await.unwrap().range, RANGE..2 * RANGE);
            operator.transact(&setback).await.unwrap();
            let after = more(&mut reserve).await;
            assert!(after.range.start >= 2 * RANGE && after.epoch >= 1, "{setback:?}: {after:?}");
            // And its next term has a later epoch.
            let retaken = reserve.take(RANGE).await.unwrap();
            assert!(retaken.range.start >= after.range.end && retaken.epoch > after.epoch, "{setback:?}: {retaken:?}");
        });
    }
}

/// The one that waited has seen how far the holder had come.
#[test]
fn a_standby_begins_above_the_holder_when_the_entry_goes_back() {
    for setback in setbacks() {
        let mut net = Net::new();
        let _manager = start_manager(&mut net);
        let endpoint = net.endpoint();
        let (mut holder, mut standby) = (reserve(&endpoint, 1), reserve(&endpoint, 2));
        let operator = Embedded::new(connect(&endpoint));
        net.run(async {
            holder.take(RANGE).await.unwrap();
            holder.extend(RANGE).await.unwrap();
            let ending = async {
                endpoint.timers().sleep(LEASE / 3).await;
                operator.transact(&setback).await.unwrap();
                holder.release().await.unwrap();
            };
            let (taken, ()) = join(standby.take(RANGE), ending).await;
            let taken = taken.unwrap();
            assert!(taken.range.start >= 2 * RANGE && taken.epoch == 2, "{setback:?}: {taken:?}");
        });
    }
}

/// It leaves the lease to others and the cluster manager in peace, and takes office as soon as the entry is set right.
#[test]
fn an_entry_that_is_no_office_is_waited_out() {
    for wrong in ["", "12N", "4294967296 5", "18446744073709551615 5"] {
        let set = |value| Transaction::new().set(PATH, value);
        assert_eq!(epochs_before_and_after(Limits::default(), &set(wrong), &set("7 5")), [0, 8], "{wrong:?}");
    }
}

/// Every later epoch would be below what it has seen.
#[test]
fn the_last_epoch_is_not_gone_back_from() {
    let set = |value| Transaction::new().set(PATH, value);
    assert_eq!(epochs_before_and_after(Limits::default(), &set("4294967295 5"), &set("7 5")), [0, 0]);
}

#[test]
fn a_cluster_manager_that_is_full_is_waited_out() {
    let limits = Limits { entries_max: 2, ..Limits::default() };
    let (fill, make_room) = (Transaction::new().set("/a", "").set("/b", ""), Transaction::new().delete("/a"));
    assert_eq!(epochs_before_and_after(limits, &fill, &make_room), [0, 1]);
}

/// The epochs of a sequencer that starts after one change, some time later, and some time after another change. As long
/// as it has none, it tries about once a second, and others can have the lease.
fn epochs_before_and_after(limits: Limits, first: &Transaction, then: &Transaction) -> [u64; 2] {
    let mut net = Net::new();
    let _manager = start_limited(&mut net, limits);
    let (endpoint, counter) = (net.endpoint(), Arc::new(Counter::idle()));
    let operator = Embedded::new(connect(&endpoint));
    net.run(async { operator.transact(first).await.unwrap() });
    let config = CoordinatedConfig { lease: LEASE, ..CoordinatedConfig::new(1) };
    let reserve = Coordinated::new(Embedded::new(connect(&endpoint)), config).unwrap();
    let config = KeeperConfig { range: 2 * u64::from(RUN_MAX), renew: LEASE / 6, ..KeeperConfig::default() };
    let keeper = Keeper::start(&endpoint, &counter, reserve, config);
    net.run(async {
        endpoint.timers().sleep(Duration::from_millis(2500)).await;
        let failures = keeper.stats().failures;
        assert!((2..=4).contains(&failures), "{failures} attempts");
        let before = counter.epoch();
        let other = operator.join(2, b"").await.unwrap();
        let lease = operator.acquire(&other, PATH, LEASE).await.unwrap();
        operator.release(&lease).await.unwrap();
        operator.transact(then).await.unwrap();
        endpoint.timers().sleep(Duration::from_millis(1100)).await;
        let after = counter.epoch();
        keeper.stop().await;
        // It has left, whatever it was waiting for: it can be started again at once.
        operator.join(1, b"").await.unwrap();
        [before, after]
    })
}
