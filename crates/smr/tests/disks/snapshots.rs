//! Snapshots from a leader, and disks that take their time for them.

use std::time::Duration;

use dunlin_smr::wal::{Disk as _, WalConfig};
use dunlin_smr::{Beginning, NodeConfig};

use super::harness::{Cluster, config};

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
