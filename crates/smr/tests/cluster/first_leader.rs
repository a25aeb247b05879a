//! How long a new cluster is without a leader.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::wal::WalConfig;
use dunlin_smr::{Beginning, NodeConfig};

use super::harness::{ClusterOf, World};
use super::storage::{InMemory, OnDisks, Storage};

/// Starts three replicas with default settings, with this delay in between; returns the time from the last start until
/// one leads.
fn first_leader<S: Storage>(storage: S, client_node: u32, ids: [u64; 3], apart: Duration) -> Duration {
    let all: Vec<(u64, Addr)> = (1..=3).map(|id| (id, Addr::Node(id as u32))).collect();
    let mut cluster = ClusterOf::planned(&World::new(), storage, client_node, all.clone(), NodeConfig::new(1));
    for id in ids {
        cluster.turns(apart);
        let empty = cluster.storage.empty(id);
        cluster.start(id, empty, Beginning::First(all.clone()));
    }
    let begun = cluster.now();
    cluster.leader();
    cluster.now() - begun
}

fn is_soon<S: Storage + Copy>(storage: S) {
    let mut late = Vec::new();
    for seed in 0..2 {
        for ids in [[1, 2, 3], [3, 2, 1], [2, 1, 3]] {
            for apart in [0, 60].map(Duration::from_millis) {
                let took = first_leader(storage, 1000 + seed, ids, apart);
                println!("seed {seed}, started as {ids:?}, {apart:?} apart: {took:?}");
                late.extend((took >= Duration::from_millis(500)).then_some(took));
            }
        }
    }
    assert_eq!(late, [], "an election timeout, or more");
}

#[test]
fn a_new_cluster_in_memory_has_a_leader_within_an_election_timeout() {
    is_soon(InMemory);
}

#[test]
fn a_new_cluster_on_disks_has_a_leader_within_an_election_timeout() {
    is_soon(OnDisks { wal: WalConfig::new(1) });
}
