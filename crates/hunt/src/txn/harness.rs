//! Nodes with participants and clients on hosts of the simulated datacenter.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_rpc::{Endpoint, EndpointConfig, Timers};
use dunlin_sim::fault::{FaultId, PacketFaults, Place as Where};
use dunlin_sim::{CostModel, Datacenter, Fault, Next, SimTransport, Topology};
use dunlin_trial::Random;
use dunlin_txn::limits::ITEM_BYTES;
use dunlin_txn::{
    Client, ClientConfig, Configuration, CopyState, Limits, Member, NodeId, Participant, PartitionId, Place, Plan,
    RecoverySlice, TableId, serve,
};

use super::judge::History;

pub const MILLISECOND: u64 = 1_000_000;
const INCARNATION: u64 = 1;
/// Iterations of an endpoint in one run.
const ITERATIONS_MAX: u32 = 256;

pub type TestClient = Client<SimTransport>;

/// The size of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub nodes: u32,
    pub cores: u16,
    pub replicas: usize,
    /// Tasks of each core.
    pub workers: u32,
    /// Transactions of each of them.
    pub transactions: u32,
    /// Nodes that are only clients.
    pub strangers: u32,
    /// Minimum number of registers that a transaction for the judge writes.
    pub writes_min: u64,
    pub limits: Limits,
    pub lock_age: Duration,
    /// CPU time that recovery takes per record or lock, in nanoseconds.
    pub recovery_nanos: u64,
}

impl Shape {
    pub fn draw(seed: u64) -> Shape {
        let mut random = Random::new(seed ^ 0x5a4e);
        let nodes = random.between(3, 5) as u32;
        // Up to 300 transactions at once.
        let workers = if random.chance(30) { random.between(7, 20) } else { random.between(1, 6) } as u32;
        Shape {
            nodes,
            cores: random.between(1, 3) as u16,
            replicas: random.between(1, 3) as usize,
            workers,
            transactions: random.between(10, 10 + 200 / u64::from(workers)) as u32,
            strangers: random.between(0, 1) as u32,
            writes_min: 0,
            limits: limits(),
            lock_age: Duration::from_millis(300),
            recovery_nanos: 0,
        }
    }
}

/// How a node fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Crash,
    /// It reaches no other node, and does not know that the others go on without it.
    CutOff,
    /// Its process is replaced by one without data, at the same addresses.
    Restart,
}

/// One core of a node, or a remote client.
#[derive(Clone)]
pub struct Core {
    pub place: Place,
    pub participant: Option<Rc<RefCell<Participant>>>,
    pub client: TestClient,
    pub endpoint: Rc<Endpoint<SimTransport>>,
    clock: dunlin_sim::ThreadClock,
    pub history: Rc<RefCell<History>>,
    /// Number of tasks that run here.
    busy: Rc<Cell<usize>>,
    /// The most records and locks that recovery handled in one iteration of the event loop.
    pub recovered_at_once: Rc<Cell<u64>>,
}

impl Core {
    /// Virtual time.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    pub fn timers(&self) -> Timers {
        self.endpoint.timers()
    }

    /// Runs a task here.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let busy = self.busy.clone();
        busy.set(busy.get() + 1);
        self.endpoint.spawn(async move {
            task.await;
            busy.set(busy.get() - 1);
        });
    }

    /// Enters an epoch.
    pub fn reconfigure(&self, next: &Rc<Configuration>) {
        if let Some(participant) = &self.participant {
            participant.borrow_mut().reconfigure(next.clone()).unwrap();
        }
        self.client.reconfigure(next.clone());
    }
}

pub struct Cluster {
    pub datacenter: Datacenter,
    pub seed: u64,
    pub shape: Shape,
    pub configuration: Rc<Configuration>,
    pub cores: Vec<Core>,
    pub history: Rc<RefCell<History>>,
}

fn endpoint(transport: SimTransport, seed: u64) -> Rc<Endpoint<SimTransport>> {
    let config = EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(100),
        connect_timeout: Duration::from_millis(200),
        rto_initial: Duration::from_millis(1),
        rto_min: Duration::from_micros(100),
        seed: Some(seed),
        ..EndpointConfig::default()
    };
    let endpoint = Endpoint::new(transport, config).unwrap();
    // A failed assertion in a task fails the test.
    endpoint.propagate_panics();
    Rc::new(endpoint)
}

impl Cluster {
    pub fn new(seed: u64, shape: Shape) -> Cluster {
        let Shape { nodes, cores, replicas, strangers, .. } = shape;
        let topology = Topology::one_switch(nodes + strangers, 25);
        let mut datacenter = Datacenter::new(&topology, CostModel::free(), seed).unwrap();
        let addrs = |node: NodeId| (0..cores).map(|core| Datacenter::addr(node - 1, core)).collect();
        let plan = Plan {
            cluster: seed,
            nodes: (1..=nodes).map(|node| (node, Member { incarnation: INCARNATION, cores: addrs(node) })).collect(),
            partitions_per_core: 1 + (seed % 2) as usize,
            replicas,
            tables: super::work::tables(),
            seed: [seed as u8; 16],
        };
        let configuration = Rc::new(plan.configure().unwrap());
        let history = Rc::<RefCell<History>>::default();
        let mut all = Vec::new();
        for node in 1..=nodes + strangers {
            for core in 0..if node <= nodes { cores } else { 1 } {
                let transport = datacenter.bind(node - 1, core).unwrap();
                let clock = transport.clock();
                let number = u64::from(node) << 16 | u64::from(core);
                let endpoint = endpoint(transport, seed ^ number << 32);
                let place = Place { node, core };
                let config = ClientConfig {
                    seed: seed ^ number,
                    patience: Duration::from_secs(2),
                    lock_age: shape.lock_age,
                    log_bytes_max: shape.limits.log_bytes_max,
                    recovery_slice: shape.limits.recovery_slice,
                    ..ClientConfig::default()
                };
                let participant = (node <= nodes).then(|| {
                    let participant = Participant::new(place, INCARNATION, configuration.clone(), shape.limits);
                    let participant = Rc::new(RefCell::new(participant));
                    serve(&endpoint, &participant).unwrap();
                    participant
                });
                let client = match &participant {
                    Some(participant) => Client::beside(&endpoint, number, configuration.clone(), config, participant),
                    None => Client::new(&endpoint, number, configuration.clone(), config),
                };
                let (history, busy, recovered_at_once) = (history.clone(), Rc::default(), Rc::<Cell<u64>>::default());
                let running = Running {
                    endpoint: endpoint.clone(),
                    participant: participant.clone(),
                    clock: clock.clone(),
                    recovery_nanos: shape.recovery_nanos,
                    recovered_at_once: Rc::clone(&recovered_at_once),
                };
                datacenter.spawn(node - 1, core, move || running.turn()).unwrap();
                all.push(Core { place, participant, client, endpoint, clock, history, busy, recovered_at_once });
            }
        }
        Cluster { datacenter, seed, shape, configuration, cores: all, history }
    }

    /// Loses, duplicates and reorders packets from now on.
    pub fn harm_packets(&mut self) {
        let mut random = Random::new(self.seed ^ 0xba4d);
        let faults = PacketFaults {
            loss: random.probability(0.03),
            duplicate: random.probability(0.05),
            reorder: random.probability(0.3),
            reorder_max_ns: random.between(1, 100) * 1000,
            ..PacketFaults::default()
        };
        self.datacenter.inject(Fault::Packets { place: Where::Everywhere, faults }).unwrap();
    }

    /// Runs `work` on every core until all are done, and returns the history.
    pub fn run<F: Future<Output = ()> + 'static>(&mut self, work: impl Fn(Core, Shape, u64) -> F) -> History {
        self.begin(work);
        self.finish();
        self.take_history()
    }

    /// The history, with the final contents of the registers.
    pub fn take_history(&self) -> History {
        let mut history = self.history.take();
        for register in 0..super::work::REGISTERS + super::work::SHELF {
            let (table, key) = super::work::register(register);
            let partition = self.configuration.partition_of(table, &key);
            let items = self.items(partition, self.configuration.copies(partition)[0]);
            if let Some((_, value)) = items.get(&(table, key)) {
                history.last.insert(register, super::work::list(Some(value)));
            }
        }
        history
    }

    /// Starts workers.
    pub fn begin<F: Future<Output = ()> + 'static>(&mut self, work: impl Fn(Core, Shape, u64) -> F) {
        super::work::prepare(self);
        for (at, core) in self.cores.iter().enumerate() {
            for worker in 0..self.shape.workers {
                // Not in the lower 44 bits, from which `work` makes its numbers.
                let seed = self.seed ^ (at as u64) << 24 ^ u64::from(worker) << 32;
                core.spawn(work(core.clone(), self.shape, seed));
            }
        }
    }

    /// Runs until all tasks have ended, and the work that they left behind has, too.
    pub fn finish(&mut self) {
        let end = self.datacenter.now() + 60_000 * MILLISECOND;
        while self.busy() > 0 {
            assert!(self.datacenter.now() < end, "seed {}: tasks have not ended: {}", self.seed, self.state());
            self.run_for(MILLISECOND);
        }
        let open = |cluster: &Cluster| cluster.cores.iter().map(|core| core.client.open()).sum::<usize>();
        while open(self) > 0 {
            assert!(self.datacenter.now() < end, "seed {}: transactions are open: {}", self.seed, self.state());
            self.run_for(MILLISECOND);
        }
        self.run_for(500 * MILLISECOND);
    }

    pub fn run_for(&mut self, time: u64) {
        self.datacenter.run_until(self.datacenter.now() + time);
    }

    /// The activity of each core.
    fn state(&self) -> String {
        let of = |core: &Core| {
            let participant = core.participant.as_ref().map(|participant| participant.borrow().stats());
            let Core { place, busy, client, endpoint, recovered_at_once, .. } = core;
            let calls = endpoint.stats().calls_pending;
            format!(
                "\n{place}: {} tasks, {} open, {calls} calls, {} recovered at once, {:?} {participant:?}",
                busy.get(),
                client.open(),
                recovered_at_once.get(),
                client.stats()
            )
        };
        self.cores.iter().map(of).collect()
    }

    /// Fails a node for good. The results of its tasks are unknown from now on.
    pub fn fail(&mut self, node: NodeId, how: Failure) -> FaultId {
        let host = node - 1;
        for core in self.cores.iter().filter(|core| core.place.node == node && how == Failure::Restart) {
            let participant = core.participant.as_ref().unwrap();
            let limits = self.shape.limits;
            let restarted = Participant::new(core.place, INCARNATION + 1, self.configuration.clone(), limits);
            *participant.borrow_mut() = restarted;
        }
        self.cores.retain(|core| core.place.node != node);
        let fault = match how {
            // Its work in progress is lost with it; its answers are not.
            Failure::Restart => Fault::Packets { place: Where::Everywhere, faults: PacketFaults::default() },
            Failure::Crash => Fault::Crash { host },
            Failure::CutOff => Fault::Partition { hosts: vec![host] },
        };
        self.datacenter.inject(fault).unwrap()
    }

    /// Transactions that were fenced.
    pub fn fenced(&self) -> usize {
        self.cores.iter().map(|core| core.client.stats().fenced as usize).sum()
    }

    fn busy(&self) -> usize {
        self.cores.iter().map(|core| core.busy.get()).sum()
    }

    /// Runs one task on one core until it ends.
    pub fn run_here(&mut self, core: usize, task: impl Future<Output = ()> + 'static) {
        self.cores[core].spawn(task);
        let end = self.datacenter.now() + 20_000 * MILLISECOND;
        let busy = self.cores[core].busy.clone();
        while busy.get() > 0 {
            assert!(self.datacenter.now() < end, "seed {}: a task has not ended", self.seed);
            self.run_for(MILLISECOND / 10);
        }
    }

    /// Copies that were to be filled, and are complete.
    pub fn filled(&self) -> BTreeSet<(PartitionId, NodeId)> {
        let complete = |(partition, node): &&(PartitionId, NodeId)| {
            let place = self.configuration.copies(*partition).iter().find(|place| place.node == *node).unwrap();
            // It may have failed.
            let core = self.cores.iter().find(|core| core.place == *place);
            let participant = core.and_then(|core| core.participant.as_ref()).map(|it| it.borrow());
            let is_complete = |copy: CopyState| copy.partition == *partition && copy.is_complete;
            participant.is_some_and(|participant| participant.copies().any(is_complete))
        };
        self.configuration.filling.keys().filter(complete).copied().collect()
    }

    fn copy(&self, place: Place) -> &Rc<RefCell<Participant>> {
        let core = self.cores.iter().find(|core| core.place == place).unwrap();
        core.participant.as_ref().unwrap()
    }

    /// The contents of a copy of a partition.
    fn items(&self, partition: PartitionId, place: Place) -> BTreeMap<(TableId, Vec<u8>), (u64, Vec<u8>)> {
        let copy = self.copy(place).borrow();
        copy.items(partition)
            .map(|(table, key, version, value)| ((table, key.to_vec()), (version, value.to_vec())))
            .collect()
    }

    /// Checks a cluster at rest: no lock is held, no log has a record, and all copies are equal.
    pub fn check_rest(&self) {
        let seed = self.seed;
        for core in &self.cores {
            let stats = core.client.stats();
            assert_eq!(stats.broken, 0, "seed {seed}: a decided commit was refused, {}", core.place);
            let Some(participant) = &core.participant else { continue };
            let participant = participant.borrow();
            assert_eq!(participant.log_records(), 0, "seed {seed}: records are left on {}", core.place);
            for (partition, role, stats) in participant.partitions() {
                assert_eq!(stats.locks, 0, "seed {seed}: locks are left in {partition:?} on {}", core.place);
                let bytes: usize =
                    participant.items(partition).map(|(_, key, _, value)| ITEM_BYTES + key.len() + value.len()).sum();
                assert_eq!(stats.bytes, bytes, "seed {seed}: bytes of {partition:?}, {role:?} on {}", core.place);
            }
        }
        for (number, copies) in self.configuration.partitions.iter().enumerate() {
            let partition = PartitionId(number as u32);
            let primary = self.items(partition, copies[0]);
            for backup in &copies[1..] {
                assert_eq!(
                    primary,
                    self.items(partition, *backup),
                    "seed {seed}: {partition:?} on {backup} and its primary"
                );
            }
        }
    }
}

pub fn limits() -> Limits {
    // So small that deletions are forgotten in every run, and that recoveries have several slices, and range reads
    // several pages.
    let recovery_slice = RecoverySlice { records_max: 3, bytes_max: 1000 };
    Limits { tombstones_max: 8, locks_max: 64, page_entries_max: 3, recovery_slice, ..Limits::default() }
}

/// The event loop of one core.
struct Running {
    endpoint: Rc<Endpoint<SimTransport>>,
    participant: Option<Rc<RefCell<Participant>>>,
    clock: dunlin_sim::ThreadClock,
    recovery_nanos: u64,
    recovered_at_once: Rc<Cell<u64>>,
}

impl Running {
    /// Records and locks that recovery has handled here.
    fn recovered(&self) -> u64 {
        self.participant.as_ref().map_or(0, |participant| participant.borrow().stats().recovered)
    }

    /// Runs the event loop until it has nothing to do.
    fn turn(&self) -> Next {
        for _ in 0..ITERATIONS_MAX {
            let before = self.recovered();
            let found = self.endpoint.run_once();
            let recovered = self.recovered() - before;
            self.recovered_at_once.set(self.recovered_at_once.get().max(recovered));
            if recovered * self.recovery_nanos > 0 {
                // Packets that come in the meantime wait.
                self.clock.charge(recovered * self.recovery_nanos);
                return Next::Soon;
            }
            if found == 0 {
                // Tasks that the test adds from outside wake no thread, so each thread checks periodically.
                let look = self.endpoint.now() + MILLISECOND;
                return Next::OnPacket { or_at: Some(self.endpoint.next_due().map_or(look, |due| due.min(look))) };
            }
        }
        Next::Soon
    }
}
