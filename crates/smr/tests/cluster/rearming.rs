//! Thousands of questions of one client that wait at a leader, which fails: all of them come to wait at the next one.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::wire::CLIENT;
use dunlin_smr::wire::request::Request;
use dunlin_smr::wire::response::Response;
use dunlin_smr::{Client, ClientConfig, ClusterId, Waited};

const TURN: Duration = Duration::from_micros(50);
const WATCHERS: u64 = 4096;

/// Counts of a process that leads.
#[derive(Default)]
struct Leader {
    kept: Cell<u64>,
    asked: Cell<u64>,
}

fn config() -> EndpointConfig {
    EndpointConfig { peer_timeout: Duration::from_millis(30), seed: Some(1), ..EndpointConfig::default() }
}

/// Starts a process that answers a question without words, and keeps all others.
fn leader(network: &LoopbackNetwork, node: u32) -> (Endpoint<LoopbackTransport>, Rc<Leader>) {
    let endpoint = Endpoint::new(network.endpoint(node).unwrap(), config()).unwrap();
    let leader = Rc::new(Leader::default());
    let (counts, mut kept) = (leader.clone(), Vec::new());
    endpoint
        .register(CLIENT, move |request| match Request::parse(request.payload()) {
            Ok(Request::Read(b"")) => {
                counts.asked.set(counts.asked.get() + 1);
                let answer = Response::Ok(b"here");
                request.respond_written(answer.encoded_len(), |out| answer.encode(out));
            }
            _ => {
                counts.kept.set(counts.kept.get() + 1);
                kept.extend(request.defer().ok());
            }
        })
        .unwrap();
    (endpoint, leader)
}

#[test]
fn thousands_of_questions_wait_again_soon_after_their_leader_has_failed() {
    // A question that waits holds a credit, and so a place in the receive queue.
    let network = LoopbackNetwork::new(LoopbackConfig { queue_len: 16_384, ..LoopbackConfig::default() });
    let [(first, at_first), (second, at_second)] = [1, 2].map(|node| leader(&network, node));
    let own = Rc::new(Endpoint::new(network.endpoint(9).unwrap(), config()).unwrap());
    let config = ClientConfig { cluster: ClusterId::from_bits(7), ..ClientConfig::default() };
    let members = [1, 2].map(|id| (id, Addr::Node(id as u32)));
    let client = Rc::new(Client::new(&own, members, config));
    let polls = Rc::new(Cell::new(0));
    for _ in 0..WATCHERS {
        let (client, polls) = (client.clone(), polls.clone());
        let mut watching = Box::pin(async move {
            loop {
                assert!(!matches!(client.wait_for(b"wait").await, Ok(Waited::Answered(_))), "nobody answers");
                client.query(b"").await.unwrap();
            }
        });
        own.spawn(poll_fn(move |context| {
            polls.set(polls.get() + 1);
            watching.as_mut().poll(context)
        }));
    }
    let until_all_wait = |leader: &Leader, replicas: &[&Endpoint<LoopbackTransport>]| {
        let (begun, polled_before) = (network.now(), polls.get());
        while leader.kept.get() < WATCHERS {
            let took = Duration::from_nanos(network.now() - begun);
            assert!(took < Duration::from_secs(1), "{} of {WATCHERS} wait after {took:?}", leader.kept.get());
            network.advance(TURN);
            replicas.iter().for_each(|replica| _ = replica.run_once());
            own.run_once();
        }
        let polls = polls.get() - polled_before;
        println!("all wait after {:?} and {polls} polls", Duration::from_nanos(network.now() - begun));
        assert!(polls < 16 * WATCHERS, "{WATCHERS} watchers were polled {polls} times");
    };
    until_all_wait(&at_first, &[&first, &second]);
    drop(first);
    until_all_wait(&at_second, &[&second]);
    assert_eq!((at_first.asked.get(), at_first.kept.get()), (0, WATCHERS));
    assert_eq!((at_second.asked.get(), at_second.kept.get()), (WATCHERS, WATCHERS), "each asked once");
    let sessions = u64::from(own.stats().sessions);
    assert!(sessions < WATCHERS / 8 + 20, "{sessions} sessions");
}
