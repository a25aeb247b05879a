//! Errors that clients get when no replica does what they ask.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::kv::Query;
use dunlin_smr::{Beginning, ClientConfig, ClientError, MemoryLog};

use super::harness::{Cluster, client_config, config};

#[test]
fn a_command_is_in_no_doubt_that_was_never_sent() {
    let mut cluster = Cluster::new(3, config());
    let leader = cluster.leader();
    // The client learns the number of the cluster here.
    assert_eq!(cluster.get("a"), Ok(None));
    drop((1..=3).filter(|id| *id != leader).map(|id| cluster.stop(id)).collect::<Vec<_>>());
    // The session may have been opened, but no command was sent in it.
    let result = cluster.put("a", b"1");
    assert_eq!(result, Err(ClientError::TimedOut { may_have_run: false }));
}

/// A replica of another cluster may reuse an address.
#[test]
fn a_stranger_is_named_unless_the_cluster_itself_has_answered() {
    let stranger = |cluster: &mut Cluster, id: u64| {
        cluster.start(id, MemoryLog::new(), Beginning::First(vec![(id, Addr::Node(id as u32))]));
        cluster.node(id).status().cluster.unwrap()
    };
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    for id in [1, 2] {
        drop(cluster.stop(id));
    }
    let other = stranger(&mut cluster, 1);
    // The third replica knows of no leader: that is the actual problem.
    assert_eq!(cluster.get("a"), Err(ClientError::TimedOut { may_have_run: false }));
    drop(cluster.stop(3));
    assert_eq!(cluster.get("a"), Err(ClientError::OtherCluster { found: other }));
    let others = [other, stranger(&mut cluster, 2), stranger(&mut cluster, 3)];
    assert!(matches!(cluster.get("a"), Err(ClientError::OtherCluster { found }) if others.contains(&found)));
    let strangers: Vec<_> = cluster.client.strangers().iter().map(|stranger| stranger.cluster).collect();
    assert!(others.iter().all(|other| strangers.contains(other)), "{strangers:?}");
}

/// A leader stands still, and another one is elected, while the client would wait for an answer for much longer.
#[test]
fn a_query_that_must_be_answered_soon_is_sent_again_soon() {
    let mut cluster = Cluster::new(3, config());
    let time = Duration::from_millis(300);
    let config = ClientConfig { attempt_timeout: time, ..client_config() };
    cluster.change_client(8, config);
    cluster.put("a", b"1").unwrap();
    cluster.paused.push(cluster.leader());
    let answered = cluster.drive(cluster.client.query_within(Query { key: b"a" }.encode(), time));
    assert!(answered.is_ok(), "{answered:?}");
}

/// A new leader that the client was not told of is found, and asked first from then on.
#[test]
fn a_leader_that_was_found_in_time_is_asked_first_from_then_on() {
    let mut cluster = Cluster::new(3, config());
    let long = Duration::from_secs(1);
    cluster.change_client(8, ClientConfig { attempt_timeout: long, ..client_config() });
    cluster.put("a", b"1").unwrap();
    cluster.get("a").unwrap();
    cluster.paused.push(cluster.leader());
    let ask = |cluster: &Cluster| {
        let begun = cluster.now();
        cluster.drive(cluster.client.query_within(Query { key: b"a" }.encode(), long)).unwrap();
        cluster.now() - begun
    };
    assert!(ask(&cluster) >= long / 6, "the old leader was asked first");
    let again = ask(&cluster);
    assert!(again < Duration::from_millis(10), "{again:?}");
}

/// There is nobody else to ask.
#[test]
fn an_answer_of_the_only_replica_is_awaited() {
    let mut cluster = Cluster::new(1, config());
    cluster.change_client(8, client_config());
    cluster.put("a", b"1").unwrap();
    cluster.paused.push(1);
    let answered = cluster.drive(cluster.client.query_within(Query { key: b"a" }.encode(), Duration::from_millis(300)));
    assert_eq!(answered.err(), Some(ClientError::TimedOut { may_have_run: false }));
}
