//! Reads that followers answer.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::MsgBuf;
use dunlin_smr::kv::{Answer, Query};
use dunlin_smr::wire::request::{Change, Request, set_cluster};
use dunlin_smr::wire::response::Response;
use dunlin_smr::{Beginning, Client, ClientConfig, ClientError, MemoryLog, NodeConfig, ReadFrom, wire};

use super::harness::{Cluster, client_config, config};
use super::{change, futures_join};

fn reading_from(cluster: &mut Cluster, read_from: ReadFrom) {
    cluster.client = cluster.client.of_group(0).reading_from(read_from);
}

/// A follower learns that an entry is committed with the next append or heartbeat: it is behind when it is asked.
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

/// Without its leader, it cannot learn the commit index.
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

/// One question at a time goes to the leader, for all reads that arrived before it.
#[test]
fn reads_of_a_follower_share_a_question() {
    const READS: usize = 60;
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let follower = cluster.leader() % 3 + 1;
    reading_from(&mut cluster, ReadFrom::Replica(follower));
    // This opens the session.
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

/// A follower's question is for all reads that wait there: it has room besides the reads of the leader's own clients.
#[test]
fn a_follower_is_told_while_its_leader_is_busy() {
    const READS: u64 = 20;
    let mut cluster = Cluster::new(3, NodeConfig { reads_max: 2, ..config() });
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let eager = ClientConfig { pause: Duration::from_micros(50), ..client_config() };
    for _ in 0..40 {
        let client = Client::new(&cluster.endpoint, cluster.members.clone(), eager);
        cluster.endpoint.spawn(async move {
            loop {
                drop(client.query(Query { key: b"a" }.encode()).await);
            }
        });
    }
    let follower = leader % 3 + 1;
    reading_from(&mut cluster, ReadFrom::Replica(follower));
    cluster.turns(Duration::from_millis(20));
    let counters = |cluster: &Cluster| (cluster.node(leader).counters().pushed_back, cluster.node(follower).counters());
    let before = counters(&cluster);
    for _ in 0..READS {
        assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    }
    let after = counters(&cluster);
    assert!(after.0 > before.0 + 10 * READS, "{} reads of the leader were pushed back", after.0 - before.0);
    let [questions, answered] =
        [after.1.index_questions - before.1.index_questions, after.1.follower_reads - before.1.follower_reads];
    assert_eq!((questions, answered), (READS, READS));
}

/// A removed learner does not miss its leader. It remembers the leader at its removal, and will never execute later
/// entries, so it rejects reads at once.
#[test]
fn a_replica_that_was_removed_keeps_no_reads() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let (leader, removed) = (cluster.leader(), 4);
    cluster.start(removed, MemoryLog::new(), Beginning::Join);
    change(&cluster, Change::AddLearner { id: removed, address: Addr::Node(4).to_string() }).unwrap();
    cluster.until("it has it", |cluster| cluster.local(removed, "a").is_some());
    change(&cluster, Change::Remove { id: removed }).unwrap();
    cluster.put("a", b"2").unwrap();
    cluster.turns(Duration::from_millis(50));
    let status = cluster.status(removed);
    assert_eq!(status.leader, Some(leader));
    let request = Request::ReadHere(Query { key: b"a" }.encode());
    let begun = cluster.now();
    let answer = cluster.drive(async {
        let mut buffer = MsgBuf::with_len(request.encoded_len()).unwrap();
        request.encode(&mut buffer);
        set_cluster(&mut buffer, status.cluster.unwrap());
        let session = cluster.endpoint.connect(&Addr::Node(removed as u32)).await.unwrap();
        session.call(wire::CLIENT, buffer).await.unwrap().response
    });
    assert!(matches!(Response::parse(&answer), Ok(Response::NotLeader { .. })));
    assert!(cluster.now() - begun < Duration::from_millis(5), "after {:?}", cluster.now() - begun);
}
