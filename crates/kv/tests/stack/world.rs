//! Servers and clients in one thread, on one loopback network whose time the test controls.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dunlin_kv::client::ClientConfig;
use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{Limits, ServerMap};
use dunlin_kv::{KvClient, KvService, Shard};
use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Model, Moment, Store, Visit};

/// The node of core 0; core i is at the node that is i higher.
pub const SERVER: u32 = 1;
/// The node of the first client.
const CLIENT: u32 = 100;
/// When the client's work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Before its endpoint is turned, as in `Endpoint::block_on`.
    BeforeATurn,
    /// After one turn.
    AfterATurn,
}

/// How far time advances between turns.
const TURN: Duration = Duration::from_micros(10);
/// Turns after which a test counts as stuck.
const TURNS_MAX: u32 = 2_000_000;

pub type Client = KvClient<LoopbackTransport>;

pub struct Core<S> {
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    pub shard: Rc<Shard<S>>,
}

pub struct World<S = Model> {
    pub network: LoopbackNetwork,
    pub cores: Vec<Core<S>>,
    pub client: Rc<Endpoint<LoopbackTransport>>,
    /// Creates the store of a core.
    make: fn() -> S,
    /// Requests that the handlers of a core may keep.
    deferred_max: u32,
}

fn config(seed: u64) -> EndpointConfig {
    EndpointConfig { seed: Some(seed), peer_timeout: Duration::from_millis(50), ..EndpointConfig::default() }
}

impl World {
    /// Starts a server with this many cores, and an endpoint for clients.
    pub fn new(cores: u16) -> World {
        World::with_stores(cores, Model::new)
    }
}

impl<S: Store + Visit + 'static> World<S> {
    /// The same with these stores.
    pub fn with_stores(cores: u16, make: fn() -> S) -> World<S> {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let client = Rc::new(Endpoint::new(network.endpoint(CLIENT).unwrap(), config(9)).unwrap());
        let deferred_max = EndpointConfig::default().deferred_requests_max;
        let mut world = World { network, cores: Vec::new(), client, make, deferred_max };
        world.start(cores, 1);
        world
    }

    /// Restarts it with a limit for the requests that the handlers of a core keep.
    pub fn keeping_at_most(mut self, deferred_max: u32) -> World<S> {
        self.deferred_max = deferred_max;
        self.start(self.cores.len() as u16, 1);
        self
    }

    /// Starts a server; its division of keys depends on `incarnation`.
    pub fn start(&mut self, cores: u16, incarnation: u64) {
        self.cores.clear();
        let routing = Routing::new([incarnation as u8; 16], cores).unwrap();
        let nodes = SERVER..SERVER + u32::from(cores);
        let addresses =
            nodes.clone().map(|node| vec![format!("udp://127.0.0.1:{node}"), Addr::Node(node).to_string()]).collect();
        let map = ServerMap { incarnation, routing, limits: Limits { value_bytes_max: 1 << 20 }, addresses };
        self.cores = nodes
            .zip(0..)
            .map(|(node, core)| {
                let config = EndpointConfig {
                    deferred_requests_max: self.deferred_max,
                    ..config(incarnation * 1000 + u64::from(node))
                };
                let endpoint = Rc::new(Endpoint::new(self.network.endpoint(node).unwrap(), config).unwrap());
                let shard = Rc::new(Shard::new((self.make)(), routing, core));
                KvService::new(shard.clone(), map.clone()).register(&endpoint).unwrap();
                Core { endpoint, shard }
            })
            .collect();
    }

    /// Lets time pass while the server runs and nobody turns the client.
    pub fn leave_client(&self, time: Duration) {
        for _ in 0..time.as_millis() {
            self.network.advance(Duration::from_millis(1));
            for core in &self.cores {
                core.endpoint.run_once();
            }
        }
    }

    /// Runs everything until `work` is done.
    pub fn run<F: Future>(&self, work: F) -> F::Output {
        self.run_from(Begin::AfterATurn, work)
    }

    /// The same, with a choice of when the work begins.
    pub fn run_from<F: Future>(&self, begin: Begin, work: F) -> F::Output {
        let mut work = pin!(work);
        if begin == Begin::BeforeATurn
            && let Poll::Ready(output) = work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return output;
        }
        for _ in 0..TURNS_MAX {
            self.network.advance(TURN);
            for core in &self.cores {
                core.endpoint.run_once();
            }
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
        }
        panic!("stuck after {TURNS_MAX} turns");
    }

    /// Returns a connected client.
    pub fn connect(&self, config: ClientConfig) -> Client {
        self.run(KvClient::connect(&self.client, &Addr::Node(SERVER), config)).unwrap()
    }

    /// Sets every core's time.
    pub fn set_now(&self, now: u32) {
        self.cores.iter().for_each(|core| core.shard.set_now(now));
    }

    /// Sets every core's time, and how far the wall clock is ahead.
    pub fn set_moment(&self, moment: Moment) {
        self.cores.iter().for_each(|core| core.shard.set_moment(moment));
    }
}
