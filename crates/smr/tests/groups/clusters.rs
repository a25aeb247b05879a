//! All groups of a process belong to one cluster, whose first members all have the same number of groups.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_rpc::CallOptions;
use dunlin_smr::wire::request::Change;
use dunlin_smr::{Beginning, ClientError, ClusterId, Host, LogStore as _, MemoryLog, NodeConfig, NodeError};

use super::snapshots::first_piece;
use super::world::{ELECTION, InMemory, Sum, World, config, endpoint};

/// Returns the first group's log of a single-member cluster with two groups, and the cluster's number.
fn founded(network: &LoopbackNetwork, node: u32) -> (MemoryLog, ClusterId) {
    let config = NodeConfig { seed: Some(u64::from(node)), ..config() };
    let beginning = Beginning::First(vec![(1, Addr::Node(node))]);
    let endpoint = endpoint(network, node, 1);
    let groups = [(); 2].map(|()| (MemoryLog::new(), Sum::default()));
    let host = Host::start(&endpoint, config, groups.into(), beginning).unwrap();
    let node = host.node(0).unwrap();
    (node.with_log(Clone::clone), node.status().cluster.unwrap())
}

#[test]
fn groups_of_a_process_are_of_one_cluster() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let [(ours, our_number), (theirs, their_number)] = [50, 51].map(|node| founded(&network, node));
    let with = |log: &MemoryLog| (log.clone(), Sum::default());
    let server = endpoint(&network, 2, 2);
    let now = Rc::new(Cell::new(0));
    let clock = now.clone();
    let config = NodeConfig { id: 2, clock: Rc::new(move || clock.get()), ..config() };
    let refused = Host::start(&server, config.clone(), vec![with(&ours), with(&theirs)], Beginning::Join).err();
    assert!(
        matches!(refused, Some(NodeError::OtherCluster { ours, asked }) if (ours, asked) == (their_number, our_number)),
        "{refused:?}"
    );
    // The second group has not begun.
    let groups = vec![with(&ours), with(&MemoryLog::new())];
    let host = Host::start(&server, config, groups, Beginning::Join).unwrap();
    let client = endpoint(&network, 60, 3);
    for (number, is_taken) in [(their_number, false), (our_number, true)] {
        let mut work = Box::pin(async {
            let session = client.connect(&Addr::Node(2)).await.unwrap();
            let options = CallOptions::timeout(Duration::from_millis(20));
            session.call_with(dunlin_smr::wire::CHUNK, first_piece(number, 2, 1, 1, 100), options).await.is_ok()
        });
        let taken = loop {
            network.advance(Duration::from_micros(100));
            now.set(network.now());
            server.run_once();
            if let Some(taken) = client.poll_once(work.as_mut()) {
                break taken;
            }
        };
        assert_eq!(taken, is_taken, "a snapshot of cluster {number}");
    }
    assert!(host.failure().is_none() && ours.base().get_metadata().index > 0);
}

#[test]
fn first_members_have_the_same_number_of_groups() {
    let mut world = World::new(InMemory, 8, config());
    // Only the first has begun.
    [2, 3].into_iter().for_each(|id| world.kill(id));
    let first = world.processes[&1].host.node(0).unwrap().status().cluster;
    for (groups, cluster) in [(1, None), (8, first)] {
        world.groups = groups;
        world.start(2, Beginning::First(super::world::members()));
        world.turns(8 * ELECTION);
        assert_eq!(world.processes[&2].host.node(0).unwrap().status().cluster, cluster, "with {groups} groups");
        world.kill(2);
    }
}

/// Otherwise some of its groups would never get a snapshot, or messages of some groups would have no receiver. It
/// reports that and waits: anybody may send it a snapshot.
#[test]
fn who_joins_has_the_number_of_groups_of_its_cluster() {
    let mut world = World::new(InMemory, 8, config());
    world.all_lead();
    for (id, groups) in [(4, 4), (5, 16), (6, 8)] {
        world.groups = groups;
        world.start(id, Beginning::Join);
        let address = Addr::Node(id as u32).to_string();
        world.drive(world.client(0).change(Change::AddLearner { id, address })).unwrap();
        let host = world.processes[&id].host.clone();
        let status = || host.node(0).unwrap().status();
        world.until("it has a snapshot, or is told why not", |_| {
            status().other_groups.is_some() || status().applied > 0
        });
        world.turns(8 * ELECTION);
        let expected = (groups != 8).then_some(8);
        assert_eq!((host.failure(), status().other_groups, status().cluster.is_none()), (None, expected, groups != 8));
        world.kill(id);
    }
    world.groups = 8;
    world.all_lead();
}

/// It is asked again and again, at growing intervals.
#[test]
fn who_cannot_join_is_sent_few_pieces() {
    let mut world = World::new(InMemory, 8, config());
    world.all_lead();
    world.groups = 4;
    world.start(4, Beginning::Join);
    for group in 0..8 {
        let address = Addr::Node(4).to_string();
        world.drive(world.client(group).change(Change::AddLearner { id: 4, address })).unwrap();
    }
    let host = world.processes[&4].host.clone();
    world.turns(10 * ELECTION);
    let refused: u64 = host.nodes().map(|node| node.counters().bad).sum();
    assert!((4..=4 * 5).contains(&refused), "{refused} pieces of snapshots of 4 groups");
}

/// A resting leader hears from nobody, and a new one has heard from nobody yet: neither takes that for silence.
#[test]
fn who_is_there_is_not_moved_while_its_groups_rest() {
    let mut world = World::new(InMemory, 2, config());
    world.all_lead();
    let ask = |world: &World<InMemory>, id: u64| {
        world.drive(world.client(0).change(Change::Move { id, address: Addr::Node(50).to_string() }))
    };
    let stays = |world: &World<InMemory>, id: u64| {
        for _ in 0..20 {
            assert!(matches!(ask(world, id), Err(ClientError::Refused(why)) if why.contains("try again")));
            world.turns(ELECTION / 6);
        }
    };
    world.all_rest();
    let leader = world.leader(0).unwrap().1;
    let other = leader % 3 + 1;
    stays(&world, other);
    world.drive(world.client(0).transfer(6 - leader - other)).unwrap();
    world.until("another leads", |world| world.leader(0).is_some_and(|(_, now)| now != leader));
    stays(&world, other);
    world.all_rest();
    world.kill(other);
    world.until("it may move", |world| ask(world, other).is_ok());
}
