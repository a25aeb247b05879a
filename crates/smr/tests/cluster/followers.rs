//! Reads that followers answer.

use std::time::Duration;

use dunlin_smr::kv::{Answer, Query};
use dunlin_smr::{ClientError, ReadFrom};

use super::futures_join;
use super::harness::{Cluster, config};

fn reading_from(cluster: &mut Cluster, read_from: ReadFrom) {
    cluster.client = cluster.client.of_group(0).reading_from(read_from);
}

/// A follower learns that an entry is committed with the next one, or with a heartbeat: it is behind when it is asked.
#[test]
fn any_replica_answers_as_of_now() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"0").unwrap();
    let leader = cluster.leader();
    let mut behind = 0;
    for round in 1..=9_u8 {
        let follower = (leader + u64::from(round) % 2) % 3 + 1;
        reading_from(&mut cluster, ReadFrom::Replica(follower));
        cluster.put("a", &[round]).unwrap();
        behind += u32::from(cluster.local(follower, "a") != Some(vec![round]));
        assert_eq!(cluster.get("a").unwrap(), Some(vec![round]), "replica {follower}");
        assert!(cluster.node(follower).counters().follower_reads > 0);
    }
    assert!(behind > 0, "no follower was behind");
    reading_from(&mut cluster, ReadFrom::Any);
    let reads = |cluster: &Cluster| (1..=3).map(|id| cluster.node(id).counters().reads).collect::<Vec<u64>>();
    let before = reads(&cluster);
    for _ in 0..9 {
        assert_eq!(cluster.get("a").unwrap(), Some(vec![9]));
    }
    let answered: Vec<u64> = reads(&cluster).into_iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(answered, [3, 3, 3]);
    reading_from(&mut cluster, ReadFrom::Replica(7));
    assert_eq!(cluster.get("a"), Err(ClientError::Unknown(7)));
}

/// With its leader it has lost who knows what is committed.
#[test]
fn a_follower_that_is_alone_answers_nothing() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let follower = cluster.leader() % 3 + 1;
    cluster.until("it has it", |cluster| cluster.local(follower, "a").is_some());
    reading_from(&mut cluster, ReadFrom::Replica(follower));
    assert!(cluster.get("a").unwrap().is_some());
    cluster.paused = (1..=3).filter(|id| *id != follower).collect();
    assert_eq!(cluster.get("a"), Err(ClientError::TimedOut { may_have_run: false }));
    cluster.paused.clear();
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// One question at a time goes to the leader, for all reads that came before it.
#[test]
fn reads_of_a_follower_share_a_question() {
    const READS: usize = 60;
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let follower = cluster.leader() % 3 + 1;
    reading_from(&mut cluster, ReadFrom::Replica(follower));
    // The session is open.
    cluster.get("a").unwrap();
    cluster.turns(Duration::from_millis(5));
    let before = cluster.node(follower).counters();
    let query = Query { key: b"a" };
    let answers = cluster.drive(futures_join((0..READS).map(|_| cluster.client.query(query.encode())).collect()));
    for answer in answers {
        assert!(matches!(Answer::parse(&answer.unwrap()), Ok(Answer::Value { value: b"1", .. })));
    }
    let after = cluster.node(follower).counters();
    assert_eq!(after.follower_reads - before.follower_reads, READS as u64);
    let questions = after.index_questions - before.index_questions;
    assert!(questions <= READS as u64 / 6, "{questions} questions for {READS} reads");
}
