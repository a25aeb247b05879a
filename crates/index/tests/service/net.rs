//! Endpoints on one thread, and a clock that advances while work waits.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_index::{Client, ClientConfig, Index, IndexService, SharedIndex};
use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, Timers, WorkerPool};

pub type TestEndpoint = Rc<Endpoint<LoopbackTransport>>;
pub type TestClient = Client<LoopbackTransport>;

/// Virtual time limit: work that has not ended by then hangs.
const END: u64 = 60_000_000_000;
/// How long a peer may be silent.
pub const PEER_TIMEOUT: Duration = Duration::from_millis(100);
/// Requests that may wait for a worker: as many as a session carries.
pub const QUEUE: usize = 8;

pub struct Net {
    network: LoopbackNetwork,
    endpoints: RefCell<Vec<(u32, TestEndpoint)>>,
    clients: Cell<u32>,
    /// The workers of all servers; they run between the turns of the endpoints.
    pub pool: WorkerPool,
    pub workers_run: Cell<bool>,
    /// This node stands still: it receives nothing, and sends nothing.
    pub stopped: Cell<Option<u32>>,
}

impl Net {
    pub fn new() -> Net {
        Net::with_pool(WorkerPool::by_hand(QUEUE))
    }

    pub fn with_pool(pool: WorkerPool) -> Net {
        let config = LoopbackConfig { delay: Duration::from_micros(2), ..LoopbackConfig::default() };
        let (endpoints, clients) = (RefCell::default(), Cell::new(100));
        let (network, workers_run) = (LoopbackNetwork::new(config), Cell::new(true));
        Net { network, endpoints, clients, pool, workers_run, stopped: Cell::new(None) }
    }

    pub fn now(&self) -> u64 {
        self.network.now()
    }

    pub fn start(&self, node: u32) -> TestEndpoint {
        self.start_with(node, EndpointConfig::default())
    }

    pub fn start_with(&self, node: u32, config: EndpointConfig) -> TestEndpoint {
        let config = EndpointConfig { seed: Some(node.into()), peer_timeout: PEER_TIMEOUT, ..config };
        let endpoint = Endpoint::new(self.network.endpoint(node).unwrap(), config).unwrap();
        endpoint.propagate_panics();
        let endpoint = Rc::new(endpoint);
        self.endpoints.borrow_mut().push((node, endpoint.clone()));
        endpoint
    }

    pub fn serve(&self, node: u32, shared: &Arc<SharedIndex>) -> IndexService {
        IndexService::register(&self.start(node), shared.clone(), &self.pool).unwrap()
    }

    /// Ends a server like a crash.
    pub fn end(&self, node: u32) {
        self.endpoints.borrow_mut().retain(|(number, _)| *number != node);
    }

    pub fn endpoint(&self) -> TestEndpoint {
        self.clients.set(self.clients.get() + 1);
        self.start(self.clients.get())
    }

    /// Timers of the last client.
    pub fn timers(&self) -> Timers {
        self.root().timers()
    }

    fn root(&self) -> TestEndpoint {
        self.endpoints.borrow().iter().rev().find(|(node, _)| *node > 100).expect("there is a client").1.clone()
    }

    pub fn client(&self, server: u32, config: ClientConfig) -> TestClient {
        Client::new(&self.endpoint(), Addr::Node(server), ClientConfig { seed: Some(server.into()), ..config })
    }

    /// Runs all endpoints until `work` ends.
    pub fn run<R>(&self, work: impl Future<Output = R>) -> R {
        let mut work = std::pin::pin!(work);
        let root = self.root();
        let end = self.now() + END;
        loop {
            if let Some(result) = root.poll_once(work.as_mut()) {
                return result;
            }
            let endpoints = self.endpoints.borrow().clone();
            let running = endpoints.iter().filter(|(node, _)| self.stopped.get() != Some(*node));
            running.for_each(|(_, endpoint)| while endpoint.run_once() > 0 {});
            if self.workers_run.get() {
                self.pool.run_queued();
            }
            self.network.advance(Duration::from_micros(1));
            assert!(self.now() < end, "the work has not ended");
        }
    }
}

/// An index that a server shares.
pub fn shared(incarnation: u64) -> Arc<SharedIndex> {
    SharedIndex::with_incarnation(Index::new(1 << 30).unwrap(), incarnation)
}

/// The same with items `number` to `number`, for all numbers below `count`.
pub fn numbered(incarnation: u64, count: u64) -> Arc<SharedIndex> {
    let shared = shared(incarnation);
    for number in 0..count {
        shared.index().insert(&number.to_be_bytes(), &number.to_le_bytes(), &dunlin_index::pin()).unwrap();
    }
    shared
}
