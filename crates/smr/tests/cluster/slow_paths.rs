//! Paths on which sending the missing entries takes longer than an election timeout.

use std::time::Duration;

use dunlin_smr::kv::Query;
use dunlin_smr::{Beginning, Client, NodeConfig};

use super::harness::{Cluster, ClusterOf, World, client_config, config};
use super::storage::InMemory;

const VALUES: usize = 40;
const VALUE_BYTES: usize = 25_000;

/// With one credit each packet takes a round trip, so the longest append takes longer than its timeout.
#[test]
fn who_was_away_catches_up_over_a_path_that_is_slower_than_an_election() {
    let mut cluster = Cluster::new(3, NodeConfig { append_bytes_max: 1 << 20, ..config() });
    cluster.put("key 0", b"").unwrap();
    let away = cluster.leader() % 3 + 1;
    let left = cluster.stop(away);
    for number in 0..VALUES {
        cluster.put(&format!("key {number}"), &[number as u8; VALUE_BYTES]).unwrap();
    }
    // The leader's calls to it use sessions that the leader opens.
    for id in (1..=3).filter(|id| *id != away) {
        let left = cluster.stop(id);
        cluster.credits = 1;
        cluster.start(id, left, Beginning::Join);
    }
    let leader = cluster.leader();
    // Reads are confirmed by heartbeats, which wait behind a long append, and each of whose answers triggers another
    // append.
    let client = Client::new(&cluster.endpoint, cluster.members.clone(), client_config());
    cluster.endpoint.spawn(async move {
        loop {
            drop(client.query(Query { key: b"key 0" }.encode()).await);
        }
    });
    cluster.start(away, left, Beginning::Join);
    let begun = cluster.now();
    let last = format!("key {}", VALUES - 1);
    cluster.until("it has all", |cluster| cluster.local(away, &last).is_some());
    assert!(cluster.now() - begun < Duration::from_secs(3), "after {:?}", cluster.now() - begun);
    assert_eq!(cluster.leader(), leader);
}

/// A piece takes 5.5 s, longer than the first attempt gives it, and longer than 1,000 ticks.
#[test]
fn a_snapshot_comes_over_a_path_on_which_its_pieces_are_late() {
    const PIECE_BYTES: usize = 5 << 18;
    let world = World::with_delay(Duration::from_millis(1));
    let config = NodeConfig { snapshot_entries: 5, keep_entries: 1, chunk_bytes: PIECE_BYTES, ..config() };
    let mut cluster = ClusterOf::within(&world, InMemory, 3, config);
    cluster.put("key 0", b"").unwrap();
    let away = cluster.leader() % 3 + 1;
    let left = cluster.stop(away);
    let values = 2 * PIECE_BYTES / VALUE_BYTES + 10;
    for number in 0..values {
        cluster.put(&format!("key {number}"), &[number as u8; VALUE_BYTES]).unwrap();
    }
    for id in (1..=3).filter(|id| *id != away) {
        let left = cluster.stop(id);
        cluster.credits = 1;
        cluster.start(id, left, Beginning::Join);
    }
    cluster.leader();
    cluster.start(away, left, Beginning::Join);
    let begun = cluster.now();
    let last = format!("key {}", values - 1);
    cluster.until("the first attempt is over", |cluster| cluster.now() - begun > Duration::from_secs(6));
    assert_eq!(cluster.local(away, &last), None, "the path is too quick for this test");
    cluster.until("there was time for two pieces, each in time", |cluster| {
        cluster.now() - begun > Duration::from_secs(12)
    });
    assert_eq!(cluster.local(away, &last), None, "no piece was late");
    cluster.until("it has all", |cluster| cluster.local(away, &last).is_some());
}
