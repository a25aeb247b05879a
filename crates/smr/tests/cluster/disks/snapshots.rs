//! Snapshots from a leader, and disks that take time to write them.

use std::time::Duration;

use dunlin_smr::wal::WalConfig;
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, LogStore as _, NodeConfig};

use super::pieces::Forged;
use super::{Cluster, config};

fn snapshots() -> NodeConfig {
    NodeConfig { snapshot_entries: 20, keep_entries: 4, chunk_bytes: 3000, ..config() }
}

/// The disk hangs while a snapshot arrives: the replica goes on, and switches to the snapshot's state only when it is
/// durable.
#[test]
fn the_loop_does_not_wait_while_a_snapshot_is_installed() {
    let wal = WalConfig { snapshot_piece_bytes: 5000, ..WalConfig::new(1) };
    let mut cluster = Cluster::new(3, snapshots(), wal);
    cluster.put("first", b"1").unwrap();
    for round in 0..5_u32 {
        let away = cluster.leader() % 3 + 1;
        let disk = cluster.stop(away);
        for number in 0..100_u32 {
            cluster.put(&format!("key {number}"), &[(round + number) as u8; 1000]).unwrap();
        }
        cluster.start(away, disk, Beginning::Join);
        cluster.hang(away);
        // Long enough for all pieces, and for the leader to retry several times.
        cluster.turns(Duration::from_millis(500));
        let counters = cluster.places[&away].node.counters();
        assert_eq!((counters.snapshots_restored, cluster.places[&away].node.failure()), (0, None));
        cluster.put("meanwhile", &round.to_le_bytes()).unwrap();
        cluster.heal(away);
        cluster.until("it is restored", |cluster| {
            cluster.local(away, "meanwhile").as_deref() == Some(&round.to_le_bytes()[..])
        });
        assert!(cluster.places[&away].node.counters().snapshots_restored > 0);
        cluster.turns(Duration::from_millis(100));
        assert!(cluster.snapshot_files(away) <= 2);
        // The snapshot is on the disk, with the entries after it.
        let disk = cluster.stop(away);
        cluster.start(away, disk, Beginning::Join);
        cluster.until("it is there again", |cluster| cluster.local(away, "key 99").is_some());
    }
}

/// Returns another replica that was restored from a snapshot, which is now its log's.
fn restored(cluster: &mut Cluster) -> u64 {
    cluster.put("first", b"1").unwrap();
    let away = cluster.leader() % 3 + 1;
    let disk = cluster.stop(away);
    for number in 0..100_u32 {
        cluster.put(&format!("key {number}"), &[number as u8; 1000]).unwrap();
    }
    cluster.start(away, disk, Beginning::Join);
    cluster.until("it is restored", |cluster| cluster.local(away, "key 99").is_some());
    assert!(cluster.places[&away].node.counters().snapshots_restored > 0);
    cluster.turns(Duration::from_millis(50));
    away
}

/// The leader did not get the answer to the last piece, and sends everything again; or a forger does.
#[test]
fn a_snapshot_that_comes_again_leaves_the_logs_own_alone() {
    let mut cluster = Cluster::new(3, snapshots(), WalConfig::new(1));
    let away = restored(&mut cluster);
    let leader = cluster.leader();
    let again = Forged::base_of(&cluster, away, leader, away);
    // The same one, its first piece, one of an earlier entry, and one with other bytes.
    let first = Forged { bytes: again.bytes[..3000].to_vec(), ..again.clone() };
    let earlier = Forged { index: again.index - 1, ..again.clone() };
    let bytes = [&again.bytes[..], &[0; 10]].concat();
    let other = Forged { total: bytes.len() as u64, checksum: crc32c::crc32c(&bytes), bytes, ..again.clone() };
    for piece in [&again, &first, &earlier, &other] {
        assert_eq!(piece.send(&cluster), Some(piece.total), "its sender is told that it is over");
        cluster.turns(Duration::from_millis(20));
        // The discarded file is removed before the next write.
        cluster.put("next", b"2").unwrap();
        cluster.turns(Duration::from_millis(20));
    }
    let disk = cluster.stop(away);
    cluster.start(away, disk, Beginning::Join);
    cluster.until("it is there again", |cluster| cluster.local(away, "next").is_some());
}

/// Pieces so small that a state of 500 of them is like one of gigabytes with the default.
fn large_states() -> NodeConfig {
    NodeConfig { snapshot_step_bytes: 30, chunk_bytes: 64 << 10, snapshot_entries: 700, keep_entries: 4, ..config() }
}

const LARGE_KEYS: u32 = 500;

fn fill(cluster: &Cluster, round: u8) {
    for number in 0..LARGE_KEYS {
        cluster.put(&format!("key {number}"), &[round; 60]).unwrap();
    }
}

/// What a replica did during a stretch of time.
struct Stretch {
    turns: u32,
    envelopes: u64,
}

/// Runs turns until a condition holds for a replica, which answers others meanwhile.
fn stretch(cluster: &Cluster, id: u64, what: &str, done: impl Fn(&Cluster) -> bool) -> Stretch {
    let envelopes = || cluster.places[&id].node.counters().envelopes;
    let (before, mut turns) = (envelopes(), 0);
    cluster.until(what, |cluster| {
        turns += 1;
        done(cluster)
    });
    Stretch { turns, envelopes: envelopes() - before }
}

/// A replica that was away is restored from a leader's snapshot, one item in each turn.
#[test]
fn heartbeats_are_answered_while_a_state_is_restored() {
    let mut cluster = Cluster::new(3, large_states(), WalConfig::new(1));
    fill(&cluster, 1);
    let (leader, away) = (cluster.leader(), cluster.leader() % 3 + 1);
    cluster.until("it has all", |cluster| cluster.local(away, "key 499").is_some());
    let disk = cluster.stop(away);
    fill(&cluster, 2);
    fill(&cluster, 3);
    let term = cluster.status(leader).term;
    cluster.start(away, disk, Beginning::Join);
    cluster.until("it has its own state", |cluster| cluster.local(away, "key 499").is_some());
    let is_restored = |cluster: &Cluster| cluster.places[&away].node.counters().snapshots_restored > 0;
    let restoring = stretch(&cluster, away, "it is restored", |cluster| {
        let keys = [1, 200, 499].map(|number| cluster.local(away, &format!("key {number}")).map(|value| value[0]));
        assert!(is_restored(cluster) != (keys == [Some(1); 3]), "half a state: {keys:?}");
        is_restored(cluster)
    });
    assert!(restoring.turns >= LARGE_KEYS, "a turn restored more than a piece: {} turns for all", restoring.turns);
    // A heartbeat comes every 3 ms, that is, every 60 turns.
    assert!(restoring.envelopes >= u64::from(restoring.turns / 60 / 2), "{} answers", restoring.envelopes);
    assert_eq!((cluster.leader(), cluster.status(leader).term), (leader, term), "nobody was deposed meanwhile");
    cluster.until("it has all", |cluster| cluster.local(away, "key 499") == Some(vec![3; 60]));
}

/// A replica that starts votes while it restores the state of its log, and then executes the entries after it.
#[test]
fn heartbeats_are_answered_while_the_state_of_the_log_is_restored() {
    let mut cluster = Cluster::new(3, large_states(), WalConfig::new(1));
    fill(&cluster, 1);
    fill(&cluster, 2);
    let away = cluster.leader() % 3 + 1;
    let base = |cluster: &Cluster| cluster.places[&away].node.with_log(|log| log.base().get_metadata().index);
    cluster.until("it has a snapshot", |cluster| base(cluster) > u64::from(LARGE_KEYS));
    cluster.put("last", b"1").unwrap();
    let third = 6 - cluster.leader() - away;
    let disk = cluster.stop(away);
    cluster.start(away, disk, Beginning::Join);
    assert_eq!(cluster.local(away, "key 1"), None);
    let restoring = stretch(&cluster, away, "it is restored", |cluster| cluster.local(away, "key 1").is_some());
    assert!(restoring.turns >= LARGE_KEYS, "a turn restored more than a piece: {} turns for all", restoring.turns);
    assert!(restoring.envelopes >= u64::from(restoring.turns / 60 / 2), "{} answers", restoring.envelopes);
    cluster.until("it has the last", |cluster| cluster.local(away, "last").is_some());
    // While another is away, a majority needs this one's acknowledgements, whatever it has executed.
    let disk = cluster.stop(away);
    cluster.stop(third);
    cluster.start(away, disk, Beginning::Join);
    cluster.put("last", b"2").unwrap();
    assert_eq!(cluster.local(away, "key 1"), None, "it is still being restored");
    cluster.until("it has the last", |cluster| cluster.local(away, "last").as_deref() == Some(b"2"));
    assert_eq!(cluster.local(away, "key 499"), Some(vec![2; 60]));
}

/// The leader dies just after a replica that restores the state of its log has heard from it: only with that replica's
/// vote can another lead.
#[test]
fn a_replica_votes_while_the_state_of_its_log_is_restored() {
    let config = NodeConfig { heartbeat_ticks: 1, election_ticks: 4, ..large_states() };
    let mut cluster = Cluster::new(3, config, WalConfig::new(1));
    fill(&cluster, 1);
    fill(&cluster, 2);
    let away = cluster.leader() % 3 + 1;
    let base = |cluster: &Cluster| cluster.places[&away].node.with_log(|log| log.base().get_metadata().index);
    cluster.until("it has a snapshot", |cluster| base(cluster) > u64::from(LARGE_KEYS));
    let (leader, third) = (cluster.leader(), 6 - cluster.leader() - away);
    let disk = cluster.stop(away);
    cluster.start(away, disk, Beginning::Join);
    cluster.until("it has heard of the leader", |cluster| cluster.status(away).leader == Some(leader));
    cluster.paused.push(leader);
    cluster.until("another leads", |cluster| cluster.status(third).role == Role::Leader);
    assert_eq!(cluster.local(away, "key 1"), None, "it is still being restored");
}

/// While a state is being restored, the replica is killed, closed, or sent a newer snapshot.
#[test]
fn what_ends_a_restore_halfway_leaves_the_state_before_it() {
    let mut cluster = Cluster::new(3, large_states(), WalConfig::new(1));
    fill(&cluster, 1);
    let away = cluster.leader() % 3 + 1;
    cluster.until("it has all", |cluster| cluster.local(away, "key 499").is_some());
    let mut disk = cluster.stop(away);
    fill(&cluster, 2);
    fill(&cluster, 3);
    for round in 0..3 {
        cluster.start(away, disk, Beginning::Join);
        let files = cluster.snapshot_files(away);
        cluster.until("another is being written", |cluster| cluster.snapshot_files(away) > files);
        cluster.turns(Duration::from_millis(3));
        assert_eq!(cluster.local(away, "key 499"), Some(vec![1; 60]), "it is being restored");
        if round == 1 {
            cluster.places[&away].node.close().unwrap();
            cluster.turns(Duration::from_millis(5));
        }
        disk = cluster.stop(away);
    }
    cluster.start(away, disk, Beginning::Join);
    let files = cluster.snapshot_files(away);
    cluster.until("another is being written", |cluster| cluster.snapshot_files(away) > files);
    // The leader takes another snapshot, and no log keeps entries from before it.
    fill(&cluster, 4);
    fill(&cluster, 5);
    cluster.until("it has all", |cluster| cluster.local(away, "key 499") == Some(vec![5; 60]));
    assert_eq!(cluster.places[&away].node.failure(), None);
}
