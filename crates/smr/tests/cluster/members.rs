//! Membership changes that would leave no majority of reachable replicas.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_smr::wire::request::Change;
use dunlin_smr::{Beginning, ClientError, MemoryLog};

use super::change;
use super::harness::{Cluster, config};

/// Longer than an election timeout.
const LONG: Duration = Duration::from_millis(30);

/// Asks for a change, once.
fn ask(cluster: &Cluster, change: Change) -> Result<(), ClientError> {
    cluster.drive(cluster.client.change(change))
}

fn refused(cluster: &Cluster, change: Change, why: &str) {
    match ask(cluster, change) {
        Err(ClientError::Refused(said)) => assert!(said.contains(why) && said.contains("try again"), "{said}"),
        other => panic!("{other:?}, and not refused because {why:?}"),
    }
}

/// Returns three members and an up-to-date learner: the cluster, its leader, and the two others.
fn three_and_a_learner() -> (Cluster, u64, [u64; 2]) {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    cluster.start(4, MemoryLog::new(), Beginning::Join);
    change(&cluster, Change::AddLearner { id: 4, address: Addr::Node(4).to_string() }).unwrap();
    cluster.until("the learner has it", |cluster| cluster.local(4, "a").is_some());
    let has_caught_up = |cluster: &Cluster| cluster.node(leader).status().matched[3] > 1;
    cluster.until("the leader knows", has_caught_up);
    (cluster, leader, [leader % 3 + 1, (leader + 1) % 3 + 1])
}

#[test]
fn a_replica_is_replaced_without_a_wait() {
    let (cluster, leader, [leaving, _]) = three_and_a_learner();
    assert_eq!(ask(&cluster, Change::Promote { id: 4 }), Ok(()));
    assert_eq!(ask(&cluster, Change::Remove { id: leaving }), Ok(()));
    let mut voters = vec![1, 2, 3, 4];
    voters.retain(|id| *id != leaving);
    assert_eq!(cluster.node(leader).status().voters, voters);
}

#[test]
fn a_learner_that_is_not_there_gets_no_vote() {
    let (mut cluster, leader, [away, _]) = three_and_a_learner();
    let log = cluster.stop(4);
    cluster.turns(LONG);
    refused(&cluster, Change::Promote { id: 4 }, "4 was not heard of lately, and its vote would be missed");
    cluster.start(4, log, Beginning::Join);
    change(&cluster, Change::Promote { id: 4 }).unwrap();
    assert_eq!(cluster.node(leader).status().voters, [1, 2, 3, 4]);
    // Three of four are enough, and so are two of three.
    cluster.stop(away);
    cluster.turns(LONG);
    assert_eq!(ask(&cluster, Change::Remove { id: 4 }), Ok(()));
}

#[test]
fn nobody_is_removed_without_whom_no_majority_is_there() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let (away, there) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.paused = vec![away];
    cluster.turns(LONG);
    let mut left = [leader, away];
    left.sort_unstable();
    let why = format!("of {}, {}, which would have votes then, {away} was not heard of lately", left[0], left[1]);
    refused(&cluster, Change::Remove { id: there }, &why);
    cluster.put("a", b"2").unwrap();
    // Once the replica is back, the change is possible.
    cluster.paused.clear();
    cluster.until("it has it", |cluster| cluster.local(away, "a").as_deref() == Some(b"2"));
    cluster.turns(Duration::from_millis(5));
    assert_eq!(ask(&cluster, Change::Remove { id: there }), Ok(()));
    cluster.put("a", b"3").unwrap();
}

#[test]
fn who_is_not_there_is_removed() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let away = leader % 3 + 1;
    cluster.stop(away);
    cluster.turns(LONG);
    assert_eq!(ask(&cluster, Change::Remove { id: away }), Ok(()));
    cluster.put("a", b"2").unwrap();
    // Of the two that are left, both are needed; but if one is removed, the other is a majority.
    let other = (1..=3).find(|id| ![leader, away].contains(id)).unwrap();
    assert_eq!(ask(&cluster, Change::Remove { id: other }), Ok(()));
    cluster.put("a", b"3").unwrap();
}

/// Its machine has another address, and it still has its log.
#[test]
fn a_replica_that_comes_back_elsewhere_is_taken() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let away = leader % 3 + 1;
    let address = |node| Addr::Node(node).to_string();
    let moved = Change::Move { id: away, address: address(50) };
    cluster.turns(LONG);
    refused(&cluster, moved.clone(), &format!("{away} is heard of where it is reached now"));
    let log = cluster.stop(away);
    cluster.turns(LONG);
    let taken = Change::AddLearner { id: 9, address: address(leader as u32) };
    let refused = ask(&cluster, taken);
    assert!(matches!(refused, Err(ClientError::Refused(said)) if said.contains("is the address of replica")));
    for (id, node, why) in [(9, 50, "9 is no member"), (away, leader as u32, "is the address of replica")] {
        let change = Change::Move { id, address: address(node) };
        assert!(matches!(ask(&cluster, change), Err(ClientError::Refused(said)) if said.contains(why)));
    }
    cluster.members.iter_mut().find(|(id, _)| *id == away).unwrap().1 = Addr::Node(50);
    cluster.start(away, log, Beginning::Join);
    cluster.put("a", b"2").unwrap();
    change(&cluster, moved).unwrap();
    cluster.until("it has all", |cluster| cluster.local(away, "a").as_deref() == Some(b"2"));
    assert_eq!(cluster.status(away).addresses[&away], address(50));
    assert_eq!(cluster.status(leader).voters, [1, 2, 3]);
    // Its vote counts: without the third one, both are needed.
    let third = 6 - leader - away;
    cluster.stop(third);
    cluster.put("a", b"3").unwrap();
    // It keeps that knowledge over a restart.
    let log = cluster.stop(away);
    cluster.start(away, log, Beginning::Join);
    cluster.put("a", b"4").unwrap();
    cluster.until("it has all", |cluster| cluster.local(away, "a").as_deref() == Some(b"4"));
}

/// Another replica got its old address before it was moved: the leader, which was just connecting to it there, has
/// nothing to say to that one.
#[test]
fn who_moved_is_not_taken_for_who_is_at_its_old_address() {
    const ELSEWHERE: u32 = 50;
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    let away = leader % 3 + 1;
    let log = cluster.stop(away);
    cluster.turns(LONG);
    change(&cluster, Change::Move { id: away, address: Addr::Node(ELSEWHERE).to_string() }).unwrap();
    cluster.members.push((9, Addr::Node(away as u32)));
    cluster.start(9, MemoryLog::new(), Beginning::Join);
    cluster.turns(LONG);
    cluster.members.iter_mut().find(|(id, _)| *id == away).unwrap().1 = Addr::Node(ELSEWHERE);
    cluster.start(away, log, Beginning::Join);
    // Too long for an answer to its own question.
    let begun = cluster.now();
    cluster.put("long", &[7; 100_000]).unwrap();
    cluster.until("it has it", |cluster| cluster.local(away, "long").is_some());
    assert!(cluster.now() - begun < Duration::from_secs(1), "after {:?}", cluster.now() - begun);
    assert_eq!(cluster.leader(), leader);
}
