//! Replicas that are claimed to have lost entries.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::CallOptions;
use dunlin_smr::wire;
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Beginning, LogStore as _, MemoryLog, NodeConfig, NodeError};

use super::forged::{Forged, HEARTBEAT, LONG, envelope};
use super::harness::{Cluster, config};

#[test]
fn who_may_have_lost_entries_takes_no_part_in_elections() {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    lost_entries_elect_nobody(cluster, 1000);
}

/// The same while the replica restores the state of its log, one piece in each turn.
#[test]
fn who_restores_its_state_may_have_lost_entries_too() {
    let quick = NodeConfig { heartbeat_ticks: 1, election_ticks: 4, ..config() };
    let pieces = NodeConfig { snapshot_step_bytes: 30, snapshot_entries: 600, keep_entries: 4, ..quick };
    let cluster = Cluster::new(3, pieces);
    let has_snapshots = |cluster: &Cluster| {
        (1..=3).all(|id| cluster.node(id).with_log(|log| log.base().get_metadata().index) > KEYS.into())
    };
    for number in 0.. {
        cluster.put(&format!("key {}", number % KEYS), &[7; 60]).unwrap();
        if number > KEYS && has_snapshots(&cluster) {
            break;
        }
    }
    // For the whole time of restoring the state.
    lost_entries_elect_nobody(cluster, KEYS / 5);
}

/// Keys of a state; a turn restores one.
const KEYS: u32 = 500;

/// A replica with part of its log, one that is behind, and a paused leader that knows both: together the two could
/// elect a leader that lacks committed entries.
fn lost_entries_elect_nobody(mut cluster: Cluster, turns: u32) {
    let leader = cluster.leader();
    cluster.turns(LONG);
    let [lost, behind] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let before = cluster.node(lost).with_log(MemoryLog::clone);
    cluster.paused.push(behind);
    (0..5).for_each(|number| _ = cluster.put("b", &[number]).unwrap());
    cluster.stop(lost);
    cluster.start(lost, before, Beginning::Join);
    cluster.until("the leader has said so", |cluster| cluster.node(lost).counters().bad > 0);
    cluster.paused = vec![leader];
    for _ in 0..turns {
        cluster.turns(Duration::from_micros(150));
        assert!([lost, behind].iter().all(|id| cluster.node(*id).status().role != Role::Leader));
    }
    cluster.paused.clear();
    cluster.until("it has found out", |cluster| cluster.node(lost).failure() == Some(NodeError::LogLost { id: lost }));
    assert_eq!(cluster.get("b").unwrap().as_deref(), Some(&[4][..]));
}

/// A forger claims it again and again, in the name of a paused leader: the others elect another leader nevertheless.
#[test]
fn who_does_not_answer_is_not_doubted_for_ever() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    cluster.turns(LONG);
    cluster.paused.push(leader);
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let leads = |cluster: &Cluster| others.iter().any(|id| cluster.node(*id).status().role == Role::Leader);
    for _ in 0..100 {
        for to in others {
            let Status { cluster: number, term, last, .. } = cluster.node(to).status();
            let forged = Forged { kind: HEARTBEAT, to, from: leader, term, commit: last + 5, ..Forged::default() };
            forged.send(&cluster, number.unwrap().bits());
        }
        cluster.turns(Duration::from_millis(5));
        if leads(&cluster) {
            break;
        }
    }
    assert!(leads(&cluster), "{:?}", others.map(|id| cluster.node(id).status()));
    cluster.put("a", b"2").unwrap();
}

/// A forger claims it all the time, in the name of a member that answers.
#[test]
fn who_answers_is_not_doubted_all_the_time() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    cluster.turns(LONG);
    cluster.paused.push(leader);
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let sessions = others.map(|to| cluster.drive(cluster.endpoint.connect(&Addr::Node(to as u32))).unwrap());
    for _ in 0..40_000 {
        for (at, session) in sessions.iter().enumerate() {
            let (to, from) = (others[at], others[1 - at]);
            let Status { cluster: number, term, last, .. } = cluster.node(to).status();
            let forged = Forged { kind: HEARTBEAT, to, from, term, commit: last + 5, ..Forged::default() };
            let options = CallOptions::timeout(Duration::from_millis(20));
            let call = session.call_with(wire::PEER, envelope(&[forged], number.unwrap().bits()), options);
            cluster.endpoint.spawn(async { drop(call.await) });
        }
        cluster.turns(Duration::from_micros(50));
        if others.iter().any(|id| cluster.node(*id).status().role == Role::Leader) {
            return;
        }
    }
    panic!("nobody was elected: {:?}", others.map(|id| cluster.node(id).status()));
}
