//! Clusters that contact each other by mistake: an address is in the lists of both, or was reused.

use dunlin_net::Addr;
use dunlin_smr::kv::{Command, Condition};
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::{Foreign, Role, Status};
use dunlin_smr::{Beginning, Client, ClientConfig, ClientError, ClusterId, MemoryLog, ReadFrom};

use super::change;
use super::forged::{Forged, LONG};
use super::harness::{Cluster, World, client_config, config};
use super::storage::InMemory;

/// Members 1, 2 and 3 at these nodes.
fn members(nodes: [u32; 3]) -> Vec<(u64, Addr)> {
    (1..).zip(nodes).map(|(id, node)| (id, Addr::Node(node))).collect()
}

fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    Command::Put { key, value, condition: Condition::Always }.encode()
}

/// Founds a cluster whose first members have these ids; those in `run` are started.
fn found(world: &World, client: u32, nodes: [u32; 3], run: &[u64]) -> Cluster {
    let all = members(nodes);
    let mut cluster = Cluster::planned(world, InMemory, client, all.clone(), config());
    for id in run {
        cluster.start(*id, MemoryLog::new(), Beginning::First(all.clone()));
    }
    cluster
}

/// Another cluster's list has the address of this cluster's third replica, under the same id.
#[test]
fn two_clusters_that_share_an_address_do_not_merge() {
    for more in [0, 30] {
        let world = World::new();
        let mut here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
        here.put("a", b"here").unwrap();
        let there = found(&world, 2000, [11, 12, 3], &[1, 2]);
        there.put("a", b"there").unwrap();
        for number in 0..20 {
            here.put(&format!("here {number}"), b"1").unwrap();
            there.put(&format!("there {number}"), b"2").unwrap();
        }
        // Logs of equal and of different lengths.
        for number in 0..more {
            there.put(&format!("more {number}"), b"").unwrap();
        }
        here.turns(LONG);
        let third = here.node(3);
        assert_eq!((third.failure(), here.local(3, "there 3"), there.local(1, "here 3")), (None, None, None));
        // The leader fails, and acknowledged writes are still there.
        for id in [1, 2] {
            if here.node(id).status().role == Role::Leader {
                here.stop(id);
                break;
            }
        }
        for number in 0..20 {
            assert_eq!(here.get(&format!("here {number}")).unwrap().as_deref(), Some(&b"1"[..]), "{number}");
            assert_eq!(there.get(&format!("there {number}")).unwrap().as_deref(), Some(&b"2"[..]), "{number}");
        }
        assert_eq!(here.get("a").unwrap().as_deref(), Some(&b"here"[..]));
        assert_eq!(there.get("a").unwrap().as_deref(), Some(&b"there"[..]));
    }
}

#[test]
fn what_another_cluster_says_changes_nothing() {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let before = cluster.node(leader).status();
    let number = before.cluster.unwrap().bits();
    for kind in 0..20 {
        for id in 1..=3 {
            let from = id % 3 + 1;
            let Status { term, last, .. } = before;
            let ids = Forged { kind, to: id, from, ..Forged::default() };
            let words = Forged { term: term + 7, log_term: term, index: last, commit: last, commit_term: term, ..ids };
            assert_eq!(words.send(&cluster, number ^ 1), Some(number));
        }
    }
    cluster.turns(LONG);
    let after = cluster.node(leader).status();
    assert_eq!((after.role, after.term), (Role::Leader, before.term));
    for id in 1..=3 {
        let status = cluster.node(id).status();
        let foreign: Vec<u64> = status.foreign.iter().map(|foreign| foreign.cluster.bits()).collect();
        assert!(foreign == [number ^ 1] && cluster.node(id).counters().foreign == 20, "{status:?}");
    }
}

#[test]
fn both_sides_say_which_cluster_the_other_is_of() {
    let world = World::new();
    let here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
    here.put("a", b"1").unwrap();
    let there = found(&world, 2000, [11, 12, 3], &[1, 2]);
    there.put("a", b"2").unwrap();
    here.turns(LONG);
    let [ours, theirs] = [&here, &there].map(|cluster| cluster.node(1).status().cluster.unwrap());
    assert_ne!(ours, theirs);
    let leader = there.leader();
    assert_eq!(there.node(leader).status().foreign, [Foreign { id: 3, cluster: ours }]);
    assert!(here.node(3).status().foreign.contains(&Foreign { id: leader, cluster: theirs }));
    assert_eq!((1..3).map(|id| here.node(id).status().foreign.len()).sum::<usize>(), 0);
}

#[test]
fn a_client_of_a_list_that_mixes_clusters_is_told() {
    let world = World::new();
    let here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
    let there = found(&world, 2000, [11, 12, 13], &[1, 2, 3]);
    here.put("a", b"here").unwrap();
    there.put("a", b"there").unwrap();
    let ask = |members: Vec<(u64, Addr)>| {
        let client = Client::new(&here.endpoint, members, ClientConfig { cluster: None, ..client_config() });
        let asked = here.drive(client.execute(&put(b"a", b"mixed")));
        (asked.map(drop), client.cluster(), client.strangers())
    };
    let [ours, theirs] = [&here, &there].map(|cluster| cluster.node(1).status().cluster.unwrap());
    // Equal numbers of both clusters: nothing is done.
    let (asked, cluster, _) = ask(vec![(1, Addr::Node(1)), (2, Addr::Node(12))]);
    assert!(matches!(asked, Err(ClientError::SeveralClusters { .. })), "{asked:?}");
    assert_eq!(cluster, None);
    assert!([&here, &there].map(|cluster| cluster.get("a").unwrap().unwrap()).iter().all(|value| value != b"mixed"));
    // A majority of one: the other is not asked for anything.
    let (asked, cluster, strangers) = ask(vec![(1, Addr::Node(11)), (2, Addr::Node(2)), (3, Addr::Node(3))]);
    assert_eq!((asked, cluster), (Ok(()), Some(ours)));
    assert!(strangers.iter().all(|stranger| (stranger.id, stranger.cluster) == (1, theirs)), "{strangers:?}");
    assert_eq!(here.get("a").unwrap().as_deref(), Some(&b"mixed"[..]));
    assert_eq!(there.get("a").unwrap().as_deref(), Some(&b"there"[..]));
    // A client that knows the number insists on it.
    let insisting = ClientConfig { cluster: Some(theirs), ..client_config() };
    let client = Client::new(&here.endpoint, here.client.members(), insisting);
    let asked = here.drive(client.query(b"a")).map(drop);
    assert_eq!(asked, Err(ClientError::OtherCluster { found: ours }));
}

/// It shares the sessions of the first client, whose list has another cluster's replica under the same id.
#[test]
fn a_client_of_another_group_asks_a_replica_where_its_own_list_has_it() {
    let world = World::new();
    let here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
    let there = found(&world, 2000, [11, 12, 13], &[1, 2, 3]);
    here.put("a", b"here").unwrap();
    there.put("a", b"there").unwrap();
    let [ours, theirs] = [&here, &there].map(|cluster| cluster.node(1).status().cluster.unwrap());
    let config = ClientConfig { cluster: Some(ours), ..client_config() };
    let wrong = Client::new(&here.endpoint, [(1, Addr::Node(11))], config);
    let right = wrong.of_group(0).reading_from(ReadFrom::Replica(1));
    right.learn(1, Addr::Node(1));
    let other = Err(ClientError::OtherCluster { found: theirs });
    for _ in 0..2 {
        assert_eq!(here.drive(wrong.status(1)).map(drop), other);
        assert_eq!(here.drive(wrong.query(b"a")).map(drop), other);
        assert_eq!(here.drive(right.status(1)).map(|status| status.cluster), Ok(Some(ours)));
        assert_eq!(here.drive(right.query(b"a")).map(drop), Ok(()));
    }
}

/// The others are away: the one that answers may be of another cluster, at a reused address.
#[test]
fn a_client_follows_no_minority() {
    let world = World::new();
    let here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
    here.put("a", b"1").unwrap();
    let ours = here.node(1).status().cluster.unwrap();
    let mixed = [(1, Addr::Node(1)), (2, Addr::Node(22)), (3, Addr::Node(23))];
    let client = |cluster| Client::new(&here.endpoint, mixed.clone(), ClientConfig { cluster, ..client_config() });
    let unsure = client(None);
    let asked = here.drive(unsure.execute(&put(b"a", b"2"))).map(drop);
    let expected = ClientError::NoMajority { one: (1, ours), answered: 1, asked: 3 };
    assert!(expected.to_string().contains("--cluster") && !expected.may_have_run(), "{expected}");
    assert_eq!((asked, unsure.cluster()), (Err(expected), None));
    assert_eq!(here.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    // A client that is given the number needs no majority.
    assert_eq!(here.drive(client(Some(ours)).execute(&put(b"a", b"3"))).map(drop), Ok(()));
    // Replicas that it learned of later, such as those to be added, do not count.
    let client = Client::new(&here.endpoint, here.client.members(), client_config());
    (4..20).for_each(|id| client.learn(id, Addr::Node(20 + id as u32)));
    assert_eq!(here.drive(client.execute(&put(b"a", b"4"))).map(drop), Ok(()));
}

/// A replica that answers tells the members of its cluster, and their addresses.
#[test]
fn a_client_needs_one_member_of_a_list_of_members() {
    let world = World::new();
    let mut here = found(&world, 1000, [1, 2, 3], &[1, 2, 3]);
    here.put("a", b"1").unwrap();
    here.turns(LONG);
    here.stop(2);
    for listed in [vec![1, 2], vec![2, 3], vec![1, 2, 3], vec![3]] {
        let members = listed.iter().map(|id| (*id, Addr::Node(*id as u32)));
        let client = Client::new(&here.endpoint, members, client_config());
        assert_eq!(here.drive(client.execute(&put(b"a", b"2"))).map(drop), Ok(()), "{listed:?}");
    }
    // It is unknown whether the two others belong to this cluster.
    let stale = [(1, Addr::Node(1)), (8, Addr::Node(2)), (9, Addr::Node(9))];
    let client = Client::new(&here.endpoint, stale, client_config());
    let asked = here.drive(client.execute(&put(b"a", b"3"))).map(drop);
    assert!(matches!(asked, Err(ClientError::NoMajority { answered: 1, asked: 3, .. })), "{asked:?}");
    client.follow(&here.node(1).status());
    assert_eq!(here.drive(client.execute(&put(b"a", b"4"))).map(drop), Ok(()));
    assert_eq!(client.members(), here.client.members());
}

#[test]
fn first_members_agree_on_a_number_in_any_order() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let world = World::new();
        let mut cluster = found(&world, 1000, [1, 2, 3], &order[..2]);
        cluster.turns(LONG);
        if !order[..2].contains(&1) {
            assert!(order[..2].iter().all(|id| cluster.node(*id).status().cluster.is_none()), "{order:?}");
        }
        cluster.start(order[2], MemoryLog::new(), Beginning::First(members([1, 2, 3])));
        cluster.put("a", b"1").unwrap();
        cluster.until("all have it", |cluster| (1..=3).all(|id| cluster.local(id, "a").is_some()));
        let numbers: Vec<_> = (1..=3).map(|id| cluster.node(id).status().cluster).collect();
        assert!(numbers[0].is_some() && numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
        // The number is stored in the log.
        let log = cluster.stop(2);
        cluster.start(2, log, Beginning::Join);
        assert_eq!(cluster.node(2).status().cluster, numbers[0]);
    }
}

#[test]
fn a_first_member_with_another_list_is_of_no_cluster() {
    let world = World::new();
    let mut cluster = found(&world, 1000, [1, 2, 3], &[1, 2]);
    cluster.put("a", b"1").unwrap();
    // It takes the first one's address for that of its own first member.
    cluster.start(3, MemoryLog::new(), Beginning::First(members([1, 12, 3])));
    cluster.turns(LONG);
    let status = cluster.node(3).status();
    assert_eq!((status.cluster, status.term, status.last), (None, 0, 0));
    cluster.stop(3);
    cluster.start(3, MemoryLog::new(), Beginning::First(members([1, 2, 3])));
    cluster.until("it has it", |cluster| cluster.local(3, "a").is_some());
}

#[test]
fn who_waits_to_be_added_promises_nothing_to_others() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    cluster.start(4, MemoryLog::new(), Beginning::Join);
    // Strangers of several clusters, with any term.
    for stranger in [5, 6, 7] {
        for kind in 0..20 {
            let ids = Forged { kind, to: 4, from: 1, ..Forged::default() };
            let words = Forged { term: u64::MAX, log_term: 1, index: 9, commit: 9, commit_term: 1, ..ids };
            words.send(&cluster, stranger);
        }
    }
    let status = cluster.node(4).status();
    assert_eq!((status.cluster, status.term, status.last), (None, 0, 0));
    change(&cluster, Change::AddLearner { id: 4, address: Addr::Node(4).to_string() }).unwrap();
    cluster.until("4 has it", |cluster| cluster.local(4, "a").is_some());
    assert_eq!(cluster.node(4).status().cluster, cluster.node(1).status().cluster);
    change(&cluster, Change::Promote { id: 4 }).unwrap();
    // A replica that is given the number joins no other cluster.
    let number = ClusterId::from_bits(cluster.node(1).status().cluster.unwrap().bits() ^ 1);
    cluster.config.cluster = number;
    cluster.start(5, MemoryLog::new(), Beginning::Join);
    change(&cluster, Change::AddLearner { id: 5, address: Addr::Node(5).to_string() }).unwrap();
    cluster.turns(LONG);
    assert_eq!((cluster.node(5).status().cluster, cluster.local(5, "a")), (None, None));
}
