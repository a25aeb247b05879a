//! Calls between two endpoints of one thread, over queues in memory: the cost of slots, calls, handlers and the event
//! loop, both ends together, with a transport that costs next to nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{ContinuationId, Endpoint, EndpointConfig, MsgBuf, Payload, Request, Session};

const ECHO: u8 = 1;
const DELAY: Duration = Duration::from_micros(1);

fn main() {
    divan::main();
}

struct Pair {
    network: LoopbackNetwork,
    server: Endpoint<LoopbackTransport>,
    client: Endpoint<LoopbackTransport>,
    sessions: Vec<Session>,
    free: Rc<RefCell<Vec<Payload>>>,
    continuation: ContinuationId,
}

impl Pair {
    fn new(sessions: usize) -> Pair {
        let network = LoopbackNetwork::new(LoopbackConfig { delay: DELAY, ..LoopbackConfig::default() });
        let config = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
        let server = Endpoint::new(network.endpoint(1).unwrap(), config.clone()).unwrap();
        let echo = |request: Request<'_>| {
            let payload = request.payload();
            request.respond(payload);
        };
        server.register(ECHO, echo).unwrap();
        let client = Endpoint::new(network.endpoint(2).unwrap(), config).unwrap();
        let free: Rc<RefCell<Vec<Payload>>> = Rc::default();
        let done = free.clone();
        let continuation = client.register_continuation(move |completion| done.borrow_mut().push(completion.request));
        let mut pair = Pair { network, server, client, sessions: Vec::new(), free, continuation };
        for _ in 0..sessions {
            let mut connecting = Box::pin(pair.client.connect(&Addr::Node(1)));
            let session = loop {
                pair.turn();
                if let Some(session) = pair.client.poll_once(connecting.as_mut()) {
                    break session.unwrap();
                }
            };
            pair.sessions.push(session);
        }
        pair
    }

    fn turn(&self) {
        self.network.advance(DELAY);
        self.server.run_once();
        self.network.advance(DELAY);
        self.client.run_once();
    }

    /// One request on each session, and their responses.
    fn batch(&self) {
        for session in &self.sessions {
            let request = self.free.borrow_mut().pop().unwrap();
            session.enqueue_request(ECHO, request, self.continuation, 0).unwrap();
        }
        self.client.run_once();
        while self.free.borrow().len() < self.sessions.len() {
            self.turn();
        }
    }
}

/// Echoes of 32 B, in batches: the more packets an iteration processes, the less each costs.
#[divan::bench(args = [1, 4, 16, 60])]
fn echo_32_bytes(bencher: Bencher<'_, '_>, batch: usize) {
    let pair = Pair::new(batch);
    pair.free.borrow_mut().extend((0..batch).map(|_| Payload::from(MsgBuf::copy_from(&[7; 32]).unwrap())));
    bencher.counter(ItemsCount::new(batch)).bench_local(|| pair.batch());
}

/// A request of many packets, echoed: credits, reassembly and requests for response.
#[divan::bench(args = [4 << 10, 64 << 10, 1 << 20])]
fn echo_large(bencher: Bencher<'_, '_>, bytes: usize) {
    let pair = Pair::new(1);
    pair.free.borrow_mut().push(Payload::from(vec![7; bytes]));
    bencher.counter(divan::counter::BytesCount::new(2 * bytes)).bench_local(|| pair.batch());
}

/// An iteration of the event loop that finds nothing.
#[divan::bench]
fn idle_iteration(bencher: Bencher<'_, '_>) {
    let pair = Pair::new(1);
    bencher.bench_local(|| pair.client.run_once());
}
