//! Endpoints on one thread, and a clock that advances while work waits.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_seq::{Batching, Client, ClientConfig, Counter, SeqService};

pub type TestEndpoint = Rc<Endpoint<LoopbackTransport>>;
pub type TestClient = Client<LoopbackTransport>;

/// Virtual time limit: work that has not ended by then hangs.
const END: u64 = 60_000_000_000;

#[derive(Clone)]
pub struct Net {
    network: Rc<LoopbackNetwork>,
    endpoints: Rc<RefCell<Vec<(u32, TestEndpoint)>>>,
    clients: Rc<RefCell<u32>>,
}

impl Net {
    pub fn new() -> Net {
        let config = LoopbackConfig { delay: Duration::from_micros(2), ..LoopbackConfig::default() };
        let network = Rc::new(LoopbackNetwork::new(config));
        Net { network, endpoints: Rc::default(), clients: Rc::new(RefCell::new(100)) }
    }

    pub fn now(&self) -> u64 {
        self.network.now()
    }

    fn open(&self, node: u32, config: EndpointConfig) -> TestEndpoint {
        let endpoint = Endpoint::new(self.network.endpoint(node).unwrap(), config).unwrap();
        endpoint.propagate_panics();
        let endpoint = Rc::new(endpoint);
        self.endpoints.borrow_mut().push((node, endpoint.clone()));
        endpoint
    }

    fn settings(&self, node: u32) -> EndpointConfig {
        let peer_timeout = Duration::from_millis(100);
        EndpointConfig { seed: Some(u64::from(node)), peer_timeout, ..EndpointConfig::default() }
    }

    /// A server without a sequencer.
    pub fn other(&mut self, node: u32, config: EndpointConfig) {
        self.open(node, config);
    }

    /// The endpoint of a server.
    pub fn start(&mut self, node: u32) -> TestEndpoint {
        self.open(node, self.settings(node))
    }

    pub fn serve(&mut self, node: u32, counter: Arc<Counter>, batching: Batching) -> SeqService {
        SeqService::register(&self.start(node), counter, batching).unwrap()
    }

    /// Starts a server while work runs.
    pub fn serve_later(&self, node: u32, counter: Arc<Counter>) -> SeqService {
        self.clone().serve(node, counter, Batching::Bursts)
    }

    /// Ends a server like a crash.
    pub fn end(&mut self, node: u32) {
        self.endpoints.borrow_mut().retain(|(number, _)| *number != node);
    }

    pub fn endpoint(&mut self) -> TestEndpoint {
        *self.clients.borrow_mut() += 1;
        let node = *self.clients.borrow();
        self.open(node, self.settings(node))
    }

    pub fn client(&mut self, servers: &[u32], config: ClientConfig) -> TestClient {
        let servers = servers.iter().map(|node| Addr::Node(*node)).collect();
        Client::new(&self.endpoint(), servers, config)
    }

    /// Runs all endpoints until `work` ends.
    pub fn run<R>(&self, work: impl Future<Output = R>) -> R {
        let mut work = std::pin::pin!(work);
        let root = {
            let endpoints = self.endpoints.borrow();
            endpoints.iter().rev().find(|(node, _)| *node > 100).expect("there is a client").1.clone()
        };
        let end = self.now() + END;
        loop {
            if let Some(result) = root.poll_once(work.as_mut()) {
                return result;
            }
            let endpoints = self.endpoints.borrow().clone();
            endpoints.iter().for_each(|(_, endpoint)| while endpoint.run_once() > 0 {});
            self.network.advance(Duration::from_micros(1));
            assert!(self.now() < end, "the work has not ended");
        }
    }
}
