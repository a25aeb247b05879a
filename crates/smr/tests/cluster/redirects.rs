//! Replicas that name other replicas as leaders.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::wire::CLIENT;
use dunlin_smr::wire::request::Request;
use dunlin_smr::wire::response::{Response, Role, Status};
use dunlin_smr::{Client, ClientConfig, ClientError, ClusterId, ReadFrom, Waited};
use futures::future::join_all;

const TURN: Duration = Duration::from_micros(50);
const NODE_OF_CLIENT: u32 = 9;
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(50);

fn named(id: u64) -> Response<'static> {
    Response::NotLeader { leader: Some((id, Addr::Node(id as u32).to_string())) }
}

/// Starts a process at the address of a replica that gives the first answer once, and the second from then on.
fn replica(
    network: &LoopbackNetwork,
    id: u64,
    first: Response<'static>,
    later: Response<'static>,
) -> Endpoint<LoopbackTransport> {
    let endpoint = Endpoint::new(network.endpoint(id as u32).unwrap(), EndpointConfig::default()).unwrap();
    let mut answers = vec![later, first];
    endpoint
        .register(CLIENT, move |request| {
            let answer = answers.pop().unwrap();
            request.respond_written(answer.encoded_len(), |out| answer.encode(out));
            if answers.is_empty() {
                answers.push(answer);
            }
        })
        .unwrap();
    endpoint
}

/// A process that leads at a node, with so many sessions: it answers a question without words, and keeps all others.
fn leader(network: &LoopbackNetwork, node: u32, sessions_max: u32) -> Endpoint<LoopbackTransport> {
    let config = EndpointConfig { sessions_max, ..EndpointConfig::default() };
    let endpoint = Endpoint::new(network.endpoint(node).unwrap(), config).unwrap();
    let mut kept = Vec::new();
    endpoint
        .register(CLIENT, move |request| match Request::parse(request.payload()) {
            Ok(Request::Read(b"")) => {
                let answer = Response::Ok(b"here");
                request.respond_written(answer.encoded_len(), |out| answer.encode(out));
            }
            _ => kept.extend(request.defer().ok()),
        })
        .unwrap();
    endpoint
}

/// A client that knows these members, and who else there is.
struct Lab<'a> {
    network: &'a LoopbackNetwork,
    replicas: &'a [Endpoint<LoopbackTransport>],
    /// The last of them stands still before this time.
    last_runs_from: Duration,
    endpoint: Rc<Endpoint<LoopbackTransport>>,
    client: Rc<Client<LoopbackTransport>>,
}

impl<'a> Lab<'a> {
    fn new(network: &'a LoopbackNetwork, replicas: &'a [Endpoint<LoopbackTransport>], listed: &[u64]) -> Lab<'a> {
        let config = EndpointConfig { connect_timeout: ATTEMPT_TIMEOUT, ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(network.endpoint(NODE_OF_CLIENT).unwrap(), config).unwrap());
        let config = ClientConfig {
            cluster: ClusterId::from_bits(7),
            timeout: 20 * ATTEMPT_TIMEOUT,
            attempt_timeout: ATTEMPT_TIMEOUT,
            ..ClientConfig::default()
        };
        let client = Client::new(&endpoint, listed.iter().map(|id| (*id, Addr::Node(*id as u32))), config);
        Lab { network, replicas, last_runs_from: Duration::ZERO, endpoint, client: Rc::new(client) }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.network.now())
    }

    fn drive<F: Future>(&self, work: F) -> F::Output {
        let mut work = Box::pin(work);
        loop {
            self.network.advance(TURN);
            let stands_still = usize::from(self.now() < self.last_runs_from);
            self.replicas.iter().rev().skip(stands_still).for_each(|replica| _ = replica.run_once());
            if let Some(output) = self.endpoint.poll_once(work.as_mut()) {
                return output;
            }
        }
    }

    fn ask(&self) -> Result<Vec<u8>, ClientError> {
        self.drive(self.client.query(b"")).map(|reply| reply.to_vec())
    }

    /// Asks so many questions that wait for an answer; counts those that wait no more.
    fn wait(&self, questions: usize) -> Rc<Cell<usize>> {
        let ended = Rc::new(Cell::new(0));
        for _ in 0..questions {
            let (client, ended) = (self.client.clone(), ended.clone());
            self.endpoint.spawn(async move {
                drop(client.wait_for(b"wait").await);
                ended.set(ended.get() + 1);
            });
        }
        self.drive(self.endpoint.timers().sleep(ATTEMPT_TIMEOUT / 2));
        ended
    }
}

/// What a client hears that knows these members.
fn answer(
    network: &LoopbackNetwork,
    replicas: &[Endpoint<LoopbackTransport>],
    listed: &[u64],
) -> Result<Vec<u8>, ClientError> {
    Lab::new(network, replicas, listed).ask()
}

/// Replica 3 was removed while 2 led, and 2 by the next leader: neither will ever learn who leads.
#[test]
fn replicas_that_were_removed_do_not_send_clients_to_each_other_for_ever() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [
        replica(&network, 1, named(3), Response::Ok(b"here")),
        replica(&network, 2, Response::NotLeader { leader: None }, Response::NotLeader { leader: None }),
        replica(&network, 3, named(2), named(2)),
    ];
    assert_eq!(answer(&network, &replicas, &[1, 2, 3]), Ok(b"here".to_vec()));
}

/// A replica that was started at another address leads before the cluster was told of the move. The others name its old
/// address, where nobody is; only the client's list has the new one.
#[test]
fn a_leader_is_found_where_the_list_has_it_though_others_name_its_old_address() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let old = || Response::NotLeader { leader: Some((4, Addr::Node(12).to_string())) };
    let replicas = [
        replica(&network, 2, old(), old()),
        replica(&network, 3, old(), old()),
        replica(&network, 4, Response::Ok(b"here"), Response::Ok(b"here")),
    ];
    assert_eq!(answer(&network, &replicas, &[1, 2, 3, 4]), Ok(b"here".to_vec()));
}

/// Replica 3 was asked before it was elected, and 2, which led before, is gone: a replica that names 3 knows something
/// newer.
#[test]
fn a_leader_that_was_asked_before_it_was_elected_is_asked_when_it_is_named() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [
        replica(&network, 3, Response::NotLeader { leader: None }, Response::Ok(b"here")),
        replica(&network, 4, named(3), named(3)),
    ];
    assert_eq!(answer(&network, &replicas, &[2, 3, 4]), Ok(b"here".to_vec()));
    let took = Duration::from_nanos(network.now());
    assert!(took < ATTEMPT_TIMEOUT * 3 / 2, "it waited for the one that is gone again: {took:?}");
}

/// Nobody serves replicas any more at the address that the others name.
#[test]
fn a_leader_is_found_where_the_list_has_it_though_another_service_is_at_its_old_address() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [
        replica(&network, 2, moved(), moved()),
        Endpoint::new(network.endpoint(MOVED).unwrap(), EndpointConfig::default()).unwrap(),
        replica(&network, 4, Response::Ok(b"here"), Response::Ok(b"here")),
    ];
    assert_eq!(answer(&network, &replicas, &[2, 4]), Ok(b"here".to_vec()));
}

/// Where replica 4 has moved, which leads. The lists of clients have it at its old address.
const MOVED: u32 = 12;

fn moved() -> Response<'static> {
    Response::NotLeader { leader: Some((4, Addr::Node(MOVED).to_string())) }
}

fn replicas_of_moved(network: &LoopbackNetwork, sessions_max: u32) -> [Endpoint<LoopbackTransport>; 3] {
    let others = [2, 3].map(|id| replica(network, id, moved(), moved()));
    let [two, three] = others;
    [two, three, leader(network, MOVED, sessions_max)]
}

#[test]
fn a_request_without_an_answer_ends_no_others_at_a_leader_that_has_moved() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 100);
    let lab = Lab::new(&network, &replicas, &[2, 3, 4]);
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    let ended = lab.wait(10);
    let lost = lab.drive(lab.client.query(b"lost")).map(drop);
    assert_eq!(lost, Err(ClientError::TimedOut { may_have_run: false }));
    assert_eq!(ended.get(), 0);
}

/// It shares the sessions of the first client, and not what that has learned since.
#[test]
fn a_client_of_another_group_that_hears_of_a_move_later_ends_no_requests() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 100);
    let lab = Lab::new(&network, &replicas, &[2, 3, 4]);
    let others: Vec<_> = (1..4).map(|group| lab.client.of_group(group)).collect();
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    let ended = lab.wait(10);
    let sessions = lab.endpoint.stats().sessions;
    for other in others {
        assert!(lab.drive(other.query(b"")).is_ok());
    }
    assert_eq!((ended.get(), lab.endpoint.stats().sessions), (0, sessions));
}

/// Requests end where they were sent, and later ones go elsewhere.
#[test]
fn requests_at_an_address_that_is_no_longer_the_one_of_a_replica_have_their_answers() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 100);
    let lab = Lab::new(&network, &replicas, &[2, 3, 4]);
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    let ended = lab.wait(10);
    let sessions = lab.endpoint.stats().sessions;
    lab.client.learn(4, Addr::Node(99));
    lab.drive(lab.endpoint.timers().sleep(ATTEMPT_TIMEOUT));
    assert_eq!(ended.get(), 0);
    assert_eq!(lab.endpoint.stats().sessions, sessions - 1, "one was for reads, of which there are none");
}

/// There is room for eight questions.
#[test]
fn a_leader_that_has_no_room_for_more_questions_is_not_taken_for_silent() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 2);
    let lab = Lab::new(&network, &replicas, &[2, 3, 4]);
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    let ended = lab.wait(10);
    lab.drive(lab.endpoint.timers().sleep(3 * ATTEMPT_TIMEOUT));
    assert_eq!(ended.get(), 2);
    let begun = lab.now();
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    assert!(lab.now() - begun < 20 * TURN, "it asked others after {:?}", lab.now() - begun);
}

/// Two requests ask a leader that stands still where it was before it moved. The first one finds it.
#[test]
fn a_request_that_was_sent_to_an_old_address_believes_what_others_have_learned_since() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 100);
    let _silent = network.endpoint(4).unwrap();
    let lab = Lab { last_runs_from: ATTEMPT_TIMEOUT * 6 / 5, ..Lab::new(&network, &replicas, &[2, 3, 4]) };
    let first = async {
        lab.client.query(b"").await.unwrap();
        lab.client.wait_for(b"wait").await
    };
    let second = async {
        lab.endpoint.timers().sleep(ATTEMPT_TIMEOUT * 7 / 5).await;
        lab.client.query(b"").await
    };
    let mut first = Box::pin(first);
    let found = lab.drive(async {
        let ended = futures::future::select(first.as_mut(), Box::pin(second)).await;
        matches!(ended, futures::future::Either::Right((Ok(_), _)))
    });
    assert!(found, "what the first one asked waits on");
    assert!(lab.now() < 4 * ATTEMPT_TIMEOUT, "the old address was asked again: {:?}", lab.now());
}

/// The status of a replica that the client trusts says that replica 4 has moved.
#[test]
fn a_client_that_follows_a_replica_asks_nobody_at_the_address_of_its_list() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = replicas_of_moved(&network, 100);
    let old = Endpoint::new(network.endpoint(4).unwrap(), EndpointConfig::default()).unwrap();
    let lab = Lab { last_runs_from: 2 * ATTEMPT_TIMEOUT, ..Lab::new(&network, &replicas, &[2, 3, 4]) };
    let addresses = [(2, 2), (3, 3), (4, MOVED)].map(|(id, node)| (id, Addr::Node(node).to_string()));
    lab.client.follow(&Status {
        id: 2,
        cluster: ClusterId::from_bits(7),
        groups: 1,
        other_groups: None,
        role: Role::Follower,
        disk_hangs: false,
        term: 1,
        leader: Some(4),
        first: 1,
        last: 1,
        committed: 1,
        applied: 1,
        sessions: 0,
        snapshot_pause_max: 0,
        voters: vec![2, 3, 4],
        learners: Vec::new(),
        matched: Vec::new(),
        foreign: Vec::new(),
        addresses: addresses.into(),
    });
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    assert!(lab.now() > lab.last_runs_from);
    old.run_once();
    assert_eq!(old.stats().transport.rx_packets, 0);
}

/// All of them begin to ask a replica of which nothing comes.
#[test]
fn requests_do_not_wait_one_after_the_other_for_a_replica_that_is_gone() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [replica(&network, 2, Response::Ok(b"here"), Response::Ok(b"here"))];
    let _silent = network.endpoint(1).unwrap();
    let lab = Lab::new(&network, &replicas, &[1, 2]);
    let answers = lab.drive(join_all((0..30).map(|_| lab.client.query(b""))));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(lab.now() < 3 * ATTEMPT_TIMEOUT, "{:?}", lab.now());
}

/// Each answer names a replica that was never named before: at the address of the replica that answers, or of its
/// next accomplice.
#[test]
fn a_replica_that_names_others_without_end_keeps_no_client_from_its_leader() {
    for accomplices in [0, 80] {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let fresh = Rc::new(Cell::new(u64::MAX));
        let nodes: Vec<u32> = std::iter::once(1).chain(100..100 + accomplices).collect();
        let mut replicas: Vec<_> = nodes
            .iter()
            .zip(nodes.iter().cycle().skip(1))
            .map(|(node, next)| {
                let endpoint = Endpoint::new(network.endpoint(*node).unwrap(), EndpointConfig::default()).unwrap();
                let (fresh, next) = (fresh.clone(), Addr::Node(*next).to_string());
                let name = move |request: dunlin_rpc::Request<'_>| {
                    let answer = Response::NotLeader { leader: Some((fresh.get(), next.clone())) };
                    fresh.set(fresh.get() - 1);
                    request.respond_written(answer.encoded_len(), |out| answer.encode(out));
                };
                endpoint.register(CLIENT, name).unwrap();
                endpoint
            })
            .collect();
        replicas.push(replica(&network, 2, Response::Ok(b"here"), Response::Ok(b"here")));
        let lab = Lab::new(&network, &replicas, &[1, 2]);
        assert_eq!(lab.ask(), Ok(b"here".to_vec()), "{accomplices} accomplices");
        let (members, named) = (lab.client.members().len(), u64::MAX - fresh.get());
        assert!(members <= 2 + 64, "{members} members are known");
        assert!(named <= 1 + u64::from(accomplices), "{named} were named");
        assert!(u64::from(lab.endpoint.stats().sessions) <= named + 1);
    }
}

/// The id has no successor.
#[test]
fn a_leader_with_the_highest_id_of_all_may_be_silent() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let nobody = Response::NotLeader { leader: Some((u64::MAX, Addr::Node(50).to_string())) };
    let replicas = [
        replica(&network, 1, nobody.clone(), nobody),
        replica(&network, 2, Response::Ok(b"here"), Response::Ok(b"here")),
    ];
    let lab = Lab::new(&network, &replicas, &[1, 2]);
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    let any = lab.client.of_group(0).reading_from(ReadFrom::Any);
    for _ in 0..4 {
        assert_eq!(lab.drive(any.query(b"")).map(|reply| reply.to_vec()), Ok(b"here".to_vec()));
    }
}

/// Each leader is a new replica, and only the last one and the one before it are there.
#[test]
fn after_many_replacements_the_replicas_that_answered_last_are_asked_first() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let (leader, alive) = (Rc::new(Cell::new(21)), Rc::new(Cell::new((21, 21))));
    let replicas: Vec<_> = (21..=35)
        .map(|id| {
            let endpoint = Endpoint::new(network.endpoint(id as u32).unwrap(), EndpointConfig::default()).unwrap();
            let (leader, alive, mut unanswered) = (leader.clone(), alive.clone(), Vec::new());
            let answer = move |request: dunlin_rpc::Request<'_>| {
                let (from, to) = alive.get();
                if !(from..=to).contains(&id) {
                    unanswered.extend(request.defer().ok());
                    return;
                }
                let answer = if leader.get() == id { Response::Ok(b"here") } else { named(leader.get()) };
                request.respond_written(answer.encoded_len(), |out| answer.encode(out));
            };
            endpoint.register(CLIENT, answer).unwrap();
            endpoint
        })
        .collect();
    let lab = Lab::new(&network, &replicas, &[21, 22, 23]);
    for id in 21..=35 {
        leader.set(id);
        alive.set((id - 1, id));
        assert_eq!(lab.ask(), Ok(b"here".to_vec()), "leader {id}");
    }
    leader.set(34);
    alive.set((34, 34));
    let begun = lab.now();
    assert_eq!(lab.ask(), Ok(b"here".to_vec()));
    assert!(lab.now() - begun < 2 * ATTEMPT_TIMEOUT, "found after {:?}", lab.now() - begun);
}

/// The other's process ends, and one of another cluster is at its address.
#[test]
fn a_copy_is_begun_again_when_another_cluster_answers_in_the_middle() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let [ours, theirs] = [7, 8].map(|bits| ClusterId::from_bits(bits).unwrap());
    let index = |index: u64| index.to_le_bytes().to_vec();
    // The index of the snapshot, its term, and its length.
    let piece = |at: u64, len: u64, bytes: &[u8]| [&index(at)[..], &index(1), &index(len), bytes].concat();
    let replicas = [(1, vec![index(5), piece(5, 8, b"half")]), (2, vec![index(6), piece(6, 4, b"full")])];
    let replicas = replicas.map(|(node, answers)| {
        let endpoint = Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap();
        let mut answers = answers.into_iter();
        let answer = move |request: dunlin_rpc::Request<'_>| {
            let bytes = answers.next();
            let answer = bytes.as_deref().map_or(Response::OtherCluster { ours: theirs }, Response::Ok);
            request.respond_written(answer.encoded_len(), |out| answer.encode(out));
        };
        endpoint.register(CLIENT, answer).unwrap();
        endpoint
    });
    let lab = Lab::new(&network, &replicas, &[1, 2]);
    assert_eq!(lab.client.cluster(), Some(ours));
    let copy = lab.drive(lab.client.backup()).unwrap();
    assert_eq!((copy.index, &copy.snapshot[..]), (6, &b"full"[..]));
    let strangers: Vec<_> = lab.client.strangers().iter().map(|other| (other.id, other.cluster)).collect();
    assert_eq!(strangers, [(1, theirs)]);
}

/// The first one belongs to another cluster. A question that waits has no other way to leave it.
#[test]
fn a_question_that_waits_does_not_come_back_to_a_replica_of_another_cluster() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let other = || Response::OtherCluster { ours: ClusterId::from_bits(8).unwrap() };
    let replicas = [replica(&network, 1, other(), other()), leader(&network, 2, 100)];
    let lab = Lab::new(&network, &replicas, &[1, 2]);
    assert!(matches!(lab.drive(lab.client.wait_for(b"wait")), Ok(Waited::Refused)));
    assert_eq!(lab.wait(1).get(), 0, "it waits at the other");
}

/// A client whose attempts take as long as its operations, with what it can reach.
fn patient<'a>(network: &'a LoopbackNetwork, replicas: &'a [Endpoint<LoopbackTransport>], listed: &[u64]) -> Lab<'a> {
    let lab = Lab::new(network, replicas, listed);
    let config = ClientConfig { attempt_timeout: SOON, timeout: SOON, ..*lab.client.config() };
    let members = listed.iter().map(|id| (*id, Addr::Node(*id as u32)));
    Lab { client: Rc::new(Client::new(&lab.endpoint, members, config)), ..lab }
}

const SOON: Duration = Duration::from_millis(600);

/// The others name the leader that is silent, until one of them is elected.
#[test]
fn a_query_that_must_be_answered_soon_does_not_return_to_where_it_waits() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [
        leader(&network, 1, 100),
        replica(&network, 2, named(1), Response::Ok(b"here")),
        replica(&network, 3, named(1), Response::Ok(b"here")),
    ];
    let lab = patient(&network, &replicas, &[1, 2, 3]);
    assert!(lab.drive(lab.client.query_within(b"kept", SOON)).is_ok());
    assert!(lab.now() < SOON / 4, "{:?}", lab.now());
}

/// One query has time for five of them.
#[test]
fn queries_that_are_not_answered_soon_come_to_all_replicas() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let mut replicas: Vec<_> = (1..8).map(|node| leader(&network, node, 100)).collect();
    replicas.push(replica(&network, 8, Response::Ok(b"here"), Response::Ok(b"here")));
    let lab = patient(&network, &replicas, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let asked = (0..4).position(|_| lab.drive(lab.client.query_within(b"kept", SOON)).is_ok());
    assert!(asked.is_some(), "in {:?}", lab.now());
}

/// Its only attempt was refused. There is no other when time is over.
#[test]
fn a_command_that_was_refused_until_its_time_was_over_is_in_no_doubt() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let session = Response::Ok(&[7, 0, 0, 0, 0, 0, 0, 0]);
    let replicas = [replica(&network, 1, session, Response::Busy)];
    let lab = Lab::new(&network, &replicas, &[1]);
    let refused = lab.drive(lab.client.execute(b"a")).map(drop);
    assert_eq!(refused, Err(ClientError::TimedOut { may_have_run: false }));
}

/// Three queries take turns at two replicas, one of which belongs to another cluster.
#[test]
fn queries_at_the_same_time_that_meet_one_stranger_have_their_answers() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let other = || Response::OtherCluster { ours: ClusterId::from_bits(8).unwrap() };
    let replicas =
        [replica(&network, 1, Response::Ok(b"here"), Response::Ok(b"here")), replica(&network, 2, other(), other())];
    let lab = Lab::new(&network, &replicas, &[1, 2]);
    let any = lab.client.of_group(0).reading_from(ReadFrom::Any);
    let answers = lab.drive(join_all((0..3).map(|_| any.query(b""))));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn a_client_apart_learns_what_the_first_one_learns() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [replica(&network, 2, Response::Ok(b"here"), Response::Ok(b"here"))];
    let _silent = network.endpoint(1).unwrap();
    let lab = Lab::new(&network, &replicas, &[1]);
    let apart = lab.client.apart();
    lab.client.learn(2, Addr::Node(2));
    assert!(lab.drive(apart.query(b"")).is_ok());
}

/// It waits for an answer at the address that the leader has left.
#[test]
fn a_query_that_must_be_answered_soon_asks_a_leader_that_has_moved() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let moved = || Response::NotLeader { leader: Some((1, Addr::Node(MOVED).to_string())) };
    let replicas = [
        leader(&network, 1, 100),
        replica(&network, 2, moved(), moved()),
        replica(&network, MOVED.into(), Response::NotLeader { leader: None }, Response::Ok(b"here")),
    ];
    let lab = patient(&network, &replicas, &[1, 2]);
    assert!(lab.drive(lab.client.query_within(b"kept", SOON)).is_ok());
    assert!(lab.now() < SOON / 2, "{:?}", lab.now());
}

#[test]
fn queries_of_all_replicas_that_are_not_answered_soon_come_to_all() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let mut replicas: Vec<_> = (1..8).map(|node| leader(&network, node, 100)).collect();
    replicas.push(replica(&network, 8, Response::Ok(b"here"), Response::Ok(b"here")));
    let lab = patient(&network, &replicas, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let any = lab.client.of_group(0).reading_from(ReadFrom::Any);
    let asked = (0..8).position(|_| lab.drive(any.query_within(b"kept", SOON)).is_ok());
    assert!(asked.is_some(), "in {:?}", lab.now());
}

#[test]
fn a_query_of_one_replica_that_is_of_another_cluster_fails_at_once() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let other = || Response::OtherCluster { ours: ClusterId::from_bits(8).unwrap() };
    let replicas = [replica(&network, 2, other(), other())];
    let lab = Lab::new(&network, &replicas, &[1, 2, 3]);
    let at = lab.client.of_group(0).reading_from(ReadFrom::Replica(2));
    assert!(matches!(lab.drive(at.query(b"")), Err(ClientError::OtherCluster { .. })));
    assert!(lab.now() < ATTEMPT_TIMEOUT, "{:?}", lab.now());
}

/// It has taken one for a copy less than a minute ago.
#[test]
fn a_copy_that_has_to_wait_for_a_snapshot_says_so() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let replicas = [replica(&network, 1, Response::Ok(&[5, 0, 0, 0, 0, 0, 0, 0]), Response::Busy)];
    let lab = Lab::new(&network, &replicas, &[1]);
    let copied = lab.drive(lab.client.backup()).map(drop);
    assert!(matches!(&copied, Err(ClientError::Refused(why)) if why.contains("no snapshot yet")), "{copied:?}");
}
