//! Snapshots from a leader, and disks that take their time for them.

use std::time::Duration;

use dunlin_smr::wal::{Disk as _, WalConfig};
use dunlin_smr::{Beginning, NodeConfig};

use super::harness::{Cluster, config};
use super::pieces::Forged;

fn snapshots() -> NodeConfig {
    NodeConfig { snapshot_entries: 20, keep_entries: 4, chunk_bytes: 3000, ..config() }
}

/// The disk hangs while a snapshot comes: the replica goes on, and is restored when the snapshot is durable and not before.
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
        // Long enough for all pieces, and for the leader to ask again and again.
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
        let names = cluster.places[&away].disk.list().unwrap();
        let snapshots = names.iter().filter(|name| name.starts_with("snapshot-")).count();
        assert!(snapshots <= 2, "{names:?}");
        // It is on the disk, and what came after it.
        let disk = cluster.stop(away);
        cluster.start(away, disk, Beginning::Join);
        cluster.until("it is there again", |cluster| cluster.local(away, "key 99").is_some());
    }
}

/// Another replica that was restored from a snapshot, which is its log's now.
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

/// The leader did not get the answer to the last piece, and sends all of it again; or somebody forges that.
#[test]
fn a_snapshot_that_comes_again_leaves_the_logs_own_alone() {
    let mut cluster = Cluster::new(3, snapshots(), WalConfig::new(1));
    let away = restored(&mut cluster);
    let leader = cluster.leader();
    let again = Forged::base_of(&cluster, away, leader, away);
    // As it was, its first piece, of an earlier entry, and with other bytes.
    let first = Forged { bytes: again.bytes[..3000].to_vec(), ..again.clone() };
    let earlier = Forged { index: again.index - 1, ..again.clone() };
    let bytes = [&again.bytes[..], &[0; 10]].concat();
    let other = Forged { total: bytes.len() as u64, checksum: crc32c::crc32c(&bytes), bytes, ..again.clone() };
    for piece in [&again, &first, &earlier, &other] {
        assert_eq!(piece.send(&cluster), Some(piece.total), "its sender is told that it is over");
        cluster.turns(Duration::from_millis(20));
        // What was discarded is removed before the next write.
        cluster.put("next", b"2").unwrap();
        cluster.turns(Duration::from_millis(20));
    }
    let disk = cluster.stop(away);
    cluster.start(away, disk, Beginning::Join);
    cluster.until("it is there again", |cluster| cluster.local(away, "next").is_some());
}
