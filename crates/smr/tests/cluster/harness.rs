//! Replicas and a client over loopback, in one thread, on a clock that the test advances.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::{Answer, Command, Condition, KvMachine, Query};
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Beginning, Client, ClientConfig, ClientError, Node, NodeConfig, NodeError};

use super::storage::{InMemory, Storage};

/// Time between two turns of all processes.
const TURN: Duration = Duration::from_micros(50);
/// Turns within which an expected event must happen.
const PATIENCE: usize = 200_000;
/// The node of the client.
const CLIENT: u32 = 1000;

/// Replicas with their logs in memory.
pub type Cluster = ClusterOf<InMemory>;

type Replica<S> = Node<KvMachine, <S as Storage>::Log>;

/// A process at a node of the network.
#[derive(Clone)]
struct Running {
    endpoint: Rc<Endpoint<LoopbackTransport>>,
    /// Steps the device below its log.
    step: Rc<dyn Fn(u64)>,
}

/// A network, its time, and the processes on it, of any cluster.
#[derive(Clone)]
pub struct World {
    network: LoopbackNetwork,
    clock: Rc<Cell<u64>>,
    running: Rc<RefCell<BTreeMap<u32, Running>>>,
}

impl World {
    pub fn new() -> World {
        World::with_delay(LoopbackConfig::default().delay)
    }

    /// A network on which packets take this long.
    pub fn with_delay(delay: Duration) -> World {
        let network = LoopbackNetwork::new(LoopbackConfig { queue_len: 8192, delay, ..LoopbackConfig::default() });
        World { network, clock: Rc::default(), running: Rc::default() }
    }

    fn turn(&self, paused: &[u32]) {
        self.network.advance(TURN);
        self.clock.set(self.network.now());
        let running: Vec<_> = self.running.borrow().iter().map(|(node, running)| (*node, running.clone())).collect();
        for (_, Running { endpoint, step }) in running.iter().filter(|(node, _)| !paused.contains(node)) {
            step(self.clock.get());
            endpoint.run_once();
        }
    }
}

/// A replica, and the device below its log.
pub struct Place<S: Storage> {
    pub node: Replica<S>,
    pub device: Rc<S::Device>,
}

pub struct ClusterOf<S: Storage> {
    pub world: World,
    pub storage: S,
    /// The address of each member.
    pub members: Vec<(u64, Addr)>,
    pub places: BTreeMap<u64, Place<S>>,
    /// Replicas that stand still.
    pub paused: Vec<u64>,
    pub client: Client<LoopbackTransport>,
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    /// Settings of replicas that are started from now on.
    pub config: NodeConfig,
    /// Credits of their sessions: with one, each packet takes a round trip.
    pub credits: u16,
    incarnation: u64,
}

fn endpoint(network: &LoopbackNetwork, node: u32, config: EndpointConfig) -> Rc<Endpoint<LoopbackTransport>> {
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), config).unwrap())
}

fn endpoint_config(seed: u64) -> EndpointConfig {
    EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(30),
        seed: Some(seed),
        ..EndpointConfig::default()
    }
}

/// Settings for quick elections: a disk counts as hung when a flush takes 60 ms.
pub fn config() -> NodeConfig {
    NodeConfig { tick: Duration::from_millis(1), heartbeat_ticks: 3, election_ticks: 20, ..NodeConfig::new(1) }
}

/// Settings for short waits.
pub fn client_config() -> ClientConfig {
    ClientConfig {
        timeout: Duration::from_secs(2),
        attempt_timeout: Duration::from_millis(40),
        ..ClientConfig::default()
    }
}

impl Cluster {
    /// Starts this many first members with logs in memory, and a client that knows them.
    pub fn new(members: u64, config: NodeConfig) -> Cluster {
        ClusterOf::of(InMemory, members, config)
    }
}

impl<S: Storage> ClusterOf<S> {
    /// Starts this many first members, and a client that knows them.
    pub fn of(storage: S, members: u64, config: NodeConfig) -> ClusterOf<S> {
        ClusterOf::within(&World::new(), storage, members, config)
    }

    /// Starts them in a world.
    pub fn within(world: &World, storage: S, members: u64, config: NodeConfig) -> ClusterOf<S> {
        let all: Vec<(u64, Addr)> = (1..=members).map(|id| (id, Addr::Node(id as u32))).collect();
        let mut cluster = ClusterOf::planned(world, storage, CLIENT, all.clone(), config);
        for id in 1..=members {
            let empty = cluster.storage.empty(id);
            cluster.start(id, empty, Beginning::First(all.clone()));
        }
        cluster
    }

    /// Creates a client of these members, on a node of its own; no member runs yet.
    pub fn planned(
        world: &World,
        storage: S,
        client_node: u32,
        all: Vec<(u64, Addr)>,
        config: NodeConfig,
    ) -> ClusterOf<S> {
        let endpoint = endpoint(&world.network, client_node, endpoint_config(client_node.into()));
        let client = Client::new(&endpoint, all.clone(), client_config());
        ClusterOf {
            world: world.clone(),
            storage,
            members: all,
            places: BTreeMap::new(),
            paused: Vec::new(),
            client,
            endpoint,
            credits: EndpointConfig::default().credits,
            config,
            incarnation: u64::from(client_node) << 10,
        }
    }

    /// Replaces the client by another, on an endpoint of its own whose sessions have this many credits, and end after a
    /// second of silence.
    pub fn change_client(&mut self, credits: u16, config: ClientConfig) {
        let node = CLIENT + 1;
        let peer_timeout = Duration::from_secs(1);
        let endpoint_config = EndpointConfig { credits, peer_timeout, ..endpoint_config(node.into()) };
        self.endpoint = Rc::new(Endpoint::new(self.world.network.endpoint(node).unwrap(), endpoint_config).unwrap());
        self.client = Client::new(&self.endpoint, self.members.clone(), config);
    }

    /// Returns the node of a replica.
    fn node_of(&self, id: u64) -> u32 {
        match self.members.iter().find(|(member, _)| *member == id) {
            Some((_, Addr::Node(node))) => *node,
            _ => id as u32,
        }
    }

    /// Starts a replica on the remains of its log.
    pub fn start(&mut self, id: u64, left: S::Left, beginning: Beginning) {
        self.incarnation += 1;
        let place = self.node_of(id);
        let seed = self.incarnation << 20 | id;
        let endpoint_config = EndpointConfig { credits: self.credits, ..endpoint_config(seed) };
        let endpoint = endpoint(&self.world.network, place, endpoint_config);
        let clock = self.world.clock.clone();
        let config = NodeConfig {
            id,
            seed: Some(self.incarnation << 8 | id),
            clock: Rc::new(move || clock.get()),
            ..self.config.clone()
        };
        let machine = KvMachine::with_secret(64 << 20, [self.incarnation, id]).unwrap();
        let (log, device) = self.storage.open(id, left);
        let node = Node::start(&endpoint, config, log, machine, beginning).unwrap();
        let device = Rc::new(device);
        let stepped = device.clone();
        let running = Running { endpoint, step: Rc::new(move |now| S::step(&stepped, now)) };
        self.world.running.borrow_mut().insert(place, running);
        self.places.insert(id, Place { node, device });
    }

    /// Stops a replica, as if its process were killed; returns the remains of its log.
    pub fn stop(&mut self, id: u64) -> S::Left {
        let Place { node, device } = self.places.remove(&id).unwrap();
        let left = node.with_log(|log| S::leave(log, &device));
        drop(node);
        self.world.running.borrow_mut().remove(&self.node_of(id));
        left
    }

    pub fn node(&self, id: u64) -> Replica<S> {
        self.places[&id].node.clone()
    }

    pub fn status(&self, id: u64) -> Status {
        self.places[&id].node.status()
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world.clock.get())
    }

    pub fn turn(&self) {
        let paused: Vec<u32> = self.paused.iter().map(|id| self.node_of(*id)).collect();
        self.world.turn(&paused);
    }

    pub fn turns(&self, time: Duration) {
        for _ in 0..time.as_micros() / TURN.as_micros() {
            self.turn();
            self.endpoint.run_once();
        }
    }

    pub fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..PATIENCE {
            if done(self) {
                return;
            }
            self.turn();
            self.endpoint.run_once();
        }
        panic!("it never came to this: {what}; {:#?}", self.all());
    }

    /// Runs all processes until a future of the client is ready.
    pub fn drive<F: Future>(&self, work: F) -> F::Output {
        let mut work = Box::pin(work);
        for _ in 0..PATIENCE {
            self.turn();
            if let Some(output) = self.endpoint.poll_once(work.as_mut()) {
                return output;
            }
        }
        panic!("it never ended; {:#?}", self.all());
    }

    fn all(&self) -> Vec<(Status, Option<NodeError>)> {
        self.places.values().map(|place| (place.node.status(), place.node.failure())).collect()
    }

    /// Returns the replica that leads in the highest term.
    pub fn leading(&self) -> Option<u64> {
        let statuses = self.places.values().map(|place| place.node.status());
        statuses.filter(|status| status.role == Role::Leader).max_by_key(|status| status.term).map(|status| status.id)
    }

    pub fn leader(&self) -> u64 {
        self.until("somebody leads", |cluster| cluster.leading().is_some());
        self.leading().unwrap()
    }

    pub fn put(&self, key: &str, value: &[u8]) -> Result<u64, ClientError> {
        self.command(Command::Put { key: key.as_bytes(), value, condition: Condition::Always })
    }

    pub fn append(&self, key: &str, bytes: &[u8]) -> Result<u64, ClientError> {
        self.command(Command::Append { key: key.as_bytes(), bytes })
    }

    fn command(&self, command: Command<'_>) -> Result<u64, ClientError> {
        let reply = self.drive(self.client.execute(&command.encode()))?;
        match Answer::parse(&reply).unwrap() {
            Answer::Done { version } => Ok(version),
            other => panic!("{command:?}: {other:?}"),
        }
    }

    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        let reply = self.drive(self.client.query(Query { key: key.as_bytes() }.encode()))?;
        Ok(value(&reply))
    }

    /// Returns the value that a replica has, even if it does not lead.
    pub fn local(&self, id: u64, key: &str) -> Option<Vec<u8>> {
        use dunlin_smr::StateMachine as _;
        let mut reply = Vec::new();
        self.places[&id].node.with_machine(|machine| machine.query(key.as_bytes(), &mut reply));
        value(&reply)
    }
}

fn value(reply: &[u8]) -> Option<Vec<u8>> {
    match Answer::parse(reply).unwrap() {
        Answer::Value { value, .. } => Some(value.to_vec()),
        Answer::NotFound => None,
        other => panic!("a query gives {other:?}"),
    }
}
