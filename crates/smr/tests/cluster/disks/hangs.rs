//! Disks that hang and recover.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::kv::{Command, Condition};
use dunlin_smr::wal::WalConfig;
use dunlin_smr::wal::sim::SimDiskConfig;
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, Client, ClientConfig, LogStore as _, ReadFrom};

use super::super::harness::client_config;
use super::super::storage::Storage as _;
use super::{Cluster, config};

fn cluster(members: u64) -> Cluster {
    let cluster = Cluster::new(members, config(), WalConfig::new(1));
    cluster.put("first", b"1").unwrap();
    cluster
}

#[test]
fn a_leader_whose_disk_hangs_gives_way() {
    let cluster = cluster(3);
    for round in 0..3 {
        let leader = cluster.leader();
        cluster.hang(leader);
        let (key, begun) = (format!("round {round}"), cluster.now());
        cluster.put(&key, b"2").unwrap();
        let took = cluster.now() - begun;
        // Three election timeouts until the disk counts as hung, plus the time of a transfer and of a client's attempt.
        assert!(took < Duration::from_millis(160), "{took:?}");
        assert_ne!(cluster.leader(), leader);
        let old = cluster.status(leader);
        assert!(old.role == Role::Follower && old.disk_hangs, "{old:?}");
        let asked = cluster.drive(cluster.client.status(leader)).unwrap();
        assert!(asked.disk_hangs, "whoever asks is told");
        cluster.heal(leader);
        cluster.until("it has caught up", |cluster| cluster.local(leader, &key).is_some());
        cluster.until("it is well", |cluster| !cluster.status(leader).disk_hangs);
    }
}

/// The disk hangs while nobody writes: the leader finds out only with the next command.
#[test]
fn a_disk_that_has_nothing_to_do_does_not_hang() {
    let cluster = cluster(3);
    let leader = cluster.leader();
    cluster.turns(Duration::from_millis(50));
    cluster.hang(leader);
    cluster.turns(Duration::from_millis(500));
    assert_eq!((cluster.leader(), cluster.status(leader).disk_hangs), (leader, false));
    cluster.put("a", b"2").unwrap();
    assert_ne!(cluster.leader(), leader);
}

#[test]
fn a_replica_whose_disk_hangs_is_not_elected() {
    let mut cluster = cluster(3);
    let leader = cluster.leader();
    let hung = leader % 3 + 1;
    cluster.hang(hung);
    cluster.put("a", b"2").unwrap();
    cluster.until("it is noticed", |cluster| cluster.status(hung).disk_hangs);
    assert_eq!(cluster.leader(), leader, "a majority is well");
    let disk = cluster.stop(leader);
    let term = cluster.status(hung).term;
    for _ in 0..100 {
        cluster.turns(Duration::from_millis(5));
        let status = cluster.status(hung);
        assert!(status.role == Role::Follower && status.term == term, "{status:?}");
    }
    assert_eq!(cluster.leading(), None, "one of three votes");
    cluster.heal(hung);
    let next = cluster.leader();
    cluster.put("b", b"3").unwrap();
    assert_ne!(next, leader);
    cluster.start(leader, disk, Beginning::Join);
    cluster.until("it has caught up", |cluster| cluster.local(leader, "b").is_some());
}

/// The only voter elects itself before its vote is durable. If learners heard of that term and it forgot it, it would
/// lead in the same term again, with other entries.
#[test]
fn the_only_voter_is_silent_until_its_vote_is_durable() {
    let mut cluster = cluster(1);
    let empty = cluster.storage.empty(2);
    cluster.start(2, empty, Beginning::Join);
    let learner = Change::AddLearner { id: 2, address: Addr::Node(2).to_string() };
    cluster.drive(cluster.client.change(learner)).unwrap();
    cluster.until("the learner has all", |cluster| cluster.local(2, "first").is_some());
    let disk = cluster.stop(1);
    cluster.start(1, disk, Beginning::Join);
    cluster.hang(1);
    let before = cluster.status(2).term;
    cluster.until("it leads", |cluster| cluster.status(1).role == Role::Leader);
    let term = cluster.status(1).term;
    assert!(term > before, "it leads again");
    cluster.turns(Duration::from_millis(20));
    assert_eq!(cluster.status(2).term, before);
    cluster.heal(1);
    cluster.until("the learner hears of it", |cluster| cluster.status(2).term == term);
}

/// Nobody else could be elected: the leader stays, answers reads, and continues when its disk does.
#[test]
fn a_leader_that_is_needed_stays() {
    let mut cluster = cluster(3);
    let leader = cluster.leader();
    let away = leader % 3 + 1;
    cluster.paused.push(away);
    cluster.turns(Duration::from_millis(50));
    cluster.hang(leader);
    assert!(cluster.put("a", b"2").is_err());
    let status = cluster.status(leader);
    assert!(status.role == Role::Leader && status.disk_hangs, "{status:?}");
    cluster.drive(cluster.client.query(b"first")).unwrap();
    // When the third replica is back, the two are a majority.
    cluster.paused.clear();
    cluster.put("b", b"3").unwrap();
    assert_ne!(cluster.leader(), leader);
}

/// As in a suspended guest: the flush took long by the clock, but the replica was not running meanwhile.
#[test]
fn time_in_which_the_replica_stood_still_is_not_the_disks() {
    let mut cluster = cluster(1);
    cluster.hang(1);
    let mut put = Box::pin(cluster.client.execute(b""));
    for _ in 0..200 {
        cluster.turn();
        assert!(cluster.endpoint.poll_once(put.as_mut()).is_none());
    }
    drop(put);
    cluster.paused.push(1);
    cluster.turns(Duration::from_millis(500));
    cluster.paused.clear();
    cluster.turns(Duration::from_millis(20));
    assert!(!cluster.status(1).disk_hangs);
    cluster.turns(Duration::from_millis(50));
    assert!(cluster.status(1).disk_hangs);
}

/// Messages of the others are not kept without limit meanwhile.
#[test]
fn a_replica_whose_disk_hangs_for_long_keeps_little() {
    let cluster = cluster(3);
    let hung = cluster.leader() % 3 + 1;
    cluster.hang(hung);
    for number in 0..250 {
        cluster.put(&format!("key {}", number % 10), &[7; 200_000]).unwrap();
    }
    let bytes = || cluster.places[&hung].node.with_log(|log| log.entry_bytes());
    let wal = WalConfig::new(1);
    assert!(bytes() < wal.unflushed_bytes_max as u64 + (4 << 20), "{} bytes of 50 MB are kept", bytes());
    cluster.turns(Duration::from_secs(20));
    assert!(cluster.places[&hung].node.counters().left_unread > 0);
    cluster.heal(hung);
    cluster.put("b", b"3").unwrap();
    cluster.until("it has caught up", |cluster| cluster.local(hung, "b").is_some());
}

/// It would first have to execute what it lacks: other replicas answer, and nothing is executed later for clients that
/// are gone.
#[test]
fn a_follower_whose_disk_hangs_keeps_no_reads() {
    const READS: u32 = 30;
    let mut cluster = cluster(3);
    let hung = cluster.leader() % 3 + 1;
    cluster.hang(hung);
    cluster.put("a", b"2").unwrap();
    let before = cluster.places[&hung].node.counters();
    cluster.client = cluster.client.of_group(0).reading_from(ReadFrom::Any);
    let begun = cluster.now();
    for _ in 0..READS {
        assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"2"[..]));
    }
    // Three election timeouts until the hang is detected, plus a round trip or two for each.
    let took = cluster.now() - begun;
    assert!(took < Duration::from_millis(100), "{took:?}");
    cluster.heal(hung);
    cluster.until("it has caught up", |cluster| cluster.local(hung, "a").is_some());
    cluster.turns(Duration::from_millis(20));
    let after = cluster.places[&hung].node.counters();
    assert_eq!((after.reads, after.follower_reads), (before.reads, before.follower_reads));
}

/// A client that waited for the same time at each attempt would never get an answer, although its commands are executed.
#[test]
fn a_command_that_takes_longer_than_an_attempt_is_answered() {
    let cluster = cluster(3);
    let always = Duration::from_millis(15);
    for place in cluster.places.values() {
        place.device.disk.configure(SimDiskConfig { flush_time: (always, always), ..SimDiskConfig::default() });
    }
    let quick = ClientConfig { attempt_timeout: always / 3, ..client_config() };
    let client = Client::new(&cluster.endpoint, cluster.members.clone(), quick);
    for number in 0..10 {
        let command = Command::Put { key: b"key", value: &[number], condition: Condition::Always }.encode();
        cluster.drive(client.execute(&command)).unwrap();
    }
}
