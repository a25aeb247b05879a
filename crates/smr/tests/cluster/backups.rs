//! Copies of the state, piece by piece, while the cluster goes on.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::MsgBuf;
use dunlin_smr::backup::GroupState;
use dunlin_smr::kv::{Command, Condition, KvMachine};
use dunlin_smr::wire::request::{Request, set_cluster};
use dunlin_smr::wire::response::Response;
use dunlin_smr::{Client, ClientConfig, ClientError, NodeConfig, StateMachine as _, wire};

use super::harness::{Cluster, client_config, config};

const KEYS: u64 = 150;

type Copied = Rc<RefCell<Option<Result<GroupState, ClientError>>>>;

/// A cluster whose state is copied in hundreds of pieces.
fn filled(config: NodeConfig) -> Cluster {
    let cluster = Cluster::new(3, NodeConfig { chunk_bytes: 200, ..config });
    (0..KEYS).for_each(|number| _ = cluster.put(&format!("key {number}"), &[7; 300]).unwrap());
    cluster
}

/// Calls that the client has made.
fn calls(cluster: &Cluster) -> u64 {
    cluster.endpoint.stats().counters.calls_started
}

/// Begins a copy, and goes on until the first pieces must be there.
fn begin(cluster: &Cluster) -> Copied {
    let (copied, before) = (Copied::default(), calls(cluster));
    let (client, done) = (Client::new(&cluster.endpoint, cluster.members.clone(), client_config()), copied.clone());
    cluster.endpoint.spawn(async move {
        let state = client.backup().await;
        done.borrow_mut().replace(state);
    });
    cluster.until("there are pieces", |cluster| calls(cluster) - before >= 20);
    assert!(copied.borrow().is_none(), "it takes longer");
    copied
}

/// Finishes the copy, and restores it.
fn end(cluster: &Cluster, copied: &Copied) -> KvMachine {
    cluster.until("the copy has come to an end", |_| copied.borrow().is_some());
    let copied = copied.borrow();
    let state = copied.as_ref().unwrap().as_ref().unwrap();
    let mut machine = KvMachine::with_secret(64 << 20, [1, 1]).unwrap();
    machine.restore(state.of_machine().unwrap()).unwrap();
    machine
}

/// How many calls a client makes for a copy, and how many it had made when the leader stood still for so long.
fn calls_of_copy(stands_still: Duration) -> [u64; 2] {
    let mut cluster = filled(config());
    let before = calls(&cluster);
    let copied = begin(&cluster);
    let begun = calls(&cluster) - before;
    cluster.paused.push(cluster.leader());
    cluster.turns(stands_still);
    cluster.paused.clear();
    assert_eq!(end(&cluster, &copied).items(), KEYS);
    [calls(&cluster) - before, begun]
}

#[test]
fn a_copy_goes_on_when_the_leader_stood_still() {
    let [undisturbed, _] = calls_of_copy(Duration::ZERO);
    let [all, begun] = calls_of_copy(client_config().attempt_timeout * 3 / 2);
    let again = all - undisturbed;
    assert!(
        (1..begun / 4).contains(&again),
        "{again} calls were made again, and {begun} before the leader stood still"
    );
}

#[test]
fn a_copy_is_begun_again_when_the_leader_ends() {
    let mut cluster = filled(config());
    let copied = begin(&cluster);
    drop(cluster.stop(cluster.leader()));
    assert_eq!(end(&cluster, &copied).items(), KEYS);
}

/// A copy takes several times as long as the time between snapshots.
#[test]
fn a_copy_ends_while_later_snapshots_are_taken() {
    let cluster = filled(NodeConfig { snapshot_entries: 20, keep_entries: 4, idle_ticks: Some(20), ..config() });
    let leader = cluster.leader();
    let taken = || cluster.node(leader).counters().snapshots_taken;
    let copied = begin(&cluster);
    let before = taken();
    let client = Client::new(&cluster.endpoint, cluster.members.clone(), client_config());
    let is_done = copied.clone();
    cluster.endpoint.spawn(async move {
        while is_done.borrow().is_none() {
            let put = Command::Put { key: b"key 0", value: b"other", condition: Condition::Always };
            drop(client.execute(&put.encode()).await);
        }
    });
    assert_eq!(end(&cluster, &copied).items(), KEYS);
    assert!(taken() >= before + 4, "{} snapshots meanwhile", taken() - before);
    // The snapshot is kept for a while in case the next piece is requested, and a group that keeps one does not rest.
    cluster.turns(Duration::from_secs(9));
    assert!(!cluster.node(leader).is_resting());
    cluster.until("it is kept no longer", |cluster| cluster.node(leader).is_resting());
}

/// Asks a replica for a copy with everything that it has executed.
fn ask_for_a_copy(cluster: &Cluster, id: u64) {
    let least = cluster.status(id).applied;
    let request = Request::Piece { least, index: 0, offset: 0 };
    let mut buffer = MsgBuf::with_len(request.encoded_len()).unwrap();
    request.encode(&mut buffer);
    set_cluster(&mut buffer, cluster.status(id).cluster.unwrap());
    let reply = cluster.drive(async {
        let session = cluster.endpoint.connect(&Addr::Node(id as u32)).await.unwrap();
        session.call(wire::CLIENT, buffer).await.unwrap().response
    });
    let response = Response::parse(&reply).unwrap();
    assert!(matches!(response, Response::Ok(_) | Response::Busy), "{response:?}");
}

/// A client asks for copies again and again.
#[test]
fn few_snapshots_are_taken_for_copies() {
    const PAUSE: Duration = Duration::from_millis(100);
    let cluster = filled(NodeConfig { copy_snapshot_pause: PAUSE, ..config() });
    let leader = cluster.leader();
    let follower = leader % 3 + 1;
    let begun = cluster.now();
    for number in 0..150_u32 {
        cluster.put("key 0", &number.to_le_bytes()).unwrap();
        [leader, follower].into_iter().for_each(|id| ask_for_a_copy(&cluster, id));
    }
    let pauses = (cluster.now() - begun).as_nanos() / PAUSE.as_nanos();
    assert!((1..50).contains(&pauses), "{pauses} pauses");
    for id in [leader, follower] {
        let taken = u128::from(cluster.node(id).counters().snapshots_taken);
        assert!((1..=pauses + 1).contains(&taken), "{taken} snapshots of replica {id} in {pauses} pauses");
    }
    // A client that waits gets its copy.
    cluster.put("key 0", b"last").unwrap();
    assert!(cluster.drive(cluster.client.backup()).is_ok());
}

/// Otherwise a replica could claim any length, and send pieces for ever.
#[test]
fn a_client_takes_no_longer_snapshot_than_it_is_told_to() {
    let cluster = filled(config());
    let copy = |snapshot_bytes_max: u64| {
        let limits = ClientConfig { snapshot_bytes_max, ..client_config() };
        cluster.drive(Client::new(&cluster.endpoint, cluster.members.clone(), limits).backup())
    };
    let bytes = copy(1 << 20).unwrap().snapshot.len() as u64;
    assert!(copy(bytes).is_ok());
    let before = calls(&cluster);
    let refused = copy(bytes - 1).unwrap_err().to_string();
    assert!(refused.contains("snapshot_bytes_max"), "{refused}");
    assert!(calls(&cluster) - before < 10, "it is refused with the first piece");
}
