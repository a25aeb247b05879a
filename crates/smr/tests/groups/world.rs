//! Processes with many groups, and a client, over loopback in one thread, on a clock that the test advances.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::machine::{Asked, Piece, RestoreError};
use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Stepper, WalConfig, open_stepped};
use dunlin_smr::wire::response::Role;
use dunlin_smr::{
    Beginning, Client, ClientConfig, ClientError, DurableLog, Host, LogStore, MemoryLog, NodeConfig, StateMachine,
};

/// Time between two turns of all processes.
const TURN: Duration = Duration::from_micros(100);
/// Turns within which an expected event must happen.
const PATIENCE: usize = 100_000;
/// The node of the client.
const CLIENT: u32 = 1000;

/// A sum; a command is an 8-byte number that is added to it. A question of eight bytes is kept until the sum has
/// reached that number; one of a single byte is urgent. Its snapshots end with a configurable number of padding bytes,
/// and are taken in pieces.
#[derive(Debug, Default)]
pub struct Sum {
    pub sum: u64,
    padding: usize,
    /// Padding bytes that are left of the snapshot that is being taken.
    left: usize,
    kept: BTreeMap<u64, u64>,
}

thread_local! {
    /// Pieces that machines of this thread have restored.
    pub static RESTORED: Cell<u64> = const { Cell::new(0) };
}

fn number(bytes: &[u8]) -> Result<u64, RestoreError> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| RestoreError::new("a sum has eight bytes"))
}

impl StateMachine for Sum {
    fn apply(&mut self, _index: u64, command: &[u8], reply: &mut Vec<u8>) {
        self.sum += number(command).unwrap_or(0);
        reply.extend_from_slice(&self.sum.to_le_bytes());
    }

    fn query(&self, _query: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(&self.sum.to_le_bytes());
    }

    fn ask(&mut self, number: u64, query: &[u8], reply: &mut Vec<u8>) -> Asked {
        match self::number(query) {
            Ok(least) if least > self.sum => {
                self.kept.insert(number, least);
                Asked::Kept
            }
            _ => {
                self.query(query, reply);
                Asked::Answered
            }
        }
    }

    fn is_urgent(&self, query: &[u8]) -> bool {
        query.len() == 1
    }

    fn take_ready(&mut self) -> Vec<u64> {
        let ready: Vec<u64> =
            self.kept.iter().filter(|(_, least)| **least <= self.sum).map(|(number, _)| *number).collect();
        ready.iter().for_each(|number| _ = self.kept.remove(number));
        ready
    }

    fn forget(&mut self, number: u64) {
        self.kept.remove(&number);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sum.to_le_bytes());
        out.resize(out.len() + self.padding, 0);
    }

    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sum.to_le_bytes());
        self.left = self.padding;
    }

    fn continue_snapshot(&mut self, bytes: usize, out: &mut Vec<u8>) -> Piece {
        let taken = self.left.min(bytes);
        self.left -= taken;
        out.resize(out.len() + taken, 0);
        if self.left > 0 { Piece::Another } else { Piece::Last }
    }

    fn fresh(&self) -> Result<Sum, RestoreError> {
        Ok(Sum { padding: self.padding, ..Sum::default() })
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.sum = number(snapshot.get(..8).unwrap_or_default())?;
        Ok(())
    }

    fn restore_piece(&mut self, snapshot: &[u8], from: usize, bytes: usize) -> Result<usize, RestoreError> {
        RESTORED.set(RESTORED.get() + 1);
        self.restore(snapshot)?;
        Ok(snapshot.len().min(from + bytes))
    }
}

/// The storage of a process's logs.
pub trait Storage {
    type Log: LogStore + 'static;
    /// What drives the logs as time passes.
    type Device: 'static;

    fn open(&mut self, id: u64, groups: u16) -> (Vec<Self::Log>, Self::Device);
    fn step(device: &Self::Device, now: u64);
    /// Crashes a process's storage: what survives is there when the logs are opened again.
    fn crash(&mut self, id: u64);
}

/// Logs in memory, for processes that do not return.
pub struct InMemory;

impl Storage for InMemory {
    type Log = MemoryLog;
    type Device = ();

    fn open(&mut self, _id: u64, groups: u16) -> (Vec<MemoryLog>, ()) {
        ((0..groups).map(|_| MemoryLog::new()).collect(), ())
    }

    fn step((): &(), _now: u64) {}

    fn crash(&mut self, _id: u64) {}
}

/// One log on a simulated disk for all groups of a process.
#[derive(Default)]
pub struct OnDisk {
    pub disks: BTreeMap<u64, SimDisk>,
    /// The maximum size of a log, if it is less than the default.
    pub log_bytes_max: Option<u64>,
}

impl Storage for OnDisk {
    type Log = DurableLog<SimDisk>;
    type Device = Stepper<SimDisk>;

    fn open(&mut self, id: u64, groups: u16) -> (Vec<DurableLog<SimDisk>>, Stepper<SimDisk>) {
        let flush = Duration::from_micros(300);
        let new = || SimDisk::new(id, SimDiskConfig { flush_time: (flush, flush), ..SimDiskConfig::default() });
        let disk = self.disks.entry(id).or_insert_with(new).clone();
        let mut config = WalConfig { segment_bytes: 64 << 10, ..WalConfig::new(id) };
        if let Some(log_bytes_max) = self.log_bytes_max {
            (config.segment_bytes, config.log_bytes_max) = (4 << 10, log_bytes_max);
        }
        let (wal, _) = open_stepped(disk, config).unwrap();
        let stepper = wal.stepper().unwrap();
        (DurableLog::of_groups(&wal, groups).unwrap(), stepper)
    }

    fn step(stepper: &Stepper<SimDisk>, now: u64) {
        stepper.step(now);
    }

    fn crash(&mut self, id: u64) {
        if let Some(disk) = self.disks.get_mut(&id) {
            *disk = disk.crash(Crash::Power);
        }
    }
}

/// A process.
pub struct Process<S: Storage> {
    pub host: Host<Sum, S::Log>,
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    device: S::Device,
}

pub struct World<S: Storage> {
    network: LoopbackNetwork,
    clock: Rc<Cell<u64>>,
    pub storage: S,
    pub processes: BTreeMap<u64, Process<S>>,
    /// Processes that stand still.
    pub paused: Vec<u64>,
    /// The nodes of processes that are not at the node of their id.
    pub moved: BTreeMap<u64, u32>,
    pub endpoint: Rc<Endpoint<LoopbackTransport>>,
    client: Client<LoopbackTransport>,
    /// The number of groups of processes that are started from now on.
    pub groups: u16,
    pub config: NodeConfig,
    /// Padding bytes in the snapshots of a group.
    pub padding: fn(u16) -> usize,
    lives: u64,
}

/// Settings for quick elections, and groups that rest after one election timeout.
pub fn config() -> NodeConfig {
    NodeConfig {
        tick: Duration::from_millis(1),
        heartbeat_ticks: 4,
        election_ticks: 24,
        idle_ticks: Some(24),
        ..NodeConfig::new(1)
    }
}

/// An election timeout with these settings.
pub const ELECTION: Duration = Duration::from_millis(24);

fn endpoint_config(seed: u64) -> EndpointConfig {
    EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(30),
        seed: Some(seed),
        ..EndpointConfig::default()
    }
}

pub fn endpoint(network: &LoopbackNetwork, node: u32, seed: u64) -> Rc<Endpoint<LoopbackTransport>> {
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), endpoint_config(seed)).unwrap())
}

impl<S: Storage> World<S> {
    /// Starts three processes with this many groups.
    pub fn new(storage: S, groups: u16, config: NodeConfig) -> World<S> {
        World::padded(storage, groups, config, |_| 0)
    }

    /// The same, with this many padding bytes in the snapshots of each group.
    pub fn padded(storage: S, groups: u16, config: NodeConfig, padding: fn(u16) -> usize) -> World<S> {
        let network = LoopbackNetwork::new(LoopbackConfig { queue_len: 8192, ..LoopbackConfig::default() });
        let endpoint = endpoint(&network, CLIENT, 1);
        let timeouts = ClientConfig {
            timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(40),
            ..ClientConfig::default()
        };
        let client = Client::new(&endpoint, members(), timeouts);
        let (processes, clock) = (BTreeMap::new(), Rc::default());
        let mut world = World {
            network,
            clock,
            storage,
            processes,
            paused: Vec::new(),
            moved: BTreeMap::new(),
            endpoint,
            client,
            groups,
            config,
            padding,
            lives: 0,
        };
        (1..=3).for_each(|id| world.start(id, Beginning::First(members())));
        world
    }

    /// Starts a process on the remains of its log.
    pub fn start(&mut self, id: u64, beginning: Beginning) {
        self.lives += 1;
        let node = self.moved.get(&id).copied().unwrap_or(id as u32);
        let endpoint = endpoint(&self.network, node, self.lives << 20 | id);
        let clock = self.clock.clone();
        let seed = Some(self.lives << 8 | id);
        let config = NodeConfig { id, seed, clock: Rc::new(move || clock.get()), ..self.config.clone() };
        let (logs, device) = self.storage.open(id, self.groups);
        let machine = |group| Sum { padding: (self.padding)(group), ..Sum::default() };
        let groups = (0..).zip(logs).map(|(group, log)| (log, machine(group))).collect();
        let host = Host::start(&endpoint, config, groups, beginning).unwrap();
        self.processes.insert(id, Process { host, endpoint, device });
    }

    /// Ends a process as if it were killed.
    pub fn kill(&mut self, id: u64) {
        drop(self.processes.remove(&id));
        self.storage.crash(id);
    }

    /// Drops everything between a process and the others.
    pub fn cut_off(&self, id: u64) {
        for other in (1..=3).filter(|other| *other != id) {
            for (from, to) in [(id, other), (other, id)] {
                self.network.set_path_mtu(from as u32, to as u32, 0).unwrap();
            }
        }
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.get())
    }

    pub fn turn(&self) {
        self.network.advance(TURN);
        self.clock.set(self.network.now());
        for (_, process) in self.processes.iter().filter(|(id, _)| !self.paused.contains(id)) {
            S::step(&process.device, self.clock.get());
            process.endpoint.run_once();
        }
    }

    /// Gives the client a process of its own, whose sessions have this many credits.
    pub fn change_client(&mut self, credits: u16) {
        let config = EndpointConfig { credits, ..endpoint_config(2) };
        self.endpoint = Rc::new(Endpoint::new(self.network.endpoint(CLIENT + 1).unwrap(), config).unwrap());
        self.client = Client::new(&self.endpoint, members(), *self.client.config());
    }

    /// Gives the client a list with the current address of each process.
    pub fn list_where_they_are(&mut self) {
        let at = |id| Addr::Node(self.moved.get(&id).copied().unwrap_or(id as u32));
        self.client = Client::new(&self.endpoint, (1..=3).map(|id| (id, at(id))), *self.client.config());
    }

    pub fn turns(&self, time: Duration) {
        for _ in 0..time.as_micros() / TURN.as_micros() {
            self.turn();
            self.endpoint.run_once();
        }
    }

    pub fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..PATIENCE {
            // Conditions that look at all groups are checked only now and then.
            if done(self) {
                return;
            }
            self.turns(10 * TURN);
        }
        panic!("it never came to this: {what}");
    }

    /// Runs all processes until a future of the client is ready.
    pub fn drive<F: Future>(&self, work: F) -> F::Output {
        self.drive_at(&self.endpoint, work)
    }

    /// Runs all processes until a future of this endpoint is ready.
    pub fn drive_at<F: Future>(&self, endpoint: &Endpoint<LoopbackTransport>, work: F) -> F::Output {
        let mut work = Box::pin(work);
        for _ in 0..PATIENCE {
            self.turn();
            if let Some(output) = endpoint.poll_once(work.as_mut()) {
                return output;
            }
        }
        panic!("it never ended");
    }

    /// Returns a client of a group.
    pub fn client(&self, group: u16) -> Client<LoopbackTransport> {
        self.client.of_group(group)
    }

    /// Adds to the sum of a group, and returns it.
    pub fn add(&self, group: u16, count: u64) -> Result<u64, ClientError> {
        let client = self.client(group);
        let reply = self.drive(client.execute(&count.to_le_bytes()))?;
        Ok(number(&reply).unwrap())
    }

    /// Returns the sum of a group.
    pub fn sum(&self, group: u16) -> Result<u64, ClientError> {
        let client = self.client(group);
        let reply = self.drive(client.query(&[]))?;
        Ok(number(&reply).unwrap())
    }

    /// Returns the leader of a group and its term: the latest, if several believe that they lead.
    pub fn leader(&self, group: u16) -> Option<(u64, u64)> {
        let statuses = self.processes.values().map(|process| process.host.node(group).unwrap().status());
        statuses.filter(|status| status.role == Role::Leader).map(|status| (status.term, status.id)).max()
    }

    pub fn leaders(&self) -> Vec<Option<(u64, u64)>> {
        (0..self.groups).map(|group| self.leader(group)).collect()
    }

    pub fn all_lead(&self) {
        let all = usize::from(self.groups);
        self.until("all groups have leaders", |world| {
            world.processes.values().map(|process| process.host.led()).sum::<usize>() >= all
        });
    }

    /// Waits until all groups rest at all processes.
    pub fn all_rest(&self) {
        let all = usize::from(self.groups);
        self.until("all groups rest", |world| world.processes.values().all(|process| process.host.resting() == all));
    }
}

pub fn members() -> Vec<(u64, Addr)> {
    (1..=3).map(|id| (id, Addr::Node(id as u32))).collect()
}
