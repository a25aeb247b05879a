//! Whole clusters over loopback, on simulated time.

mod backups;
mod disks;
mod doubts;
mod dribbled;
mod first_leader;
mod followers;
mod foreign;
mod forged;
mod harness;
mod long_answers;
mod members;
mod promises;
mod rearming;
mod redirects;
mod searches;
mod slow_paths;
mod snapshots;
mod storage;
mod unanswered;

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::msgbuf::MsgBuf;
use dunlin_smr::kv;
use dunlin_smr::wire::request::{Change, Request, set_cluster};
use dunlin_smr::wire::response::{Response, Role};
use dunlin_smr::wire::{self, command};
use dunlin_smr::{Beginning, ClientError, MemoryLog, NodeConfig, NodeError, Reads};

use harness::{Cluster, config};

#[test]
fn what_a_client_is_told_of_is_at_all_replicas() {
    let cluster = Cluster::new(3, config());
    for number in 0..20 {
        cluster.put(&format!("key {number}"), format!("value {number}").as_bytes()).unwrap();
    }
    assert_eq!(cluster.get("key 7").unwrap().as_deref(), Some(&b"value 7"[..]));
    assert_eq!(cluster.get("none").unwrap(), None);
    cluster.until("all have it", |cluster| (1..=3).all(|id| cluster.local(id, "key 19").is_some()));
    let leader = cluster.leader();
    let status = cluster.drive(cluster.client.status(leader)).unwrap();
    assert_eq!((status.role, status.voters, status.sessions), (Role::Leader, vec![1, 2, 3], 1));
    assert_eq!(cluster.node(leader).counters().bad, 0);
}

#[test]
fn one_replica_alone_is_a_cluster() {
    let cluster = Cluster::new(1, config());
    cluster.put("a", b"1").unwrap();
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn nothing_is_lost_with_a_leader() {
    let mut cluster = Cluster::new(3, config());
    let mut last = Vec::new();
    cluster.put("log", b"").unwrap();
    for round in 0..6_u8 {
        let leader = cluster.leader();
        cluster.append("log", &[round]).unwrap();
        last.push(round);
        let log = cluster.stop(leader);
        assert_eq!(cluster.get("log").unwrap().as_deref(), Some(&last[..]));
        cluster.append("log", &[100 + round]).unwrap();
        last.push(100 + round);
        cluster.start(leader, log, Beginning::Join);
        cluster.until("it has caught up", |cluster| cluster.local(leader, "log").as_deref() == Some(&last[..]));
    }
}

#[test]
fn a_leader_that_stood_still_is_replaced_and_follows() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let old = cluster.leader();
    cluster.paused.push(old);
    cluster.put("a", b"2").unwrap();
    cluster.paused.clear();
    cluster.until("it follows", |cluster| cluster.node(old).status().role == Role::Follower);
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"2"[..]));
    cluster.until("it has it", |cluster| cluster.local(old, "a").as_deref() == Some(&b"2"[..]));
}

#[test]
fn a_command_that_is_sent_again_is_executed_once() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("log", b"").unwrap();
    let leader = cluster.leader();
    let ask = |cluster: &Cluster, request: Request<'_>| {
        let leader = cluster.leader();
        let mut buffer = MsgBuf::with_len(request.encoded_len()).unwrap();
        request.encode(&mut buffer);
        set_cluster(&mut buffer, cluster.client.cluster().unwrap());
        let work = async {
            let session = cluster.endpoint.connect(&Addr::Node(leader as u32)).await.unwrap();
            session.call(wire::CLIENT, buffer).await.unwrap().response
        };
        let response = cluster.drive(work);
        match Response::parse(&response).unwrap() {
            Response::Ok(reply) => Ok(reply.to_vec()),
            other => Err(format!("{other:?}")),
        }
    };
    let open = command::Command {
        kind: command::Kind::OpenSession,
        time: 0,
        session: 0,
        sequence: 0,
        waits_from: 0,
        body: b"",
    };
    let session = u64::from_le_bytes(ask(&cluster, Request::Command(open)).unwrap()[..].try_into().unwrap());
    let body = kv::Command::Append { key: b"log", bytes: b"x" }.encode();
    let append =
        command::Command { kind: command::Kind::Apply, session, sequence: 1, waits_from: 1, body: &body, ..open };
    let first = ask(&cluster, Request::Command(append)).unwrap();
    assert_eq!(ask(&cluster, Request::Command(append)).unwrap(), first);
    cluster.stop(leader);
    assert_eq!(ask(&cluster, Request::Command(append)).unwrap(), first, "another leader knows it too");
    assert_eq!(cluster.get("log").unwrap().as_deref(), Some(&b"x"[..]));
    let next = command::Command { sequence: 2, waits_from: 2, ..append };
    assert_ne!(ask(&cluster, Request::Command(next)).unwrap(), first);
    assert_eq!(ask(&cluster, Request::Command(append)).unwrap_err(), "Old");
    let other = command::Command { session: session + 1000, ..append };
    assert_eq!(ask(&cluster, Request::Command(other)).unwrap_err(), "NoSession");
    assert_eq!(cluster.get("log").unwrap().as_deref(), Some(&b"xx"[..]));
}

/// Settings with snapshots so frequent that each replica that joins or returns gets one, in many pieces.
fn snapshots() -> NodeConfig {
    NodeConfig { snapshot_entries: 20, keep_entries: 4, chunk_bytes: 300, ..config() }
}

/// Makes a membership change. A new leader, or one that is busy with another change, refuses it, and is asked again.
fn change(cluster: &Cluster, change: Change) -> Result<(), ClientError> {
    loop {
        match cluster.drive(cluster.client.change(change.clone())) {
            Err(ClientError::Refused(why)) if why.contains("try again") => cluster.turns(Duration::from_millis(5)),
            result => return result,
        }
    }
}

#[test]
fn replicas_join_and_leave_under_load() {
    let mut cluster = Cluster::new(3, snapshots());
    let (mut sent, mut expected) = (0_u8, Vec::new());
    let mut load = |cluster: &Cluster, count: usize| {
        for _ in 0..count {
            cluster.append("log", &[sent]).unwrap();
            cluster.put(&format!("key {}", sent % 50), &[sent; 40]).unwrap();
            expected.push(sent);
            sent = sent.wrapping_add(1);
        }
        expected.clone()
    };
    cluster.put("log", b"").unwrap();
    load(&cluster, 40);
    cluster.start(4, MemoryLog::new(), Beginning::Join);
    let add = Change::AddLearner { id: 4, address: Addr::Node(4).to_string() };
    change(&cluster, add.clone()).unwrap();
    assert!(matches!(change(&cluster, add), Err(ClientError::Refused(why)) if why.contains("member already")));
    load(&cluster, 30);
    change(&cluster, Change::Promote { id: 4 }).unwrap();
    assert!(matches!(change(&cluster, Change::Promote { id: 9 }), Err(ClientError::Refused(_))));
    load(&cluster, 10);
    assert!(cluster.node(4).counters().snapshots_restored > 0);
    let leader = cluster.leader();
    assert!(
        matches!(change(&cluster, Change::Remove { id: leader }), Err(ClientError::Refused(why)) if why.contains("transfer"))
    );
    cluster.drive(cluster.client.transfer(4)).unwrap();
    cluster.until("4 leads", |cluster| cluster.node(4).status().role == Role::Leader);
    change(&cluster, Change::Remove { id: leader }).unwrap();
    cluster.stop(leader);
    let expected = load(&cluster, 10);
    assert_eq!(cluster.get("log").unwrap(), Some(expected));
    let mut voters = vec![1, 2, 3, 4];
    voters.retain(|id| *id != leader);
    assert_eq!(cluster.node(4).status().voters, voters);
}

/// A replica is elected that has the entry of its own removal in its log, which the previous leader proposed and could
/// not commit.
#[test]
fn a_leader_that_removes_itself_steps_down() {
    let mut cluster = Cluster::new(3, config());
    let leader = cluster.leader();
    cluster.put("a", b"1").unwrap();
    let (leaving, staying) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let last = |cluster: &Cluster| cluster.node(leaving).status().last;
    let before = last(&cluster);
    cluster.paused = vec![staying];
    {
        let mut change = Box::pin(cluster.client.change(Change::Remove { id: leaving }));
        while last(&cluster) == before {
            assert!(cluster.endpoint.poll_once(change.as_mut()).is_none());
            cluster.turn();
        }
    }
    cluster.paused = vec![leader];
    cluster.until("it leads, and then no longer", |cluster| {
        let (status, elected) = (cluster.node(leaving).status(), cluster.node(leaving).counters().elected);
        assert!(status.role != Role::Leader || status.voters.contains(&leaving), "who has left does not lead");
        elected > 0 && status.role == Role::Follower
    });
    cluster.paused.clear();
    cluster.until("another leads without it", |cluster| {
        [leader, staying].iter().any(|id| {
            let status = cluster.node(*id).status();
            status.role == Role::Leader && !status.voters.contains(&leaving)
        })
    });
    assert_eq!(cluster.put("a", b"2").map(drop), Ok(()));
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_leader_that_leaves_hands_over_to_who_is_there() {
    let mut cluster = Cluster::new(3, config());
    let leader = cluster.leader();
    cluster.put("a", b"1").unwrap();
    let (away, there) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    assert_eq!(cluster.node(there).hand_over(), None, "it does not lead");
    drop(cluster.stop(away));
    cluster.put("a", b"2").unwrap();
    assert_eq!(cluster.node(leader).hand_over(), Some(there));
    cluster.until("the other leads", |cluster| cluster.node(there).status().role == Role::Leader);
    assert_eq!(cluster.node(leader).counters().elected, 1);
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"2"[..]));
}

/// Two reads wait at a leader that hears from nobody: the second is turned away when both exceed the limit, and is
/// retried.
#[test]
fn reads_that_wait_are_bounded_by_their_bytes() {
    let long = "k".repeat(200);
    for (read_bytes_max, turned_away) in [(300, true), (400, false)] {
        let mut cluster = Cluster::new(3, NodeConfig { read_bytes_max, ..config() });
        cluster.put(&long, b"1").unwrap();
        // This opens the session for reads.
        assert_eq!(cluster.get(&long).unwrap().as_deref(), Some(&b"1"[..]));
        let leader = cluster.leader();
        cluster.paused = (1..=3).filter(|id| *id != leader).collect();
        {
            let query = || Box::pin(cluster.client.query(long.as_bytes()));
            let (mut first, mut second) = (query(), query());
            for _ in 0..100 {
                assert!(cluster.endpoint.poll_once(first.as_mut()).is_none());
                assert!(cluster.endpoint.poll_once(second.as_mut()).is_none());
                cluster.turn();
            }
        }
        assert_eq!(cluster.node(leader).counters().pushed_back > 0, turned_away, "{read_bytes_max}");
        let too_long = "k".repeat(read_bytes_max + 1);
        assert_eq!(cluster.drive(cluster.client.query(too_long.as_bytes())).map(drop), Err(ClientError::TooLarge));
        cluster.paused.clear();
        assert_eq!(cluster.get(&long).unwrap().as_deref(), Some(&b"1"[..]));
    }
}

#[test]
fn large_commands_are_commands() {
    let cluster = Cluster::new(3, NodeConfig { snapshot_log_bytes: 4 << 20, keep_entries: 1, ..config() });
    let value: Vec<u8> = (0..1_u32 << 20).map(|number| (number % 251) as u8).collect();
    for number in 0..6 {
        cluster.put(&format!("key {number}"), &value).unwrap();
    }
    assert_eq!(cluster.get("key 5").unwrap().as_ref(), Some(&value));
    let leader = cluster.leader();
    assert!(cluster.node(leader).counters().snapshots_taken > 0, "the log is as long as it may be");
    let too_long = vec![0; (2 << 20) + 1];
    assert_eq!(cluster.drive(cluster.client.execute(&too_long)).unwrap_err(), ClientError::TooLarge);
}

#[test]
fn who_comes_back_without_its_log_stops() {
    let mut cluster = Cluster::new(3, config());
    for number in 0..20_u32 {
        cluster.put(&format!("key {number}"), &number.to_le_bytes()).unwrap();
    }
    // The one with the lowest id would found another cluster.
    let leader = cluster.leader();
    let empty = if leader == 2 { 3 } else { 2 };
    cluster.until("it has all", |cluster| cluster.local(empty, "key 19").is_some());
    cluster.turns(Duration::from_millis(10));
    cluster.stop(empty);
    cluster.start(empty, MemoryLog::new(), Beginning::First((1..=3).map(|id| (id, Addr::Node(id as u32))).collect()));
    cluster.until("it notices", |cluster| cluster.node(empty).failure().is_some());
    assert_eq!(cluster.node(empty).failure(), Some(NodeError::LogLost { id: empty }));
    // The others continue.
    cluster.put("one more", b"").unwrap();
}

#[test]
fn a_lease_answers_alone_and_ends_before_another_is_elected() {
    let mut cluster = Cluster::new(3, NodeConfig { reads: Reads::Lease, ..config() });
    cluster.put("a", b"1").unwrap();
    cluster.turns(Duration::from_millis(5));
    let leader = cluster.leader();
    let before = cluster.node(leader).counters();
    let envelopes = before.envelopes;
    assert_eq!(cluster.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    let after = cluster.node(leader).counters();
    assert!(after.lease_reads == before.lease_reads + 1 && after.envelopes <= envelopes + 4, "{after:?}");
    // Nobody else runs: the lease runs out, and no majority can be asked.
    cluster.paused = (1..=3).filter(|id| *id != leader).collect();
    cluster.turns(Duration::from_millis(15));
    let read = cluster.node(leader).counters().lease_reads;
    cluster.endpoint.run_once();
    let failed = cluster.drive(cluster.client.query(b"a")).map(drop);
    assert_eq!(failed, Err(ClientError::TimedOut { may_have_run: false }), "a question leaves no trace");
    assert_eq!(cluster.node(leader).counters().lease_reads, read);
}

#[test]
fn reads_share_a_round_to_the_majority() {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    cluster.turns(Duration::from_millis(10));
    let leader = cluster.leader();
    let before = cluster.node(leader).counters();
    let reads: Vec<_> = (0..50).map(|_| cluster.client.query(b"a")).collect();
    cluster.drive(futures_join(reads)).into_iter().for_each(|reply| assert!(reply.is_ok()));
    let after = cluster.node(leader).counters();
    assert_eq!((after.reads - before.reads, after.lease_reads), (50, 0));
    assert!(after.envelopes - before.envelopes < 50, "{before:?} {after:?}");
}

async fn futures_join<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        let mut is_over = true;
        for (future, output) in &mut futures {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
            is_over &= output.is_some();
        }
        if !is_over {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(futures.iter_mut().filter_map(|(_, output)| output.take()).collect())
    })
    .await
}

#[test]
fn beyond_its_limit_a_leader_is_busy() {
    let cluster = Cluster::new(3, NodeConfig { proposals_max: 4, ..config() });
    cluster.put("a", b"1").unwrap();
    let put = kv::Command::Put { key: b"a", value: b"2", condition: kv::Condition::Always }.encode();
    let commands: Vec<_> = (0..40).map(|_| cluster.client.execute(&put)).collect();
    // They get back-pressure, wait, and are executed all the same.
    cluster.drive(futures_join(commands)).into_iter().for_each(|reply| assert!(reply.is_ok(), "{reply:?}"));
    assert!(cluster.node(cluster.leader()).counters().pushed_back > 0);
}

#[test]
fn beyond_its_limit_a_client_waits() {
    let cluster = Cluster::new(1, config());
    cluster.put("a", b"1").unwrap();
    let put = kv::Command::Put { key: b"a", value: b"2", condition: kv::Condition::Always }.encode();
    let commands: Vec<_> =
        (0..3 * dunlin_smr::COMMANDS_PER_SESSION_MAX).map(|_| cluster.client.execute(&put)).collect();
    let results = cluster.drive(futures_join(commands));
    assert_eq!(results.len(), 3 * dunlin_smr::COMMANDS_PER_SESSION_MAX);
    results.into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
}

#[test]
fn sessions_end_and_are_opened_again() {
    let cluster = Cluster::new(3, NodeConfig { sessions_max: 2, ..config() });
    cluster.put("a", b"1").unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| dunlin_smr::Client::new(&cluster.endpoint, cluster.client.members(), Default::default()))
        .collect();
    let put = kv::Command::Put { key: b"b", value: b"", condition: kv::Condition::Always }.encode();
    for other in &others {
        cluster.drive(other.execute(&put)).unwrap();
    }
    // The first session was the least recently used one, and is gone; the client opens another.
    cluster.put("a", b"2").unwrap();
    assert_eq!(cluster.node(cluster.leader()).status().sessions, 2);
    cluster.drive(cluster.client.keep_alive()).unwrap();
    cluster.drive(cluster.client.close()).unwrap();
    assert_eq!(cluster.node(cluster.leader()).status().sessions, 1);
    cluster.put("a", b"3").unwrap();
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let refused = |config: NodeConfig, beginning: Beginning| {
        let network = dunlin_net::loopback::LoopbackNetwork::new(Default::default());
        let endpoint =
            std::rc::Rc::new(dunlin_rpc::Endpoint::new(network.endpoint(1).unwrap(), Default::default()).unwrap());
        let machine = kv::KvMachine::new(1 << 20).unwrap();
        dunlin_smr::Node::start(&endpoint, config, MemoryLog::new(), machine, beginning).err().unwrap()
    };
    let other = Beginning::First(vec![(2, Addr::Node(2))]);
    assert!(matches!(refused(config(), other), NodeError::Members { .. }));
    let same = Beginning::First(vec![(1, Addr::Node(1)), (2, Addr::Node(1))]);
    assert!(matches!(refused(config(), same), NodeError::Members { .. }));
    assert!(matches!(
        refused(NodeConfig { id: 0, ..config() }, Beginning::Join),
        NodeError::Setting { name: "id", .. }
    ));
    let hasty = NodeConfig { election_ticks: 5, ..config() };
    assert!(matches!(refused(hasty, Beginning::Join), NodeError::Setting { .. }));
}

/// The founder's machine has its initial state already, which is also what the first snapshot of its log contains.
#[test]
fn a_founders_first_state_is_restored_once() {
    use dunlin_smr::StateMachine as _;

    let network = dunlin_net::loopback::LoopbackNetwork::new(Default::default());
    let endpoint =
        std::rc::Rc::new(dunlin_rpc::Endpoint::new(network.endpoint(1).unwrap(), Default::default()).unwrap());
    let put = kv::Command::Put { key: b"first", value: b"1", condition: kv::Condition::Always }.encode();
    let mut machine = kv::KvMachine::new(1 << 20).unwrap();
    machine.apply(1, &put, &mut Vec::new());
    let beginning = Beginning::First(vec![(1, Addr::Node(1))]);
    let clock = network.clone();
    let config = NodeConfig { id: 1, clock: std::rc::Rc::new(move || clock.now()), ..config() };
    let node = dunlin_smr::Node::start(&endpoint, config, MemoryLog::new(), machine, beginning).unwrap();
    for _ in 0..10_000 {
        network.advance(Duration::from_micros(10));
        endpoint.run_once();
    }
    assert_eq!((node.failure(), node.status().role), (None, Role::Leader));
    assert_eq!(node.with_machine(kv::KvMachine::items), 1);
}
