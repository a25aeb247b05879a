//! Replicas with their logs on simulated disks, and a client, over loopback, in one thread, on a clock that the test moves.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::{Answer, Command, Condition, KvMachine};
use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Stepper, WalConfig, open_stepped};
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Beginning, Client, ClientConfig, ClientError, DurableLog, Node, NodeConfig};

/// Time between two turns of everybody.
const TURN: Duration = Duration::from_micros(50);
/// Turns in which something must happen.
const PATIENCE: usize = 200_000;
/// The node of the client.
const CLIENT: u32 = 1000;

pub type Replica = Node<KvMachine, DurableLog<SimDisk>>;

pub struct Place {
    endpoint: Rc<Endpoint<LoopbackTransport>>,
    pub node: Replica,
    pub disk: SimDisk,
    flusher: Stepper<SimDisk>,
}

pub struct Cluster {
    network: LoopbackNetwork,
    clock: Rc<Cell<u64>>,
    pub places: BTreeMap<u64, Place>,
    /// Those that do nothing, as if they stood still.
    pub paused: Vec<u64>,
    pub client: Client<LoopbackTransport>,
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    /// Of replicas that are started from now on.
    pub config: NodeConfig,
    wal: WalConfig,
    /// Of the machines.
    bytes_max: u64,
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

/// Settings for quick elections: a disk hangs when a flush takes 60 ms.
pub fn config() -> NodeConfig {
    NodeConfig { tick: Duration::from_millis(1), heartbeat_ticks: 3, election_ticks: 20, ..NodeConfig::new(1) }
}

impl Cluster {
    /// So many first members, and a client that knows them.
    pub fn new(members: u64, config: NodeConfig, wal: WalConfig) -> Cluster {
        let network = LoopbackNetwork::new(LoopbackConfig { queue_len: 8192, ..LoopbackConfig::default() });
        let all: Vec<(u64, Addr)> = (1..=members).map(|id| (id, Addr::Node(id as u32))).collect();
        let endpoint = endpoint(&network, CLIENT, 7);
        let client = Client::new(
            &endpoint,
            all.clone(),
            ClientConfig {
                timeout: Duration::from_secs(2),
                attempt_timeout: Duration::from_millis(40),
                ..ClientConfig::default()
            },
        );
        let mut cluster = Cluster {
            network,
            clock: Rc::default(),
            places: BTreeMap::new(),
            paused: Vec::new(),
            client,
            endpoint,
            config,
            wal,
            bytes_max: 64 << 20,
        };
        for id in 1..=members {
            let disk = SimDisk::new(id, SimDiskConfig { capacity_bytes: 64 << 30, ..SimDiskConfig::default() });
            cluster.start(id, disk, Beginning::First(all.clone()));
        }
        cluster
    }

    /// Starts a replica on what its disk has.
    pub fn start(&mut self, id: u64, disk: SimDisk, beginning: Beginning) {
        let endpoint = endpoint(&self.network, id as u32, self.clock.get() << 8 | id);
        let clock = self.clock.clone();
        let config = NodeConfig {
            id,
            seed: Some(self.clock.get() << 8 | id),
            clock: Rc::new(move || clock.get()),
            ..self.config.clone()
        };
        let machine = KvMachine::with_secret(self.bytes_max, [1, id]).unwrap();
        let (wal, _) = open_stepped(disk.clone(), WalConfig { owner: id, ..self.wal }).unwrap();
        let flusher = wal.stepper().unwrap();
        let log = DurableLog::new(wal).unwrap();
        let node = Node::start(&endpoint, config, log, machine, beginning).unwrap();
        self.places.insert(id, Place { endpoint, node, disk, flusher });
    }

    /// Stops a replica, as a process that is killed; gives its disk.
    pub fn stop(&mut self, id: u64) -> SimDisk {
        let place = self.places.remove(&id).unwrap();
        place.disk.crash(dunlin_smr::wal::sim::Crash::Process)
    }

    pub fn status(&self, id: u64) -> Status {
        self.places[&id].node.status()
    }

    /// Lets the disk of a replica hang until it is [healed](Cluster::heal).
    pub fn hang(&self, id: u64) {
        self.places[&id].disk.hang_until(u64::MAX);
    }

    pub fn heal(&self, id: u64) {
        self.places[&id].disk.hang_until(0);
    }

    /// Files of snapshots that a replica has.
    pub fn snapshot_files(&self, id: u64) -> usize {
        use dunlin_smr::wal::Disk as _;
        let names = self.places[&id].disk.list().unwrap();
        names.iter().filter(|name| name.starts_with("snapshot-")).count()
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.get())
    }

    pub fn turn(&self) {
        self.network.advance(TURN);
        self.clock.set(self.network.now());
        for (_, place) in self.places.iter().filter(|(id, _)| !self.paused.contains(id)) {
            place.flusher.step(self.clock.get());
            place.endpoint.run_once();
        }
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
        panic!("it never came to this: {what}; {:#?}", self.all());
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
        panic!("it never ended; {:#?}", self.all());
    }

    fn all(&self) -> Vec<(Status, Option<dunlin_smr::NodeError>)> {
        self.places.values().map(|place| (place.node.status(), place.node.failure())).collect()
    }

    /// The replica that leads in the highest term.
    pub fn leading(&self) -> Option<u64> {
        let statuses = self.places.values().map(|place| place.node.status());
        statuses.filter(|status| status.role == Role::Leader).max_by_key(|status| status.term).map(|status| status.id)
    }

    pub fn leader(&self) -> u64 {
        self.until("somebody leads", |cluster| cluster.leading().is_some());
        self.leading().unwrap()
    }

    pub fn put(&self, key: &str, value: &[u8]) -> Result<u64, ClientError> {
        let command = Command::Put { key: key.as_bytes(), value, condition: Condition::Always };
        let reply = self.drive(self.client.execute(&command.encode()))?;
        match Answer::parse(&reply).unwrap() {
            Answer::Done { version } => Ok(version),
            other => panic!("{command:?}: {other:?}"),
        }
    }

    /// What a replica has, whoever leads.
    pub fn local(&self, id: u64, key: &str) -> Option<Vec<u8>> {
        use dunlin_smr::StateMachine as _;
        let mut reply = Vec::new();
        self.places[&id].node.with_machine(|machine| machine.query(key.as_bytes(), &mut reply));
        match Answer::parse(&reply).unwrap() {
            Answer::Value { value, .. } => Some(value.to_vec()),
            Answer::NotFound => None,
            other => panic!("a query gives {other:?}"),
        }
    }
}
