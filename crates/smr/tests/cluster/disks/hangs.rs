//! Disks that hang and come back.

use std::time::Duration;

use dunlin_smr::wal::WalConfig;
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, LogStore as _};

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
        // Three election timeouts until the disk is given up, and what a hand-over and an attempt of the client take.
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

/// The disk hangs while nobody writes: the leader does not know, and finds out with the next command.
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

/// Nobody could be elected without the leader: it stays, answers reads, and goes on when its disk does.
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
    // When the third is there again, the two are a majority.
    cluster.paused.clear();
    cluster.put("b", b"3").unwrap();
    assert_ne!(cluster.leader(), leader);
}

/// As a guest that was suspended: the flush took long by the clock, and the replica was not there to see it.
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

/// What others say meanwhile is not kept for ever.
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
