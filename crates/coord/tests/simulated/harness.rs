//! Replicas with their watchmen, and their clients, on hosts of the simulated datacenter.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Coordinator as _, Limits, WatchmanConfig, WatchmanCounters};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig, Timers};
use dunlin_sim::fault::{PacketFaults, Place};
use dunlin_sim::{CostModel, Datacenter, Fault, Next, Program, SimTransport, Topology};
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, Client, ClientConfig, Counters, MemoryLog, Node, NodeConfig};
use dunlin_trial::Random;

pub const FAILURE_TIMEOUT: Duration = Duration::from_millis(200);
pub const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Events in the machine's history.
pub const HISTORY: usize = 300;
const MILLISECOND: u64 = 1_000_000;
/// Interval between checks whether all is done, and whether a fault is due.
const SLICE: u64 = 5 * MILLISECOND;
/// Iterations of an endpoint in one run.
const ITERATIONS_MAX: u32 = 256;

pub type Coordinator = Embedded<SimTransport>;
type Replicated = Node<Machine, MemoryLog>;
type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Options of a cluster.
#[derive(Clone, Default)]
pub struct Setup {
    /// The replicas that watchmen are given, if not the real ones.
    pub listed: Option<Vec<(u64, Addr)>>,
    /// There are no watchmen.
    pub is_unwatched: bool,
    /// The failure timeout of the watchmen, if not [`FAILURE_TIMEOUT`].
    pub failure_timeout: Option<Duration>,
    /// Reads that wait at a replica, if not the default.
    pub reads_max: Option<usize>,
    /// Watchers that wait at a replica, if not the default.
    pub watchers_max: Option<usize>,
}

/// State that clients and the run share.
pub struct Shared {
    seed: u64,
    members: Vec<(u64, Addr)>,
    setup: Setup,
    /// By replica: its disk while it is down.
    logs: Vec<RefCell<MemoryLog>>,
    /// By replica: whether it leads.
    leads: Vec<Cell<bool>>,
    /// By replica: its counters since it started.
    pub counters: Vec<Cell<Counters>>,
    pub watched: Cell<WatchmanCounters>,
    busy: Cell<usize>,
}

fn endpoint(transport: SimTransport, seed: u64) -> Rc<Endpoint<SimTransport>> {
    let config = EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(30),
        connect_timeout: Duration::from_millis(20),
        seed: Some(seed),
        ..EndpointConfig::default()
    };
    Rc::new(Endpoint::new(transport, config).unwrap())
}

/// Runs the event loop until it has nothing to do.
fn turn(endpoint: &Endpoint<SimTransport>) -> Next {
    for _ in 0..ITERATIONS_MAX {
        if endpoint.run_once() == 0 {
            return Next::OnPacket { or_at: endpoint.next_due() };
        }
    }
    Next::Soon
}

struct Replica {
    shared: Rc<Shared>,
    place: usize,
    node: Replicated,
    /// Declared before the endpoint, which its client holds.
    watchman: Option<Watchman>,
    endpoint: Rc<Endpoint<SimTransport>>,
}

impl Replica {
    fn start(shared: &Rc<Shared>, place: usize, incarnation: u64, transport: SimTransport) -> Replica {
        let (id, node_clock) = (place as u64 + 1, transport.clock());
        let seed = shared.seed ^ incarnation << 20 ^ id << 40;
        let endpoint = endpoint(transport, seed);
        let defaults = NodeConfig::new(id);
        let config = NodeConfig {
            reads_max: shared.setup.reads_max.unwrap_or(defaults.reads_max),
            kept_questions_max: shared.setup.watchers_max.unwrap_or(defaults.kept_questions_max),
            tick: Duration::from_millis(1),
            heartbeat_ticks: 3,
            election_ticks: 20,
            snapshot_entries: 150,
            keep_entries: 20,
            seed: Some(seed),
            clock: Rc::new(move || node_clock.now()),
            ..defaults
        };
        let hearing = Hearing::default();
        let machine = Machine::new(Limits { history_events_max: HISTORY, ..Limits::default() }, hearing.clone());
        let log = shared.logs[place].borrow().clone();
        let node = Node::start(&endpoint, config, log, machine, Beginning::First(shared.members.clone())).unwrap();
        let listed = shared.setup.listed.as_ref().unwrap_or(&shared.members);
        let client = Client::new(&endpoint, listed.clone(), client_config());
        let failure_timeout = shared.setup.failure_timeout.unwrap_or(FAILURE_TIMEOUT);
        let config = WatchmanConfig { failure_timeout, look_every: LOOK_EVERY };
        let is_watched = !shared.setup.is_unwatched;
        let watchman = is_watched.then(|| Watchman::start(&endpoint, &node, client, hearing, config).unwrap());
        Replica { shared: shared.clone(), place, node, watchman, endpoint }
    }
}

impl Program for Replica {
    fn run(&mut self) -> Next {
        let next = turn(&self.endpoint);
        assert_eq!(self.node.failure(), None);
        self.shared.leads[self.place].set(self.node.status().role == Role::Leader);
        self.shared.counters[self.place].set(self.node.counters());
        next
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let Shared { logs, leads, watched, .. } = &*self.shared;
        *logs[self.place].borrow_mut() = self.node.with_log(MemoryLog::clone);
        leads[self.place].set(false);
        let (sum, own) =
            (watched.get(), self.watchman.take().map_or_else(Default::default, |watchman| watchman.counters()));
        watched.set(WatchmanCounters {
            reigns: sum.reigns + own.reigns,
            looks: sum.looks + own.looks,
            late_looks: sum.late_looks + own.late_looks,
            failures: sum.failures + own.failures,
            lapses: sum.lapses + own.lapses,
            steps: sum.steps + own.steps,
            refused: sum.refused + own.refused,
        });
    }
}

fn client_config() -> ClientConfig {
    ClientConfig {
        timeout: Duration::from_secs(5),
        attempt_timeout: Duration::from_millis(25),
        pause: Duration::from_millis(1),
        ..ClientConfig::default()
    }
}

/// What a client of the cluster manager gets.
#[derive(Clone)]
pub struct User {
    pub shared: Rc<Shared>,
    pub endpoint: Rc<Endpoint<SimTransport>>,
    pub timers: Timers,
}

impl User {
    pub fn coordinator(&self) -> Coordinator {
        let client = Client::new(&self.endpoint, self.shared.members.clone(), client_config());
        Embedded::new(client).watch_every(LOOK_EVERY)
    }
}

struct Driver {
    shared: Rc<Shared>,
    /// It holds the endpoint, which holds the task that runs it.
    work: Rc<RefCell<Option<Work>>>,
    endpoint: Rc<Endpoint<SimTransport>>,
    is_done: bool,
}

impl Program for Driver {
    fn run(&mut self) -> Next {
        let next = turn(&self.endpoint);
        if self.work.borrow().is_none() && !self.is_done {
            self.is_done = true;
            self.shared.busy.set(self.shared.busy.get() - 1);
        }
        next
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.work.take();
    }
}

pub struct Cluster {
    datacenter: Datacenter,
    pub shared: Rc<Shared>,
    users: u32,
}

impl Cluster {
    /// A cluster of this many replicas, on the first hosts.
    pub fn new(seed: u64, replicas: usize) -> Cluster {
        Cluster::with(seed, replicas, Setup::default())
    }

    /// The same, with options.
    pub fn with(seed: u64, replicas: usize, setup: Setup) -> Cluster {
        println!("seed {seed}, {replicas} replicas");
        let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::free(), seed).unwrap();
        let members = (0..replicas).map(|place| (place as u64 + 1, Datacenter::addr(place as u32, 0))).collect();
        let shared = Rc::new(Shared {
            seed,
            members,
            setup,
            logs: (0..replicas).map(|_| RefCell::new(MemoryLog::new())).collect(),
            leads: (0..replicas).map(|_| Cell::new(false)).collect(),
            counters: (0..replicas).map(|_| Cell::default()).collect(),
            watched: Cell::default(),
            busy: Cell::default(),
        });
        for place in 0..replicas {
            let (shared, mut incarnation) = (shared.clone(), 0);
            let program = move |transport| {
                incarnation += 1;
                Replica::start(&shared, place, incarnation, transport)
            };
            datacenter.spawn_from(place as u32, 0, program).unwrap();
        }
        Cluster { datacenter, shared, users: 0 }
    }

    /// Runs a future on the next host that need not end.
    pub fn servant<F: Future<Output = ()> + 'static>(&mut self, work: impl FnOnce(User) -> F + 'static) {
        self.user(work);
        self.shared.busy.set(self.shared.busy.get() - 1);
    }

    /// Runs a future on the next host.
    pub fn user<F: Future<Output = ()> + 'static>(&mut self, work: impl FnOnce(User) -> F + 'static) {
        let host = self.shared.logs.len() as u32 + self.users;
        self.users += 1;
        let shared = self.shared.clone();
        shared.busy.set(shared.busy.get() + 1);
        let transport = self.datacenter.bind(host, 0).unwrap();
        let endpoint = endpoint(transport, shared.seed ^ u64::from(host) << 50);
        let user = User { shared: shared.clone(), endpoint: endpoint.clone(), timers: endpoint.timers() };
        let boxed: Work = Box::pin(work(user));
        let work = Rc::new(RefCell::new(Some(boxed)));
        let running = work.clone();
        endpoint.spawn(poll_fn(move |context| {
            let mut work = running.borrow_mut();
            let poll = work.as_mut().map_or(Poll::Ready(()), |work| work.as_mut().poll(context));
            if poll.is_ready() {
                *work = None;
            }
            poll
        }));
        self.datacenter.spawn(host, 0, Driver { shared, work, endpoint, is_done: false }).unwrap();
    }

    /// Runs until all users have ended, for at most `seconds` of virtual time. Meanwhile leaders are crashed, cut off
    /// and stopped, `faults` times in ten seconds.
    pub fn run(&mut self, seconds: u64, faults: u64) {
        let mut random = Random::new(self.shared.seed ^ 0xfa17);
        let mut under_way = None;
        let end = self.datacenter.now() + seconds * 1000 * MILLISECOND;
        while self.shared.busy.get() > 0 {
            let now = self.datacenter.now();
            assert!(now < end, "{} users have not ended", self.shared.busy.get());
            self.datacenter.run_until(now + SLICE);
            match under_way.take() {
                Some((until, fault)) if now >= until => self.datacenter.lift(fault),
                Some(going_on) => under_way = Some(going_on),
                None if random.between(0, 10_000 * MILLISECOND / SLICE - 1) < faults => {
                    let fault = self.datacenter.inject(self.draw(&mut random)).unwrap();
                    under_way = Some((now + random.between(1, 400) * MILLISECOND, fault));
                }
                None => {}
            }
        }
    }

    /// Delays each packet by up to this many milliseconds, from now on.
    pub fn delay_packets(&mut self, milliseconds: u64) {
        // Packets that keep their order would wait for each other.
        let faults =
            PacketFaults { reorder: 1.0, reorder_max_ns: milliseconds * MILLISECOND, ..PacketFaults::default() };
        self.datacenter.inject(Fault::Packets { place: Place::Everywhere, faults }).unwrap();
    }

    /// Cuts a host's packets to the replicas off for this many milliseconds, after as many.
    pub fn mute(&mut self, host: u32, milliseconds: u64) {
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        let to = (0..self.shared.logs.len() as u32).collect();
        let fault = self.datacenter.inject(Fault::OneWay { from: vec![host], to }).unwrap();
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        self.datacenter.lift(fault);
    }

    /// Stops a host for this many milliseconds, after as many.
    pub fn stand_still(&mut self, host: u32, milliseconds: u64) {
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        let fault = self.datacenter.inject(Fault::Pause { host }).unwrap();
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        self.datacenter.lift(fault);
    }

    /// Suspends the guest on a host for this many milliseconds, after as many: it stops, and so does its clock.
    pub fn suspend(&mut self, host: u32, milliseconds: u64) {
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        let faults = [Fault::ClockRate { host, ppm: -1_000_000 }, Fault::Pause { host }];
        let faults = faults.map(|fault| self.datacenter.inject(fault).unwrap());
        self.datacenter.run_until(self.datacenter.now() + milliseconds * MILLISECOND);
        faults.into_iter().for_each(|fault| self.datacenter.lift(fault));
    }

    /// Mostly a fault of the leader, where faults matter most.
    fn draw(&self, random: &mut Random) -> Fault {
        let any = random.index(self.shared.leads.len());
        let leader = self.shared.leads.iter().position(Cell::get).filter(|_| random.chance(80));
        let host = leader.unwrap_or(any) as u32;
        match random.between(0, 2) {
            0 => Fault::Crash { host },
            1 => Fault::Pause { host },
            _ => Fault::Partition { hosts: vec![host] },
        }
    }
}

/// A site of the conformance suite.
pub struct Site {
    pub user: User,
    pub delay_max: Duration,
}

impl dunlin_coord::conformance::Site for Site {
    type Coordinator = Coordinator;

    fn coordinator(&self) -> Coordinator {
        self.user.coordinator()
    }

    async fn pass(&self, time: Duration) {
        self.user.timers.sleep(time).await;
    }

    fn failure_timeout(&self) -> Duration {
        FAILURE_TIMEOUT
    }

    fn delay_max(&self) -> Duration {
        self.delay_max
    }

    async fn forget_history(&self) {
        let coordinator = self.coordinator();
        for _ in 0..=HISTORY {
            coordinator.set("/conformance/noise", b"", dunlin_coord::Condition::Always).await.unwrap();
        }
        coordinator.delete("/conformance/noise", dunlin_coord::Condition::Always).await.unwrap();
    }
}

/// The result of `work`, unless `end` comes first.
pub async fn first<F: Future>(work: F, end: impl Future<Output = ()>) -> Option<F::Output> {
    let (mut work, mut end) = (std::pin::pin!(work), std::pin::pin!(end));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
