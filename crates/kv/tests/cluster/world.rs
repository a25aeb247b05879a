//! Servers with replicas and clients in one thread, on one loopback network whose time the test controls, with faults
//! drawn from a seed.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dunlin_kv::cluster::{ClusterConfig, Description, ServerPlace};
use dunlin_kv::routing::Routing;
use dunlin_kv::service::{Fence, Replica};
use dunlin_kv::wire::{Limits, ReplicaState, ServerMap};
use dunlin_kv::{KvCluster, KvService, Shard};
use dunlin_net::Addr;
use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Model, Store};

/// How far time advances between turns, at least,
const TURN: Duration = Duration::from_micros(10);
/// and at most, if nothing happens before.
const LEAP: Duration = Duration::from_millis(100);
/// Turns after which a test counts as stuck.
const TURNS_MAX: u32 = 3_000_000;
/// How long an endpoint waits for a peer that is silent, or does not answer at first.
const SILENCE: Duration = Duration::from_millis(50);
/// Nodes of one server.
const NODES_PER_SERVER: u32 = 16;
/// The node of the first client.
const CLIENT: u32 = 50_000;

pub type Wire = FaultInjector<LoopbackTransport>;
pub type Client = KvCluster<Wire>;
pub type End = Rc<Endpoint<Wire>>;

pub struct Core {
    pub endpoint: End,
    pub shard: Rc<Shard<Model>>,
}

pub struct World {
    pub network: LoopbackNetwork,
    pub cluster: Description,
    pub servers: Vec<Vec<Core>>,
    /// The incarnations of the servers.
    of_servers: Vec<u64>,
    /// Servers whose endpoints are not turned: they are silent.
    pub hung: Vec<bool>,
    pub client: End,
    seed: u64,
    faults: Faults,
    incarnations: Cell<u64>,
    clients: Cell<u32>,
    others: std::cell::RefCell<Vec<End>>,
    fences: Vec<Option<Arc<dyn Fence>>>,
    cores: u16,
    /// Deletions that a core of a server which is started from now on keeps in mind.
    pub deletions: usize,
    /// The longest value of servers that are started from now on.
    pub value_bytes_max: u32,
}

/// The wall clock of clients, in microseconds since 1970.
pub const NOW: u64 = 1_700_000_000_000_000;

pub fn config() -> ClusterConfig {
    let mut config = ClusterConfig::default();
    config.seed = Some(7);
    config.wall_micros = || NOW;
    config
}

pub fn describe(servers: u32, replicas: usize) -> Description {
    let place =
        |number: u32| ServerPlace { name: format!("s{number}"), address: Addr::Node(1 + number * NODES_PER_SERVER) };
    Description::new("test", 1, (0..servers).map(place).collect(), replicas, 32).unwrap()
}

impl World {
    /// Starts a cluster whose servers are open.
    pub fn new(servers: u32, replicas: usize, cores: u16) -> World {
        World::with_faults(servers, replicas, cores, 1, Faults::default(), Vec::new())
    }

    pub fn with_faults(
        servers: u32,
        replicas: usize,
        cores: u16,
        seed: u64,
        faults: Faults,
        fences: Vec<Option<Arc<dyn Fence>>>,
    ) -> World {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let client = end(&network, CLIENT, seed, faults, quick());
        let fences = if fences.is_empty() { vec![None; servers as usize] } else { fences };
        let mut world = World {
            network,
            cluster: describe(servers, replicas),
            servers: (0..servers).map(|_| Vec::new()).collect(),
            of_servers: vec![0; servers as usize],
            hung: vec![false; servers as usize],
            client,
            seed,
            faults,
            incarnations: Cell::new(seed * 1000),
            clients: Cell::new(1),
            others: Default::default(),
            fences,
            cores,
            deletions: 1000,
            value_bytes_max: 1 << 20,
        };
        (0..servers).for_each(|server| world.start(server, ReplicaState::Open));
        world
    }

    /// Starts a server, in place of the process before.
    pub fn start(&mut self, server: u32, state: ReplicaState) {
        let cluster = self.cluster.clone();
        self.start_as(server, state, &cluster);
    }

    /// The same with another description of the cluster.
    pub fn start_as(&mut self, server: u32, state: ReplicaState, cluster: &Description) {
        self.stop(server);
        self.hung[server as usize] = false;
        self.incarnations.set(self.incarnations.get() + 1);
        let incarnation = self.incarnations.get();
        self.of_servers[server as usize] = incarnation;
        let routing = Routing::new([incarnation as u8; 16], self.cores).unwrap();
        let first = 1 + server * NODES_PER_SERVER;
        let nodes = first..first + u32::from(self.cores);
        let addresses = nodes.clone().map(|node| vec![Addr::Node(node).to_string()]).collect();
        let map =
            ServerMap { incarnation, routing, limits: Limits { value_bytes_max: self.value_bytes_max }, addresses };
        let name = &self.cluster.servers()[server as usize].name;
        let core = |(node, core): (u32, u16)| {
            let seed = self.seed ^ incarnation << 20;
            let endpoint = end(&self.network, node, seed, self.faults, quick());
            let shard = Rc::new(Shard::new(Model::new(), routing, core));
            let replica = Replica::new(name, cluster.fingerprint(), cluster.partitions()).in_state(state);
            let replica = replica.remembering(self.deletions);
            shard.join_cluster(match &self.fences[server as usize] {
                Some(fence) => replica.fenced(fence.clone()),
                None => replica,
            });
            KvService::new(shard.clone(), map.clone()).register(&endpoint).unwrap();
            Core { endpoint, shard }
        };
        self.servers[server as usize] = nodes.zip(0..).map(core).collect();
    }

    /// Returns the incarnation of a server.
    pub fn incarnation(&self, server: u32) -> u64 {
        self.of_servers[server as usize]
    }

    /// Ends a server.
    pub fn stop(&mut self, server: u32) {
        self.servers[server as usize].clear();
    }

    /// Returns a client on the first endpoint.
    pub fn connect(&self, config: ClusterConfig) -> Client {
        KvCluster::new(&self.client, self.cluster.clone(), config).unwrap()
    }

    /// Returns an endpoint for another client.
    pub fn another_end(&self) -> End {
        self.another_end_with(quick())
    }

    /// The same with other settings.
    pub fn another_end_with(&self, config: EndpointConfig) -> End {
        self.clients.set(self.clients.get() + 1);
        let end = end(&self.network, CLIENT + self.clients.get(), self.seed, self.faults, config);
        self.others.borrow_mut().push(end.clone());
        end
    }

    pub fn turn(&self) {
        self.network.advance_to(self.next_time());
        self.servers_that_run().for_each(|core| _ = core.endpoint.run_once());
        self.others.borrow().iter().for_each(|end| _ = end.run_once());
    }

    fn servers_that_run(&self) -> impl Iterator<Item = &Core> {
        let running = self.servers.iter().zip(&self.hung).filter(|(_, is_hung)| !**is_hung);
        running.flat_map(|(cores, _)| cores)
    }

    /// When something happens next.
    fn next_time(&self) -> u64 {
        let others = self.others.borrow();
        let servers = self.servers_that_run().map(|core| &core.endpoint);
        let due = |end: &End| end.next_due().into_iter().chain(end.with_transport(|wire| wire.next_release())).min();
        let next = servers.chain(&*others).chain([&self.client]).filter_map(due).min();
        let (now, next) = (self.network.now(), next.into_iter().chain(self.network.next_arrival()).min());
        let [least, most] = [TURN, LEAP].map(|time| now + time.as_nanos() as u64);
        next.map_or(most, |next| next.clamp(least, most))
    }

    /// Runs everything until `work` is done.
    pub fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        for _ in 0..TURNS_MAX {
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
            self.turn();
        }
        panic!("stuck after {TURNS_MAX} turns");
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.run(self.client.timers().sleep(time));
    }

    /// Returns what a server holds under a key, and the version.
    pub fn held(&self, server: u32, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        self.servers[server as usize].iter().find(|core| core.shard.owns(key)).and_then(|core| {
            let store = core.shard.store.borrow();
            let key = store.key(key).unwrap();
            store.peek(&key).map(|item| (item.value.to_vec(), item.cas))
        })
    }

    /// Returns the servers that hold a key.
    pub fn holders(&self, key: &[u8]) -> Vec<u32> {
        (0..self.servers.len() as u32).filter(|server| self.held(*server, key).is_some()).collect()
    }

    /// Returns the servers of a key, in the order of their numbers.
    pub fn replicas(&self, key: &[u8]) -> Vec<u32> {
        let mut replicas = self.cluster.replicas_of(self.cluster.partition(key)).to_vec();
        replicas.sort_unstable();
        replicas
    }
}

/// Waits until something is so, and returns before anything else happens.
pub async fn until(is_so: impl Fn() -> bool) {
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if is_so() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Settings of endpoints that notice soon that a peer is silent.
fn quick() -> EndpointConfig {
    EndpointConfig { peer_timeout: SILENCE, connect_timeout: SILENCE, ..EndpointConfig::default() }
}

/// Drops all packets that an endpoint sends, or none.
pub fn mute(end: &End, is_mute: bool) {
    let drop = if is_mute { 1.0 } else { 0.0 };
    end.with_transport(|wire| wire.set_faults(Faults { drop, ..Faults::default() })).unwrap();
}

fn end(network: &LoopbackNetwork, node: u32, seed: u64, faults: Faults, config: EndpointConfig) -> End {
    let wire = FaultInjector::new(network.endpoint(node).unwrap(), seed ^ u64::from(node) << 40, faults).unwrap();
    let seed = seed.wrapping_mul(31) + u64::from(node);
    Rc::new(Endpoint::new(wire, EndpointConfig { seed: Some(seed), ..config }).unwrap())
}
