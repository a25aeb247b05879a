//! Snapshots that replicas take of their state, and receive from others.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::log::Batch;
use dunlin_smr::raft::Storage as _;
use dunlin_smr::raft::eraftpb::{Entry, HardState};
use dunlin_smr::wire::request::Change;
use dunlin_smr::{Beginning, LogStore, MemoryLog, NodeConfig};

use super::harness::{Cluster, config};
use super::{change, snapshots};

/// The state is taken piece by piece while commands are executed: the result is the state as of one entry, and later
/// entries are executed again on it.
#[test]
fn commands_are_executed_while_a_snapshot_is_taken() {
    const KEYS: u32 = 800;
    let config = NodeConfig { snapshot_entries: 1400, keep_entries: 1, snapshot_step_bytes: 1, ..config() };
    let mut cluster = Cluster::new(3, config);
    for number in 0..KEYS {
        cluster.put(&format!("key {number}"), b"").unwrap();
    }
    let follower = cluster.leader() % 3 + 1;
    let base = |cluster: &Cluster| cluster.node(follower).with_log(|log| log.base().get_metadata().index);
    let (mut sent, mut meanwhile) = (0, 0);
    while base(&cluster) <= 1 {
        cluster.append(&format!("key {}", sent * 7 % KEYS), &[sent as u8]).unwrap();
        sent += 1;
        meanwhile = cluster.node(follower).status().applied - base(&cluster);
    }
    assert!(meanwhile > 10, "{meanwhile} entries were executed since the snapshot's");
    let log = cluster.stop(follower);
    cluster.start(follower, log, Beginning::Join);
    cluster.put("last", b"").unwrap();
    cluster.until("it has the last", |cluster| cluster.local(follower, "last").is_some());
    for number in 0..KEYS {
        let expected: Vec<u8> = (0..sent).filter(|at| at * 7 % KEYS == number).map(|at| at as u8).collect();
        assert_eq!(cluster.local(follower, &format!("key {number}")), Some(expected), "key {number}");
    }
}

/// Each takes its snapshots at different entries.
#[test]
fn replicas_take_turns_with_their_snapshots() {
    let cluster = Cluster::new(3, NodeConfig { snapshot_entries: 80, keep_entries: 1, ..config() });
    let mut bases = vec![Vec::new(); 3];
    for number in 0..400_u32 {
        cluster.put(&format!("key {}", number % 5), &number.to_le_bytes()).unwrap();
        for (of, id) in bases.iter_mut().zip(1..) {
            let base = cluster.node(id).with_log(|log| log.base().get_metadata().index);
            if base > 1 && of.last() != Some(&base) {
                of.push(base);
            }
        }
    }
    for (of, id) in bases.iter().zip(1_u64..) {
        assert!(of.len() > 3, "{bases:?}");
        // A burst may add some entries more than needed.
        assert!(of.iter().all(|base| (base + 10 * id) % 80 < 10), "replica {id}: {bases:?}");
    }
}

/// A long log is executed in parts, one in each turn of the event loop, and not all when it is read.
#[test]
fn a_long_log_is_executed_piece_by_piece() {
    const ENTRIES: u64 = 20_000;
    let mut cluster = Cluster::new(1, config());
    cluster.put("a", b"1").unwrap();
    let mut log = cluster.stop(1);
    let (last, term) = (log.last_index().unwrap(), log.hard_state().term);
    let entries = (1..=ENTRIES).map(|number| Entry { index: last + number, term, ..Entry::default() }).collect();
    let hard_state = HardState { commit: last + ENTRIES, ..log.hard_state().clone() };
    log.append(Batch { entries, hard_state: Some(hard_state), ..Batch::default() }).unwrap();
    cluster.start(1, log, Beginning::Join);
    let (mut applied, mut turns) = (cluster.status(1).applied, 0);
    while applied < last + ENTRIES {
        cluster.turn();
        let now = cluster.status(1).applied;
        assert!(now <= applied + 1024, "{} entries in one turn", now - applied);
        assert!(cluster.leading().is_none() || last + ENTRIES - now < 4096, "it leads and has executed up to {now}");
        (applied, turns) = (now, turns + 1);
    }
    assert!(turns >= 20, "{turns}");
    cluster.put("a", b"2").unwrap();
}

#[test]
fn who_joins_gets_a_snapshot_that_knows_of_it() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    cluster.start(4, MemoryLog::new(), Beginning::Join);
    // There is no snapshot except the first one, and no load that would trigger another.
    change(&cluster, Change::AddLearner { id: 4, address: Addr::Node(4).to_string() }).unwrap();
    cluster.until("4 has it", |cluster| cluster.local(4, "a").is_some());
    assert_eq!(cluster.node(cluster.leader()).counters().snapshots_taken, 1);
    change(&cluster, Change::Promote { id: 4 }).unwrap();
    cluster.put("a", b"2").unwrap();
    cluster.until("4 has it", |cluster| cluster.local(4, "a").as_deref() == Some(b"2"));
}

#[test]
fn who_was_away_for_long_gets_a_snapshot() {
    let mut cluster = Cluster::new(3, snapshots());
    let leader = cluster.leader();
    let away = leader % 3 + 1;
    let log = cluster.stop(away);
    for number in 0..200_u32 {
        cluster.put(&format!("key {number}"), &number.to_le_bytes()).unwrap();
    }
    cluster.start(away, log, Beginning::Join);
    cluster.until("it has the last", |cluster| cluster.local(away, "key 199").is_some());
    assert_eq!(cluster.local(away, "key 3").as_deref(), Some(&3_u32.to_le_bytes()[..]));
    assert_eq!(cluster.node(away).counters().snapshots_restored, 1);
    assert!(cluster.node(leader).status().first > 100);
    // After a restart it begins with the snapshot that it was restored from.
    let log = cluster.stop(away);
    cluster.start(away, log, Beginning::Join);
    cluster.until("it has the last", |cluster| cluster.local(away, "key 199").is_some());
}

#[test]
fn large_commands_do_not_make_the_log_longer_than_it_may_be() {
    const LOG_BYTES: u64 = 1 << 20;
    // As many entries are kept as by default: far more than there are.
    let cluster = Cluster::new(3, NodeConfig { snapshot_log_bytes: LOG_BYTES, ..config() });
    let value = vec![7; 60_000];
    for number in 0..100 {
        cluster.put(&format!("key {}", number % 3), &value).unwrap();
        for id in 1..=3 {
            let bytes = cluster.node(id).with_log(|log| log.entry_bytes());
            assert!(bytes < LOG_BYTES + 200_000, "{bytes} bytes after {number} writes");
        }
    }
    let taken = cluster.node(cluster.leader()).counters().snapshots_taken;
    assert!((5..20).contains(&taken), "{taken} snapshots of 6 MB that came");
}

/// The next leader was added after the state of a replica that is far behind and got part of a snapshot from the
/// previous leader.
#[test]
fn a_leader_that_was_added_since_sends_its_snapshot_at_once() {
    const KEYS: u32 = 100;
    let mut cluster = Cluster::new(3, NodeConfig { chunk_bytes: 50, ..snapshots() });
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let (behind, leaving) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.paused = vec![behind];
    (0..KEYS).for_each(|number| _ = cluster.put(&format!("key {number}"), &[7; 300]).unwrap());
    cluster.start(4, MemoryLog::new(), Beginning::Join);
    change(&cluster, Change::AddLearner { id: 4, address: Addr::Node(4).to_string() }).unwrap();
    change(&cluster, Change::Promote { id: 4 }).unwrap();
    change(&cluster, Change::Remove { id: leaving }).unwrap();
    cluster.stop(leaving);
    cluster.until("it has all", |cluster| cluster.status(4).applied == cluster.status(leader).applied);
    let restored = |cluster: &Cluster| cluster.node(behind).counters().snapshots_restored;
    let before = restored(&cluster);
    cluster.paused.clear();
    cluster.turns(Duration::from_millis(10));
    assert_eq!(restored(&cluster), before, "part of it has come");
    cluster.stop(leader);
    let begun = cluster.now();
    cluster.until("it is restored", |cluster| restored(cluster) > before);
    assert!(cluster.now() - begun < Duration::from_millis(500), "after {:?}", cluster.now() - begun);
    cluster.until("it has all", |cluster| cluster.status(behind).voters == cluster.status(4).voters);
}
