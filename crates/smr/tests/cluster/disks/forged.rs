//! Pieces of snapshots that no leader of the cluster sends: none stops a replica, and no useless one is kept.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::raft::Storage as _;
use dunlin_smr::wal::WalConfig;
use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};
use dunlin_smr::wire::response::Status;
use dunlin_smr::{Beginning, ClusterId, LogStore as _, NodeConfig};

use super::pieces::Forged;
use super::{Cluster, config};

/// Returns three replicas, a follower, and a snapshot for it beyond its commit index.
fn attacked() -> (Cluster, u64, Forged) {
    let cluster = Cluster::new(3, config(), WalConfig::new(1));
    cluster.put("a", b"1").unwrap();
    cluster.turns(Duration::from_millis(50));
    let leader = cluster.leader();
    let id = leader % 3 + 1;
    let forged = Forged { index: cluster.status(id).last + 10, ..Forged::base_of(&cluster, id, leader, id) };
    (cluster, id, forged)
}

fn is_refused(cluster: &Cluster, forged: &Forged) {
    let before = cluster.status(forged.to);
    assert_eq!(forged.send(cluster), None, "{forged:?}");
    cluster.turns(Duration::from_millis(20));
    let after = cluster.status(forged.to);
    assert_eq!(cluster.places[&forged.to].node.failure(), None, "{forged:?}");
    assert_eq!((after.term, after.last), (before.term, before.last), "{forged:?}");
}

#[test]
fn members_that_no_cluster_has_are_refused() {
    let (cluster, id, forged) = attacked();
    let other = id % 3 + 1;
    let sets: [(&[u64], &[u64]); 8] = [
        (&[], &[id]),
        (&[], &[]),
        (&[id, other, other], &[]),
        (&[id, 0], &[]),
        (&[id], &[0]),
        (&[id, other], &[other]),
        (&[id], &[other, other]),
        (&[other], &[other + 10]),
    ];
    for (voters, learners) in sets {
        is_refused(&cluster, &Forged { voters: voters.to_vec(), learners: learners.to_vec(), ..forged.clone() });
    }
    cluster.put("a", b"2").unwrap();
    cluster.until("it follows", |cluster| cluster.local(id, "a").as_deref() == Some(b"2"));
}

#[test]
fn positions_that_no_log_has_are_refused() {
    let (cluster, id, forged) = attacked();
    let Forged { index, term, .. } = forged;
    for (index, index_term, term) in [
        (index, 0, term),
        (index, term + 1, term),
        (u64::MAX, 1, term),
        (0, 0, term),
        // A replica that has any entries cannot have missed that many terms.
        (index, 1, term + (1 << 33)),
        (index, 1, u64::MAX),
    ] {
        is_refused(&cluster, &Forged { index, index_term, term, ..forged.clone() });
    }
    cluster.put("a", b"2").unwrap();
    cluster.until("it follows", |cluster| cluster.local(id, "a").as_deref() == Some(b"2"));
}

#[test]
fn a_bit_flip_in_a_piece_stops_nobody() {
    let (cluster, id, forged) = attacked();
    for bit in (0..8 * forged.bytes.len()).step_by(7) {
        let mut bytes = forged.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        is_refused(&cluster, &Forged { bytes, ..forged.clone() });
    }
    cluster.put("a", b"2").unwrap();
    cluster.until("it follows", |cluster| cluster.local(id, "a").as_deref() == Some(b"2"));
}

/// From a leader of another version, or a forger: its checksum is right, but no state can be restored from it.
#[test]
fn a_snapshot_that_no_state_can_be_restored_from_is_rejected() {
    let (cluster, id, forged) = attacked();
    cluster.put("b", &[7; 1000]).unwrap();
    cluster.until("it has it", |cluster| cluster.local(id, "b").is_some());
    let whole = Forged { index: cluster.status(id).last + 10, ..forged };
    let bodies = [
        // An item of 2^32 - 1 bytes, half an item, a key that is too long, and a duplicate one.
        [&whole.bytes[..], &[0xff; 16]].concat(),
        [&whole.bytes[..], &[3, 0, 0]].concat(),
        [&whole.bytes[..], &1000_u32.to_le_bytes(), &[0; 12], &[1; 1000]].concat(),
        [&whole.bytes[..], &item(b"twice"), &item(b"twice")].concat(),
    ];
    for (number, bytes) in (1..).zip(bodies) {
        let forged = Forged {
            index: whole.index + number,
            total: bytes.len() as u64,
            checksum: crc32c::crc32c(&bytes),
            bytes,
            ..whole.clone()
        };
        is_refused(&cluster, &forged);
        cluster.turns(Duration::from_millis(20));
        assert_eq!(cluster.places[&id].node.counters().snapshots_rejected, number);
        assert_eq!(forged.send(&cluster), None, "the same one again, so soon");
        let another = Forged { index: forged.index + 10, ..forged };
        assert_eq!(another.send(&cluster), None, "another one of this sender, so soon");
        assert_eq!(cluster.places[&id].node.counters().snapshots_rejected, number, "it is not looked at again so soon");
        assert_eq!(cluster.local(id, "b"), Some(vec![7; 1000]), "what was there is served");
        cluster.put("a", &number.to_le_bytes()).unwrap();
        cluster.until("it follows", |cluster| cluster.local(id, "a").as_deref() == Some(&number.to_le_bytes()));
        cluster.until("the file of the rejected one is removed", |cluster| cluster.snapshot_files(id) == 1);
        cluster.turns(PAUSE);
    }
    let leader = cluster.leader();
    cluster.places[&leader].node.hand_over();
    cluster.until("another leads", |cluster| cluster.leading().is_some_and(|now| now != leader));
    cluster.put("a", b"last").unwrap();
    assert_eq!(cluster.places[&id].node.failure(), None);
}

/// Ten election timeouts.
const PAUSE: Duration = Duration::from_millis(250);

/// One after the other, each under another name and of another entry: none of them prevents the replica's own snapshot.
#[test]
fn wrong_snapshots_keep_no_replica_from_taking_its_own() {
    const KEYS: u64 = 200;
    let pieces = NodeConfig { snapshot_step_bytes: 30, snapshot_entries: 100, ..config() };
    let cluster = Cluster::new(3, pieces, WalConfig::new(1));
    for number in 0..2 * KEYS {
        cluster.put(&format!("key {}", number % KEYS), &[7; 60]).unwrap();
    }
    let leader = cluster.leader();
    let id = leader % 3 + 1;
    let base = Forged::base_of(&cluster, id, leader, id);
    let bytes = base.bytes[..100].to_vec();
    let wrong = Forged { total: 100, checksum: crc32c::crc32c(&bytes), bytes, ..base };
    let before = cluster.places[&id].node.counters().snapshots_taken;
    for number in 0..3 * KEYS {
        cluster.put(&format!("key {}", number % KEYS), &[8; 60]).unwrap();
        let index = cluster.status(id).last + 1000 + number;
        Forged { index, from: 10 + number, ..wrong.clone() }.post(&cluster);
    }
    let counters = cluster.places[&id].node.counters();
    assert!(counters.snapshots_rejected > 0 && counters.snapshots_taken >= before + 3, "{counters:?}");
}

/// Forged in the name of the leader: the leader's own snapshot, which comes from its own address, is accepted at once.
#[test]
fn a_wrong_snapshot_in_the_name_of_the_leader_does_not_keep_out_its_own() {
    let snapshots = NodeConfig { snapshot_entries: 20, keep_entries: 4, ..config() };
    let mut cluster = Cluster::new(3, snapshots, WalConfig::new(1));
    cluster.put("a", b"1").unwrap();
    let (leader, away) = (cluster.leader(), cluster.leader() % 3 + 1);
    let disk = cluster.stop(away);
    (0..100_u32).for_each(|number| _ = cluster.put(&format!("key {number}"), b"2").unwrap());
    cluster.start(away, disk, Beginning::Join);
    let base = Forged { index: cluster.status(leader).last + 10, ..Forged::base_of(&cluster, leader, leader, away) };
    let bytes = [&base.bytes[..], &[0xff; 16]].concat();
    let wrong = Forged { total: bytes.len() as u64, checksum: crc32c::crc32c(&bytes), bytes, ..base };
    assert_eq!(wrong.send(&cluster), None);
    let counters = |cluster: &Cluster| cluster.places[&away].node.counters();
    assert_eq!((counters(&cluster).snapshots_rejected, counters(&cluster).snapshots_restored), (1, 0));
    let begun = cluster.now();
    cluster.until("it is restored", |cluster| counters(cluster).snapshots_restored > 0);
    assert!(cluster.now() - begun < PAUSE / 4, "{:?}", cluster.now() - begun);
}

/// Forged in the leader's name during its own transfer: a sender that is not at a member's address replaces nobody's.
#[test]
fn forged_pieces_do_not_disturb_the_snapshot_of_a_leader() {
    let snapshots = NodeConfig { snapshot_entries: 20, keep_entries: 4, chunk_bytes: 1000, ..config() };
    let mut cluster = Cluster::new(3, snapshots, WalConfig::new(1));
    cluster.put("a", b"1").unwrap();
    let (leader, away) = (cluster.leader(), cluster.leader() % 3 + 1);
    let disk = cluster.stop(away);
    (0..100_u32).for_each(|number| _ = cluster.put(&format!("key {number}"), &[2; 1000]).unwrap());
    let base = Forged { index: cluster.status(leader).last + 10, ..Forged::base_of(&cluster, leader, leader, away) };
    let bytes = base.bytes[..100].to_vec();
    let first = Forged { checksum: crc32c::crc32c(&bytes), bytes, ..base };
    cluster.start(away, disk, Beginning::Join);
    let counters = |cluster: &Cluster| cluster.places[&away].node.counters();
    let begun = cluster.now();
    while counters(&cluster).snapshots_restored == 0 {
        first.post(&cluster);
        cluster.turns(Duration::from_micros(500));
        assert!(cluster.now() - begun < PAUSE, "{:?}", counters(&cluster));
    }
    assert!(counters(&cluster).bad > 0, "some came between");
}

/// The replica cannot tell who sends it, and must not end because of it: its own cluster may still accept it.
#[test]
fn a_forged_number_of_groups_does_not_stop_who_joins() {
    let mut cluster = Cluster::new(1, config(), WalConfig::new(1));
    cluster.put("a", b"1").unwrap();
    cluster.start(2, SimDisk::new(2, SimDiskConfig::default()), Beginning::Join);
    let base = Forged::base_of(&cluster, 1, 1, 1);
    // After the eight magic bytes and the number of the cluster.
    let mut bytes = base.bytes.clone();
    assert_eq!(bytes[16], 1, "one group");
    bytes[16] = 5;
    let forged = Forged { to: 2, voters: vec![1, 2], checksum: crc32c::crc32c(&bytes), bytes, ..base };
    assert_eq!(forged.send(&cluster), None);
    assert_eq!((cluster.places[&2].node.failure(), cluster.status(2).other_groups), (None, Some(5)));
    let address = Addr::Node(2).to_string();
    cluster.drive(cluster.client.change(dunlin_smr::wire::request::Change::AddLearner { id: 2, address })).unwrap();
    cluster.until("it has joined", |cluster| cluster.local(2, "a").is_some());
    assert_eq!(cluster.status(2).other_groups, None);
}

fn item(key: &[u8]) -> Vec<u8> {
    [&(key.len() as u32).to_le_bytes()[..], &[0; 4], &2_u64.to_le_bytes(), key].concat()
}

/// A replica without a number keeps pieces of the cluster that it waits for, and of no other.
#[test]
fn who_waits_keeps_nothing_that_it_cannot_use() {
    let mut cluster = Cluster::new(1, config(), WalConfig::new(1));
    cluster.put("a", b"1").unwrap();
    let number = cluster.status(1).cluster.unwrap().bits();
    let base = Forged::base_of(&cluster, 1, 1, 1);
    let first = |to| Forged { to, voters: vec![1, to], total: 2 * base.total, ..base.clone() };
    let disk = |id| SimDisk::new(id, SimDiskConfig::default());
    // The first member with the lowest id is missing.
    let founders = [11, 12].map(|id| (id, Addr::Node(id as u32)));
    cluster.start(12, disk(12), Beginning::First(founders.to_vec()));
    is_refused(&cluster, &first(12));
    cluster.config.cluster = ClusterId::from_bits(number ^ 1);
    cluster.start(13, disk(13), Beginning::Join);
    is_refused(&cluster, &first(13));
    cluster.config.cluster = ClusterId::from_bits(number);
    cluster.start(14, disk(14), Beginning::Join);
    is_refused(&cluster, &Forged { voters: vec![1], ..first(14) });
    assert_eq!(first(14).send(&cluster), Some(base.total), "one that it can use");
}

/// A new member takes part in nothing until the snapshot is on its disk, so a crash leaves nothing that prevents a
/// restart.
#[test]
fn who_joins_takes_part_when_its_snapshot_is_durable() {
    let wal = WalConfig { snapshot_piece_bytes: 500, ..WalConfig::new(1) };
    let mut cluster = Cluster::new(3, NodeConfig { snapshot_entries: 20, ..config() }, wal);
    for number in 0..100_u32 {
        cluster.put(&format!("key {number}"), &[number as u8; 1000]).unwrap();
    }
    cluster.start(4, SimDisk::new(4, SimDiskConfig::default()), Beginning::Join);
    let change = dunlin_smr::wire::request::Change::AddLearner { id: 4, address: Addr::Node(4).to_string() };
    cluster.drive(cluster.client.change(change)).unwrap();
    cluster.until("a snapshot is being written", |cluster| cluster.snapshot_files(4) > 0);
    let mut turns = 0;
    while cluster.places[&4].node.counters().snapshots_restored == 0 {
        let Status { cluster: number, term, last, .. } = cluster.status(4);
        assert_eq!((number, term, last), (None, 0, 0), "after {turns} turns");
        if turns == 100 {
            let disk = cluster.stop(4);
            cluster.start(4, disk, Beginning::Join);
            let hard_state = cluster.places[&4].node.with_log(|log| log.initial_state().unwrap().hard_state);
            assert_eq!((hard_state.term, hard_state.vote), (0, 0));
        }
        cluster.turns(Duration::from_micros(50));
        turns += 1;
    }
    assert!(turns > 200, "the disk took {turns} turns");
    cluster.until("it has all", |cluster| cluster.local(4, "key 99").is_some());
    assert_eq!(cluster.status(4).cluster, cluster.status(1).cluster);
}

/// All snapshots count: the log's, one being written, and one being received.
#[test]
fn a_snapshot_that_is_written_counts_as_memory() {
    let limits = NodeConfig { snapshot_bytes_max: 150_000, snapshot_memory_max: 300_000, ..config() };
    let wal = WalConfig { snapshot_piece_bytes: 1000, ..WalConfig::new(1) };
    let cluster = Cluster::new(1, NodeConfig { snapshot_entries: 50, ..limits }, wal);
    let sizes = || cluster.places[&1].node.with_log(|log| (log.base().data.len(), log.is_compacting()));
    let mut number = 0_u32;
    while sizes().0 < 90_000 || !sizes().1 {
        cluster.put(&format!("key {}", number % 100), &[7; 1000]).unwrap();
        number += 1;
        assert!(number < 10_000, "{:?}", sizes());
    }
    cluster.hang(1);
    let base = Forged::base_of(&cluster, 1, 1, 1);
    let bytes = vec![0; 10];
    let index = cluster.status(1).last + 1000;
    let forged =
        Forged { from: 2, voters: vec![1, 2], index, total: 150_000, checksum: crc32c::crc32c(&bytes), bytes, ..base };
    assert_eq!(forged.send(&cluster), None, "{:?}", sizes());
    cluster.heal(1);
    cluster.until("it is written", |_| !sizes().1);
    assert_eq!(forged.send(&cluster), Some(10));
}
