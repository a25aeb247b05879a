//! Sequencers and clients on hosts of the simulated datacenter.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Limits, WatchmanConfig};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectError, DirectServer, DirectServerConfig};
use dunlin_seq::reserve::{
    Coordinated, CoordinatedConfig, Keeper, KeeperConfig, KeeperStats, Replicated, ReplicatedConfig, Reservations,
};
use dunlin_seq::{Batching, Client, ClientConfig, Counter, RUN_MAX, SeqError, SeqService};
use dunlin_serve::channel::Turning;
use dunlin_sim::fault::{FaultId, PacketFaults, Place};
use dunlin_sim::{CostModel, Datacenter, Fault, Next, SimTransport, Topology};
use dunlin_smr::{
    Beginning, Client as SmrClient, ClientConfig as SmrConfig, MemoryLog, Node, NodeConfig, StateMachine,
};
use dunlin_trial::Random;

use super::judge::{Drawn, cross_check, judge, judge_each};
use crate::story::Story;

pub const MILLISECOND: u64 = 1_000_000;
/// How long a silent sequencer is waited for.
pub const LEASE: Duration = Duration::from_millis(60);
/// Of the cluster manager.
const FAILURE_TIMEOUT: Duration = Duration::from_millis(80);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Turns of an endpoint in one run.
const TURNS_MAX: u32 = 256;
/// Operations per piece for porcupine: it tries all subsets of overlapping ones.
const PIECE: usize = 12;

/// Where numbers are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Nowhere: the harness chooses a sequencer's first number.
    Nothing,
    /// In a state machine of their own.
    Replicas,
    /// Under a lease of a cluster manager.
    Manager,
}

/// The parts of a simulated system.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub keeps: Keeps,
    pub sequencers: u32,
    /// Replicas of the reservations, or of the cluster manager.
    pub replicas: u32,
    pub rpc_clients: u32,
    /// If there are several sequencers, each has one more, which knows no other: epochs do not keep it from a
    /// sequencer that was replaced, so it shows terms that overlap.
    pub direct_clients: u32,
    /// Concurrent calls of a client.
    pub at_once: u32,
    pub start: u64,
}

impl Shape {
    /// A shape with one sequencer whose first number is given: half of the time close to the wrap of the lower half.
    pub fn draw(seed: u64, keeps: Keeps) -> Shape {
        let mut random = Random::new(seed ^ 0x5e9);
        let wrap = random.between(1, 5) << 32;
        let reserves = keeps != Keeps::Nothing;
        let sequencers = if reserves { random.between(2, 3) as u32 } else { 1 };
        let alone = if reserves { sequencers } else { 0 };
        Shape {
            keeps,
            sequencers,
            replicas: if reserves { 3 } else { 0 },
            rpc_clients: random.between(1, 3) as u32,
            direct_clients: random.between(1, 3) as u32 + alone,
            at_once: random.between(1, 8) as u32,
            start: if random.chance(50) { wrap - random.between(1, 2000) } else { random.between(0, 1 << 40) },
        }
    }
}

/// The current state of a sequencer's host.
#[derive(Default)]
struct Seat {
    counter: Option<Arc<Counter>>,
    incarnation: u32,
    keeper: Option<Keeper>,
    /// Counters of earlier keepers.
    stats: KeeperStats,
}

/// What clients saw.
#[derive(Default)]
pub struct Seen {
    /// The run in numbers.
    pub story: Story,
    pub drawn: Vec<Drawn>,
    /// Calls that ended without a number, for valid reasons.
    pub unanswered: u64,
    /// Answers that came late or twice, and were dropped.
    pub late: u64,
    pub wrong_guesses: u64,
    pub repeated: u64,
}

pub struct World {
    pub datacenter: Datacenter,
    pub seed: u64,
    pub shape: Shape,
    places: Vec<Rc<RefCell<Seat>>>,
    pub seen: Rc<RefCell<Seen>>,
    is_over: Rc<Cell<bool>>,
    busy: Rc<Cell<u32>>,
    replicas: Vec<Replica>,
}

/// A replica of the reservations, or of the cluster manager.
struct Replica {
    failure: Box<dyn Fn() -> Option<String>>,
    state: Box<dyn Fn() -> String>,
    /// What runs beside the node.
    _beside: Box<dyn Any>,
}

impl Replica {
    fn new<M: StateMachine + 'static>(node: Node<M, MemoryLog>, state: fn(&M) -> String, beside: impl Any) -> Replica {
        let of = node.clone();
        Replica {
            failure: Box::new(move || of.failure().map(|failure| failure.to_string())),
            state: Box::new(move || format!("\n{:?}, {}", node.status(), node.with_machine(state))),
            _beside: Box::new(beside),
        }
    }
}

fn settings(seed: u64) -> EndpointConfig {
    EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(20),
        connect_timeout: Duration::from_millis(20),
        rto_initial: Duration::from_millis(1),
        rto_min: Duration::from_micros(100),
        seed: Some(seed),
        ..EndpointConfig::default()
    }
}

fn endpoint(transport: SimTransport, seed: u64) -> Rc<Endpoint<SimTransport>> {
    let endpoint = Endpoint::new(transport, settings(seed)).unwrap();
    // A failed assertion in a task fails the test.
    endpoint.propagate_panics();
    Rc::new(endpoint)
}

/// Settings of clients of the replicas.
fn reserving(seed: u64) -> SmrConfig {
    SmrConfig {
        // So long that an answer may come when its term is nearly over.
        timeout: if seed.is_multiple_of(2) { LEASE / 4 } else { LEASE },
        attempt_timeout: Duration::from_millis(5),
        pause: Duration::from_millis(1),
        ..SmrConfig::default()
    }
}

/// Runs the event loop until it has nothing to do.
fn turn(endpoint: &Endpoint<SimTransport>) -> Next {
    for _ in 0..TURNS_MAX {
        if endpoint.run_once() == 0 {
            let look = endpoint.now() + MILLISECOND;
            return Next::OnPacket { or_at: Some(endpoint.next_due().map_or(look, |due| due.min(look))) };
        }
    }
    Next::Soon
}

impl World {
    pub fn new(seed: u64, shape: Shape) -> World {
        let hosts = shape.replicas + shape.sequencers + shape.rpc_clients + shape.direct_clients;
        let topology = Topology::one_switch(hosts, 25);
        let datacenter = Datacenter::new(&topology, CostModel::default(), seed).unwrap();
        let mut world = World {
            datacenter,
            seed,
            shape,
            places: Vec::new(),
            seen: Rc::default(),
            is_over: Rc::default(),
            busy: Rc::default(),
            replicas: Vec::new(),
        };
        (0..shape.replicas).for_each(|at| world.add_replica(at));
        (0..shape.sequencers).for_each(|at| world.add_sequencer(at));
        (0..shape.rpc_clients).for_each(|at| world.add_rpc_client(at));
        (0..shape.direct_clients).for_each(|at| world.add_direct_client(at));
        world
    }

    /// The replicas that keep the reservations.
    fn members(shape: &Shape) -> Vec<(u64, Addr)> {
        (0..shape.replicas).map(|at| (u64::from(at) + 1, Datacenter::addr(at, 0))).collect()
    }

    /// The host of a sequencer.
    pub fn host(&self, sequencer: u32) -> u32 {
        self.shape.replicas + sequencer
    }

    fn add_replica(&mut self, at: u32) {
        let transport = self.datacenter.bind(at, 0).unwrap();
        let clock = transport.clock();
        let endpoint = endpoint(transport, self.seed ^ u64::from(at) << 20);
        let config = NodeConfig {
            tick: Duration::from_millis(1),
            heartbeat_ticks: 2,
            election_ticks: 10,
            seed: Some(self.seed ^ u64::from(at)),
            clock: Rc::new(move || clock.boot_now()),
            ..NodeConfig::new(u64::from(at) + 1)
        };
        let beginning = Beginning::First(World::members(&self.shape));
        let replica = if self.shape.keeps == Keeps::Manager {
            let hearing = Hearing::default();
            let machine = Machine::new(Limits::default(), hearing.clone());
            let node = Node::start(&endpoint, config, MemoryLog::new(), machine, beginning).unwrap();
            let client = SmrClient::new(&endpoint, World::members(&self.shape), reserving(self.seed));
            let config = WatchmanConfig { failure_timeout: FAILURE_TIMEOUT, look_every: LOOK_EVERY };
            let watchman = Watchman::start(&endpoint, &node, client, hearing, config).unwrap();
            Replica::new(node, |_| "cluster manager".into(), watchman)
        } else {
            let node = Node::start(&endpoint, config, MemoryLog::new(), Reservations::new(), beginning).unwrap();
            Replica::new(node, |machine| format!("{:?}", machine.office()), ())
        };
        self.replicas.push(replica);
        self.datacenter.spawn(at, 0, move || turn(&endpoint)).unwrap();
    }

    /// RPC on thread 0, datagrams on thread 1; they share a counter, and both are restarted after a crash.
    fn add_sequencer(&mut self, at: u32) {
        let (host, shape, seed) = (self.host(at), self.shape, self.seed);
        let place = Rc::new(RefCell::new(Seat::default()));
        self.places.push(place.clone());
        World::renew(&place, shape.start, shape.keeps);
        let of_rpc = place.clone();
        let factory = move |transport: SimTransport| {
            let mut place = of_rpc.borrow_mut();
            let number = u64::from(host) << 24 ^ u64::from(place.incarnation) << 40;
            let endpoint = endpoint(transport, seed ^ number);
            let counter = place.counter.clone().unwrap();
            let batching = if seed.is_multiple_of(3) { Batching::Single } else { Batching::Bursts };
            SeqService::register(&endpoint, counter.clone(), batching).unwrap();
            let keeper = KeeperConfig { range: 131_072, renew: LEASE / 6, pause: Duration::from_millis(1) };
            let client = || SmrClient::new(&endpoint, World::members(&shape), reserving(seed));
            match shape.keeps {
                Keeps::Nothing => {}
                Keeps::Replicas => {
                    let holder = Some(u64::from(host) << 32 | u64::from(place.incarnation));
                    let config = ReplicatedConfig { lease: LEASE, start: shape.start, holder };
                    let reserve = Replicated::new(client(), config).unwrap();
                    place.keeper = Some(Keeper::start(&endpoint, &counter, reserve, keeper));
                }
                Keeps::Manager => {
                    let config = CoordinatedConfig {
                        lease: LEASE,
                        start: shape.start,
                        ..CoordinatedConfig::new(u64::from(host) + 1)
                    };
                    let reserve = Coordinated::new(Embedded::new(client()), config).unwrap();
                    place.keeper = Some(Keeper::start(&endpoint, &counter, reserve, keeper));
                }
            }
            move || turn(&endpoint)
        };
        self.datacenter.spawn_from(host, 0, factory).unwrap();
        let factory = move |transport: SimTransport| {
            let place = place.borrow();
            let batching = if seed.is_multiple_of(5) { Batching::Single } else { Batching::Bursts };
            let incarnation = Some(host << 16 | place.incarnation);
            let config = DirectServerConfig { incarnation, batching, peers_max: 2, ..DirectServerConfig::default() };
            let mut server = DirectServer::new(vec![transport], place.counter.clone().unwrap(), config).unwrap();
            move || {
                while server.turn() > 0 {}
                Next::OnPacket { or_at: None }
            }
        };
        self.datacenter.spawn_from(host, 1, factory).unwrap();
    }

    /// Gives a sequencer another counter.
    fn renew(place: &Rc<RefCell<Seat>>, start: u64, keeps: Keeps) {
        let mut place = place.borrow_mut();
        let reserves = keeps != Keeps::Nothing;
        let counter = if reserves { Counter::idle() } else { Counter::starting_at(start).unwrap() };
        place.counter = Some(Arc::new(counter));
        place.incarnation += 1;
        if let Some(keeper) = place.keeper.take() {
            let stats = keeper.stats();
            place.stats.taken += stats.taken;
            place.stats.fenced += stats.fenced;
            place.stats.expired += stats.expired;
        }
    }

    /// The counters of all keepers.
    pub fn keepers(&self) -> KeeperStats {
        let mut all = KeeperStats::default();
        for place in &self.places {
            let place = place.borrow();
            for stats in [Some(place.stats), place.keeper.as_ref().map(Keeper::stats)].into_iter().flatten() {
                all.taken += stats.taken;
                all.fenced += stats.fenced;
                all.expired += stats.expired;
                all.ranges += stats.ranges;
            }
        }
        all
    }

    /// The sequencer of the latest epoch.
    pub fn holder(&self) -> Option<u32> {
        let epoch = |place: &Rc<RefCell<Seat>>| place.borrow().counter.as_ref().map_or(0, |counter| counter.epoch());
        let latest = (0..self.shape.sequencers).max_by_key(|at| epoch(&self.places[*at as usize]))?;
        (epoch(&self.places[latest as usize]) > 0).then_some(latest)
    }

    /// The activity of sequencers and replicas.
    pub fn state(&self) -> String {
        let of = |place: &Rc<RefCell<Seat>>| {
            let place = place.borrow();
            format!("\n{:?}, {:?}", place.counter, place.keeper.as_ref().map(Keeper::stats))
        };
        let sequencers: String = self.places.iter().map(of).collect();
        sequencers + &self.replicas.iter().map(|replica| (replica.state)()).collect::<String>()
    }

    /// Crashes a sequencer, and restarts it later. A given first number is then above all that it has handed out.
    pub fn restart(&mut self, at: u32, down: u64, gap: u64) {
        let fault = self.datacenter.inject(Fault::Crash { host: self.host(at) }).unwrap();
        let start = self.places[at as usize].borrow().counter.as_ref().unwrap().next() + gap;
        World::renew(&self.places[at as usize], start, self.shape.keeps);
        self.run_for(down);
        self.datacenter.lift(fault);
    }

    fn add_rpc_client(&mut self, at: u32) {
        let host = self.shape.replicas + self.shape.sequencers + at;
        let transport = self.datacenter.bind(host, 0).unwrap();
        let clock = transport.clock();
        let endpoint = endpoint(transport, self.seed ^ u64::from(host) << 28);
        let config = ClientConfig {
            timeout: Duration::from_millis(300),
            attempt_timeout: Duration::from_millis(15),
            batches_max: 1 + (self.seed % 3) as usize,
            callers_per_batch: if self.seed.is_multiple_of(4) { 1 } else { 1024 },
            turning: Turning::Always,
            ..ClientConfig::default()
        };
        let servers = (0..self.shape.sequencers).map(|at| Datacenter::addr(self.host(at), 0)).collect();
        let client = Client::new(&endpoint, servers, config);
        // So long that ranges are used up.
        let length_max = if self.seed.is_multiple_of(2) { RUN_MAX.into() } else { 300 };
        for worker in 0..self.shape.at_once {
            let (client, clock, seen, is_over) =
                (client.clone(), clock.clone(), self.seen.clone(), self.is_over.clone());
            let (busy, timers) = (self.busy.clone(), endpoint.timers());
            let mut random = Random::new(self.seed ^ u64::from(host) << 16 ^ u64::from(worker) << 8);
            busy.set(busy.get() + 1);
            endpoint.spawn(async move {
                while !is_over.get() {
                    let length = if random.chance(20) { random.between(2, length_max) } else { 1 };
                    let begun = clock.virtual_now();
                    let result = if length == 1 {
                        client.next().await.map(|number| number..number + 1)
                    } else {
                        client.run(length as u32).await
                    };
                    let ended = clock.virtual_now();
                    match result {
                        Ok(run) => {
                            assert_eq!(run.end - run.start, length);
                            seen.borrow_mut().drawn.push(Drawn { client: host, begun, ended, run });
                        }
                        Err(SeqError::TimedOut { .. }) => seen.borrow_mut().unanswered += 1,
                        Err(error) => panic!("client {host}: {error}"),
                    }
                    if random.chance(70) {
                        timers.sleep(Duration::from_micros(random.between(0, 2000))).await;
                    }
                }
                busy.set(busy.get() - 1);
            });
        }
        self.datacenter.spawn(host, 0, move || turn(&endpoint)).unwrap();
    }

    fn add_direct_client(&mut self, at: u32) {
        let host = self.shape.replicas + self.shape.sequencers + self.shape.rpc_clients + at;
        let transport = self.datacenter.bind(host, 0).unwrap();
        let clock = transport.clock();
        let mut random = Random::new(self.seed ^ u64::from(host) << 18);
        let config = DirectConfig {
            timeout: Duration::from_millis(300),
            attempt_timeout: Duration::from_micros(random.between(20, 5000)),
            calls_max: self.shape.at_once as usize,
            first_tag: Some(random.next()),
            ..DirectConfig::default()
        };
        let Shape { keeps, sequencers, direct_clients, .. } = self.shape;
        // The last ones know one sequencer each.
        let own = (direct_clients - 1 - at < sequencers && keeps != Keeps::Nothing).then_some(direct_clients - 1 - at);
        let known = own.map_or(0..sequencers, |own| own..own + 1);
        let servers: Vec<Addr> = known.map(|at| Datacenter::addr(self.host(at), 1)).collect();
        let mut client = DirectClient::new(transport, servers, config).unwrap();
        let (seen, is_over, busy) = (self.seen.clone(), self.is_over.clone(), self.busy.clone());
        let (mut begun, mut token, mut next_at) = (std::collections::HashMap::new(), 0, 0);
        busy.set(busy.get() + 1);
        self.datacenter
            .spawn(host, 0, move || {
                loop {
                    let now = clock.now();
                    while !is_over.get() && now >= next_at && client.ask(token).is_ok() {
                        begun.insert(token, clock.virtual_now());
                        token += 1;
                        next_at = if random.chance(60) { now + random.between(0, 2_000_000) } else { now };
                    }
                    let before = seen.borrow().drawn.len();
                    let arrived = client.poll(|token, result| {
                        let (begun, ended) = (begun.remove(&token).unwrap(), clock.virtual_now());
                        match result {
                            Ok(number) => {
                                let run = number..number + 1;
                                seen.borrow_mut().drawn.push(Drawn { client: host, begun, ended, run });
                            }
                            Err(DirectError::TimedOut { .. }) => seen.borrow_mut().unanswered += 1,
                            Err(error) => panic!("client {host}: {error}"),
                        }
                    });
                    if is_over.get() && client.in_progress() == 0 {
                        busy.set(busy.get() - 1);
                        let (stats, seen) = (client.stats(), &mut *seen.borrow_mut());
                        seen.late += stats.late;
                        seen.wrong_guesses += stats.wrong_guesses;
                        seen.repeated += stats.unanswered;
                        return Next::Done;
                    }
                    if arrived == 0 && seen.borrow().drawn.len() == before {
                        let look = if is_over.get() { u64::MAX } else { next_at.max(now + 1000) };
                        let due = client.next_due().unwrap_or(u64::MAX).max(now + 1000);
                        return Next::OnPacket { or_at: Some(due.min(look).min(now + MILLISECOND)) };
                    }
                }
            })
            .unwrap();
    }

    /// Loses, duplicates, delays and reorders packets from now on.
    pub fn harm_packets(&mut self) -> FaultId {
        let mut random = Random::new(self.seed ^ 0xba4d);
        let faults = PacketFaults {
            loss: random.probability(0.05),
            duplicate: random.probability(0.1),
            reorder: random.probability(0.3),
            delay: random.probability(0.1),
            reorder_max_ns: random.between(1, 3000) * 1000,
            delay_max_ns: random.between(1, 500) * 1000,
            ..PacketFaults::default()
        };
        self.datacenter.inject(Fault::Packets { place: Place::Everywhere, faults }).unwrap()
    }

    pub fn run_for(&mut self, time: u64) {
        self.datacenter.run_until(self.datacenter.now() + time);
    }

    /// Ends the clients, and judges their numbers.
    pub fn finish(self) -> Seen {
        let (seed, start) = (self.seed, self.shape.start);
        let seen = self.end();
        if let Err(wrong) = judge(&seen.drawn) {
            panic!("seed {seed}: {wrong}");
        }
        cross_check(&seen.drawn, PIECE);
        if let Some(low) = seen.drawn.iter().find(|drawn| drawn.run.start < start) {
            panic!("seed {seed}: {low:?} is below the start, {start}");
        }
        seen
    }

    /// Ends the clients, and judges the numbers of each by itself, and that none came twice: what holds whatever the
    /// clocks do.
    pub fn finish_without_clocks(self) -> Seen {
        let seed = self.seed;
        let mut seen = self.end();
        if let Err(wrong) = judge_each(&mut seen.drawn) {
            panic!("seed {seed}: {wrong}");
        }
        seen
    }

    /// Ends the clients.
    fn end(mut self) -> Seen {
        let seed = self.seed;
        self.is_over.set(true);
        let end = self.datacenter.now() + 2_000 * MILLISECOND;
        while self.busy.get() > 0 {
            assert!(self.datacenter.now() < end, "seed {seed}: {} clients have not ended", self.busy.get());
            self.run_for(MILLISECOND);
        }
        for replica in &self.replicas {
            assert_eq!((replica.failure)(), None, "seed {seed}");
        }
        let mut seen = self.seen.take();
        let mut hasher = DefaultHasher::new();
        seen.drawn.iter().for_each(|drawn| format!("{drawn:?}").hash(&mut hasher));
        seen.story = Story::of(&self.datacenter, hasher, seen.drawn.len() as u64 + seen.unanswered);
        seen
    }
}
