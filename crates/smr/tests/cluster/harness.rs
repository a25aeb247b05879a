//! Replicas and a client over loopback, in one thread, on a clock that the test moves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::{Answer, Command, Condition, KvMachine, Query};
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, Client, ClientConfig, ClientError, MemoryLog, Node, NodeConfig};

/// Time between two turns of everybody.
const TURN: Duration = Duration::from_micros(50);
/// Turns in which something must happen.
const PATIENCE: usize = 200_000;
/// The node of the client.
const CLIENT: u32 = 1000;

pub type Replica = Node<KvMachine, MemoryLog>;

/// A network, its time, and who runs on it, whichever cluster they belong to.
#[derive(Clone)]
pub struct World {
    network: LoopbackNetwork,
    clock: Rc<Cell<u64>>,
    running: Rc<RefCell<BTreeMap<u32, Rc<Endpoint<LoopbackTransport>>>>>,
}

impl World {
    pub fn new() -> World {
        let network = LoopbackNetwork::new(LoopbackConfig { queue_len: 8192, ..LoopbackConfig::default() });
        World { network, clock: Rc::default(), running: Rc::default() }
    }

    fn turn(&self, paused: &[u32]) {
        self.network.advance(TURN);
        self.clock.set(self.network.now());
        let running: Vec<_> = self.running.borrow().iter().map(|(node, endpoint)| (*node, endpoint.clone())).collect();
        running.iter().filter(|(node, _)| !paused.contains(node)).for_each(|(_, endpoint)| _ = endpoint.run_once());
    }
}

pub struct Cluster {
    pub world: World,
    /// Where each member is reached.
    members: Vec<(u64, Addr)>,
    places: BTreeMap<u64, Replica>,
    /// Those that do nothing, as if they stood still.
    pub paused: Vec<u64>,
    pub client: Client<LoopbackTransport>,
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    /// Of replicas that are started from now on.
    pub config: NodeConfig,
    incarnation: u64,
}

fn endpoint(network: &LoopbackNetwork, node: u32, seed: u64) -> Rc<Endpoint<LoopbackTransport>> {
    let config = EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(30),
        seed: Some(seed),
        ..EndpointConfig::default()
    };
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), config).unwrap())
}

/// Settings for quick elections.
pub fn config() -> NodeConfig {
    NodeConfig { tick: Duration::from_millis(1), heartbeat_ticks: 3, election_ticks: 20, ..NodeConfig::new(1) }
}

/// Settings for short waits.
pub fn client_config() -> ClientConfig {
    ClientConfig { timeout: Duration::from_secs(2), attempt_timeout: Duration::from_millis(40), ..ClientConfig::default() }
}

impl Cluster {
    /// So many first members, and a client that knows them.
    pub fn new(members: u64, config: NodeConfig) -> Cluster {
        let all: Vec<(u64, Addr)> = (1..=members).map(|id| (id, Addr::Node(id as u32))).collect();
        let mut cluster = Cluster::planned(&World::new(), CLIENT, all.clone(), config);
        for id in 1..=members {
            cluster.start(id, MemoryLog::new(), Beginning::First(all.clone()));
        }
        cluster
    }

    /// A client of these members, on a node of its own, none of which runs yet.
    pub fn planned(world: &World, client_node: u32, all: Vec<(u64, Addr)>, config: NodeConfig) -> Cluster {
        let endpoint = endpoint(&world.network, client_node, client_node.into());
        let client = Client::new(&endpoint, all.clone(), client_config());
        Cluster {
            world: world.clone(),
            members: all,
            places: BTreeMap::new(),
            paused: Vec::new(),
            client,
            endpoint,
            config,
            incarnation: u64::from(client_node) << 10,
        }
    }

    /// Where a replica is reached.
    fn node_of(&self, id: u64) -> u32 {
        match self.members.iter().find(|(member, _)| *member == id) {
            Some((_, Addr::Node(node))) => *node,
            _ => id as u32,
        }
    }

    /// Starts a replica.
    pub fn start(&mut self, id: u64, log: MemoryLog, beginning: Beginning) {
        self.incarnation += 1;
        let place = self.node_of(id);
        let endpoint = endpoint(&self.world.network, place, self.incarnation << 20 | id);
        let clock = self.world.clock.clone();
        let config = NodeConfig {
            id,
            seed: Some(self.incarnation << 8 | id),
            clock: Rc::new(move || clock.get()),
            ..self.config.clone()
        };
        let machine = KvMachine::new(64 << 20).unwrap();
        let node = Node::start(&endpoint, config, log, machine, beginning).unwrap();
        self.world.running.borrow_mut().insert(place, endpoint);
        self.places.insert(id, node);
    }

    /// Stops a replica; gives its log.
    pub fn stop(&mut self, id: u64) -> MemoryLog {
        let node = self.places.remove(&id).unwrap();
        let log = node.with_log(MemoryLog::clone);
        drop(node);
        self.world.running.borrow_mut().remove(&self.node_of(id));
        log
    }

    pub fn node(&self, id: u64) -> Replica {
        self.places[&id].clone()
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

    pub fn until(&self, what: &str, mut done: impl FnMut(&Cluster) -> bool) {
        for _ in 0..PATIENCE {
            if done(self) {
                return;
            }
            self.turn();
            self.endpoint.run_once();
        }
        panic!("it never came to this: {what}; {:#?}", self.places.values().map(|place| place.status()).collect::<Vec<_>>());
    }

    /// Drives everything until a future of the client's ends.
    pub fn drive<F: Future>(&self, work: F) -> F::Output {
        let mut work = Box::pin(work);
        for _ in 0..PATIENCE {
            self.turn();
            if let Some(output) = self.endpoint.poll_once(work.as_mut()) {
                return output;
            }
        }
        panic!("it never ended; {:#?}", self.places.values().map(|place| place.status()).collect::<Vec<_>>());
    }

    pub fn leader(&self) -> u64 {
        self.until("somebody leads", |cluster| cluster.leaders().next().is_some());
        self.leaders().next().unwrap()
    }

    fn leaders(&self) -> impl Iterator<Item = u64> {
        let leads = |place: &&Replica| place.status().role == Role::Leader;
        self.places.values().filter(leads).map(|place| place.status().id)
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

    /// What a replica has, whoever leads.
    pub fn local(&self, id: u64, key: &str) -> Option<Vec<u8>> {
        use dunlin_smr::StateMachine as _;
        let mut reply = Vec::new();
        self.places[&id].with_machine(|machine| machine.query(key.as_bytes(), &mut reply));
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
