//! The service in the simulated datacenter: nodes with their agents, a cluster manager, and a bank. The same program as
//! `dunlin txn serve`, on one core for each node.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Happening, Scope, Watch, WatchmanConfig};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Inline;
use dunlin_sim::fault::{FaultId, PacketFaults, Place};
use dunlin_sim::{CostModel, Datacenter, Fault, Next, SimTransport, Topology};
use dunlin_smr::{Beginning, Client as Replicated, ClientConfig as ReplicatedConfig, MemoryLog, Node, NodeConfig};
use dunlin_trial::Random;
use dunlin_txn::node::{AgentConfig, CoreConfig, Remote, RemoteConfig, Wanted, document, node};
use dunlin_txn::{Configuration, Limits, Mode, Outcome, PartitionId, TxnError};
use tokio::sync::oneshot;

use crate::story::Story;

pub const MILLISECOND: u64 = 1_000_000;
const FAILURE_TIMEOUT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);
pub const GRACE: Duration = Duration::from_secs(10);
/// Hosts: the cluster manager, the nodes, and the bank.
pub const MANAGER: u32 = 0;
pub const NODES: u32 = 4;
pub const BANK: u32 = NODES + 1;
const ACCOUNTS: u64 = 30;
const BALANCE: u64 = 100;
const TELLERS: u64 = 6;
const ITERATIONS_MAX: u32 = 256;

pub type End = Rc<Endpoint<SimTransport>>;
type Client = Remote<SimTransport>;

pub fn endpoint(transport: SimTransport, seed: u64) -> End {
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
pub fn turn(endpoint: &End) -> Next {
    for _ in 0..ITERATIONS_MAX {
        if endpoint.run_once() == 0 {
            return Next::OnPacket { or_at: endpoint.next_due() };
        }
    }
    Next::Soon
}

fn manager_config(timeout: Duration) -> ReplicatedConfig {
    let (attempt_timeout, pause) = (Duration::from_millis(25), Duration::from_millis(1));
    ReplicatedConfig { timeout, attempt_timeout, pause, ..ReplicatedConfig::default() }
}

pub fn manager_of(endpoint: &End) -> Embedded<SimTransport> {
    let (config, members) = (manager_config(Duration::from_millis(100)), [(1, Datacenter::addr(MANAGER, 0))]);
    Embedded::new(Replicated::new(endpoint, members, config)).watch_every(LOOK)
}

pub fn start_manager(datacenter: &mut Datacenter, books: &Rc<Books>, seed: u64) {
    let transport = datacenter.bind(MANAGER, 0).unwrap();
    let clock = transport.clock();
    let endpoint = endpoint(transport, seed);
    let members = vec![(1, Datacenter::addr(MANAGER, 0))];
    let config = NodeConfig {
        tick: Duration::from_millis(1),
        heartbeat_ticks: 3,
        election_ticks: 20,
        seed: Some(seed),
        clock: Rc::new(move || clock.now()),
        ..NodeConfig::new(1)
    };
    let hearing = Hearing::default();
    let machine = Machine::new(dunlin_coord::Limits::default(), hearing.clone());
    let node = Node::start(&endpoint, config, MemoryLog::new(), machine, Beginning::First(members.clone())).unwrap();
    let client = Replicated::new(&endpoint, members, manager_config(Duration::from_secs(5)));
    let config = WatchmanConfig { failure_timeout: FAILURE_TIMEOUT, look_every: LOOK };
    let watchman = Watchman::start(&endpoint, &node, client, hearing, config).unwrap();
    let books = books.clone();
    let program = move || {
        books.failures.set(watchman.counters().failures);
        assert_eq!(node.failure(), None);
        turn(&endpoint)
    };
    datacenter.spawn(MANAGER, 0, program).unwrap();
}

/// Starts a node; what is returned has its agent leave.
pub fn start_node(datacenter: &mut Datacenter, host: u32, grace: Duration, seed: u64) -> oneshot::Sender<()> {
    let endpoint = endpoint(datacenter.bind(host, 0).unwrap(), seed ^ u64::from(host) << 32);
    // Copies come in many pages.
    let limits = Limits { page_entries_max: 5, ..Limits::default() };
    let (service, agent) = node(CoreConfig { limits, fill_bytes_per_second: 200_000, ..CoreConfig::default() });
    let core = Inline::start(Arc::new(service), &endpoint, Duration::from_millis(10)).unwrap();
    let config = AgentConfig {
        lease: Duration::from_millis(150),
        grace,
        seed: Some(seed),
        ..AgentConfig::new(host, vec![Datacenter::addr(host, 0)])
    };
    let agent = agent.agent(manager_of(&endpoint), core.mailboxes().clone(), config).unwrap();
    let (stop, stopped) = oneshot::channel();
    endpoint.spawn(async move {
        let stopped = async {
            if stopped.await.is_err() {
                pending().await
            }
        };
        agent.run(stopped).await;
    });
    let program = move || {
        let _kept = &core;
        turn(&endpoint)
    };
    datacenter.spawn(host, 0, program).unwrap();
    stop
}

/// What the bank does and learns.
#[derive(Default)]
pub struct Books {
    pub done: RefCell<Vec<(String, Result<(), TxnError>)>>,
    pub working: Cell<u64>,
    pub is_over: Cell<bool>,
    pub is_open: Cell<bool>,
    /// The result of the last question.
    pub counted: RefCell<Option<Counted>>,
    pub configuration: RefCell<Option<Rc<Configuration>>>,
    /// Every configuration that was published.
    pub published: RefCell<Vec<Configuration>>,
    /// Members that the cluster manager has marked as failed.
    pub failures: Cell<u64>,
}

impl Books {
    pub fn now(&self) -> Rc<Configuration> {
        self.configuration.borrow().clone().unwrap()
    }

    /// The process of a node that was left out has missed writes, and may have records of transactions that were
    /// aborted since: the same process must not be a member again.
    fn check_members(&self, seed: u64) {
        let mut left = HashSet::new();
        let mut members = HashSet::new();
        for configuration in self.published.borrow().iter() {
            let next: HashSet<_> = configuration.nodes.iter().map(|(node, it)| (*node, it.incarnation)).collect();
            left.extend(members.difference(&next).copied());
            let again: Vec<_> = next.intersection(&left).collect();
            assert!(again.is_empty(), "seed {seed}, epoch {}: {again:?} were left out before", configuration.epoch);
            members = next;
        }
        assert!(!members.is_empty());
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub acknowledged: usize,
    pub lost: usize,
    pub ghosts: usize,
    pub sum: u64,
}

fn account(number: u64) -> Vec<u8> {
    format!("account/{number}").into_bytes()
}

fn balance(value: Option<&[u8]>) -> u64 {
    value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes)
}

async fn transfer(client: &Client, name: &str, from: u64, to: u64) -> Result<(), TxnError> {
    client
        .run(async |tx| {
            let (accounts, journal) = (client.client().table("accounts")?, client.client().table("journal")?);
            let (from, to) = (account(from), account(to));
            let values = tx.execute(&[(accounts, &from), (accounts, &to)], Mode::Update).await?;
            let (has, gets) = (balance(values[0].as_deref()), balance(values[1].as_deref()));
            if has > 0 {
                tx.put(accounts, &from, (has - 1).to_le_bytes().to_vec())?;
                tx.put(accounts, &to, (gets + 1).to_le_bytes().to_vec())?;
            }
            tx.insert(journal, name.as_bytes(), "done")
        })
        .await
}

async fn open(endpoint: End, at: Vec<Addr>, books: Rc<Books>, replicas: usize, seed: u64) {
    let config = RemoteConfig {
        timeout: Duration::from_secs(20),
        attempt_timeout: Duration::from_millis(50),
        seed: Some(seed),
        ..RemoteConfig::default()
    };
    let client = Remote::connect(&endpoint, at, config).await.unwrap();
    let timers = endpoint.timers();
    while client.configuration().nodes.len() < NODES as usize {
        client.refresh().await;
        timers.sleep(Duration::from_millis(5)).await;
    }
    for name in ["accounts", "journal"] {
        let (replicas, partitions) = (Some(replicas), Some(6));
        client.create_table(Wanted { table: name.into(), replicas, partitions }).await.unwrap();
    }
    let filled = client.run(async |tx| {
        let accounts = client.client().table("accounts")?;
        (0..ACCOUNTS).try_for_each(|it| tx.put(accounts, &account(it), BALANCE.to_le_bytes().to_vec()))
    });
    filled.await.unwrap();
    books.working.set(TELLERS);
    for teller in 0..TELLERS {
        let (client, books, timers) = (client.clone(), books.clone(), timers.clone());
        endpoint.spawn(async move {
            for number in 0_u64.. {
                if books.is_over.get() {
                    break;
                }
                let (name, from) = (format!("{teller}/{number}"), (teller * 17 + number * 31) % ACCOUNTS);
                let done = transfer(&client, &name, from, (from + 1 + number % 9) % ACCOUNTS).await;
                books.done.borrow_mut().push((name, done));
                timers.sleep(Duration::from_millis(2)).await;
            }
            books.working.set(books.working.get() - 1);
        });
    }
    books.is_open.set(true);
    while books.working.get() > 0 {
        *books.configuration.borrow_mut() = Some(client.configuration());
        timers.sleep(Duration::from_millis(1)).await;
    }
    // The last epochs are about copies that are filled; all outcomes are known after one more recovery at most.
    let done = books.done.borrow().clone();
    let counted = count(&client, &done).await;
    *books.counted.borrow_mut() = Some(counted);
}

async fn watch(endpoint: End, books: Rc<Books>) {
    let manager = manager_of(&endpoint);
    let mut watch = Watch::new(&manager, Scope::Tree { root: "/txn".into() }, 0);
    loop {
        if let Ok(event) = watch.next().await
            && let Happening::Set { path, value } = event.happening
            && path == "/txn/configuration"
        {
            let configuration = document::parse(str::from_utf8(&value).unwrap());
            books.published.borrow_mut().extend(configuration);
        }
    }
}

async fn count(client: &Client, done: &[(String, Result<(), TxnError>)]) -> Counted {
    let mut counted = Counted::default();
    for (name, done) in done {
        let found = client.run(async |tx| {
            let journal = client.client().table("journal")?;
            Ok(tx.get(journal, name.as_bytes()).await?.is_some())
        });
        let is_there = found.await.unwrap();
        match done {
            Ok(()) => {
                counted.acknowledged += 1;
                counted.lost += usize::from(!is_there);
            }
            Err(TxnError::InDoubt { transaction }) => {
                let expected = if is_there { Outcome::Committed } else { Outcome::Aborted };
                let outcome = client.settle(*transaction).await.unwrap();
                assert!(outcome == expected || outcome == Outcome::Forgotten, "{name}: {outcome:?}, {is_there}");
            }
            Err(error) => {
                assert!(!error.may_have_committed());
                counted.ghosts += usize::from(is_there);
            }
        }
    }
    let balances = client.run(async |tx| {
        let accounts = client.client().table("accounts")?;
        let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
        let keys: Vec<_> = keys.iter().map(|key| (accounts, &key[..])).collect();
        tx.execute(&keys, Mode::Read).await
    });
    counted.sum = balances.await.unwrap().iter().map(|value| balance(value.as_deref())).sum();
    counted
}

pub struct Simulated {
    pub datacenter: Datacenter,
    pub bank: End,
    pub books: Rc<Books>,
    /// By node.
    stops: BTreeMap<u32, oneshot::Sender<()>>,
    pub seed: u64,
}

impl Simulated {
    pub fn start(seed: u64, replicas: usize, grace: Duration) -> Simulated {
        let topology = Topology::one_switch(BANK + 1, 25);
        let mut datacenter = Datacenter::new(&topology, CostModel::free(), seed).unwrap();
        let books = Rc::<Books>::default();
        start_manager(&mut datacenter, &books, seed ^ 0x3a9a_0000);
        let stops = (1..=NODES).map(|host| (host, start_node(&mut datacenter, host, grace, seed))).collect();
        let end = endpoint(datacenter.bind(BANK, 0).unwrap(), seed ^ 0xba4c);
        // It knows one node.
        let at = vec![Datacenter::addr(1 + seed as u32 % NODES, 0)];
        end.spawn(open(end.clone(), at, books.clone(), replicas, seed));
        end.spawn(watch(end.clone(), books.clone()));
        let bank = end.clone();
        datacenter.spawn(BANK, 0, move || turn(&end)).unwrap();
        let mut simulated = Simulated { datacenter, bank, books, stops, seed };
        simulated.until("the bank opens", |books| books.is_open.get());
        simulated
    }

    pub fn run_for(&mut self, time: u64) {
        self.datacenter.run_until(self.datacenter.now() + time);
    }

    pub fn until(&mut self, what: &str, is_so: impl Fn(&Books) -> bool) {
        let end = self.datacenter.now() + 60_000 * MILLISECOND;
        while !is_so(&self.books) {
            let now = self.books.configuration.borrow().clone();
            assert!(self.datacenter.now() < end, "seed {}: not so: {what}: {now:?}", self.seed);
            self.run_for(MILLISECOND);
        }
    }

    /// Has a node leave.
    pub fn stop(&mut self, node: u32) {
        self.stops.remove(&node).unwrap().send(()).unwrap();
    }

    /// Waits for more transfers.
    pub fn go_on(&mut self, more: usize) {
        let goal = self.books.done.borrow().len() + more;
        self.until("transfers go on", |books| books.done.borrow().len() >= goal);
    }

    /// Waits until so many members have all copies.
    pub fn until_whole(&mut self, members: usize) {
        self.until("all copies are complete", |books| {
            let now = books.configuration.borrow();
            now.as_ref().is_some_and(|now| {
                let is_full = now.partitions.iter().all(|copies| copies.len() == now.replicas);
                now.nodes.len() == members && now.filling.is_empty() && is_full
            })
        });
    }

    /// The nodes with copies of the first partition come to harm, and fail.
    pub fn fail_together(&mut self, fault: impl Fn(u32) -> Fault) -> Vec<FaultId> {
        let (failures, now) = (self.books.failures.get(), self.books.now());
        let hosts: Vec<u32> = now.copies(PartitionId(0)).iter().map(|copy| copy.node).collect();
        assert_eq!(hosts.len(), 2, "seed {}", self.seed);
        let faults = hosts.iter().map(|host| self.datacenter.inject(fault(*host)).unwrap()).collect();
        self.until("they have failed", |books| books.failures.get() == failures + 2);
        faults
    }

    /// Ends the work, and checks that nothing is lost. Returns the run in numbers, and the acknowledged transfers.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn close(mut self) -> (Story, usize) {
        self.books.is_over.set(true);
        self.until("the bank has counted", |books| books.counted.borrow().is_some());
        self.books.check_members(self.seed);
        let counted = self.books.counted.take().unwrap();
        let expected = Counted { acknowledged: counted.acknowledged, sum: ACCOUNTS * BALANCE, ..Counted::default() };
        assert_eq!(counted, expected, "seed {}", self.seed);
        let mut hasher = DefaultHasher::new();
        let done = self.books.done.borrow();
        done.iter().for_each(|(name, done)| (name, format!("{done:?}")).hash(&mut hasher));
        (Story::of(&self.datacenter, hasher, done.len() as u64), counted.acknowledged)
    }
}

/// Clocks of other rates, packets that come to harm, and in turn: nodes and the cluster manager stand still or are cut
/// off, from all or from each other, also several at once; nodes crash or leave for good. Between these, copies are
/// complete, so that nothing may be lost.
pub fn harmed_service(seed: u64) -> Story {
    let mut random = Random::new(seed ^ 0x5e41_1ce0);
    let replicas = random.between(2, 3) as usize;
    let mut simulated = Simulated::start(seed, replicas, GRACE);
    for host in 0..=BANK {
        if random.chance(40) {
            // Any two differ by less than a quarter.
            let ppm = random.between(0, 180_000) as i32 - 90_000;
            simulated.datacenter.inject(Fault::ClockRate { host, ppm }).unwrap();
        }
    }
    if random.chance(60) {
        let faults = PacketFaults {
            loss: random.probability(0.02),
            duplicate: random.probability(0.05),
            reorder: random.probability(0.3),
            reorder_max_ns: random.between(1, 100) * 1000,
            ..PacketFaults::default()
        };
        simulated.datacenter.inject(Fault::Packets { place: Place::Everywhere, faults }).unwrap();
    }
    let mut alive: Vec<u32> = (1..=NODES).collect();
    for _ in 0..random.between(2, 5) {
        simulated.go_on(random.between(1, 60) as usize);
        if alive.len() > replicas && random.chance(25) {
            simulated.until_whole(alive.len());
            simulated.go_on(random.between(1, 20) as usize);
            let host = alive.swap_remove(random.index(alive.len()));
            if random.chance(70) {
                simulated.datacenter.inject(Fault::Crash { host }).unwrap();
            } else {
                simulated.stop(host);
            }
            continue;
        }
        let faults: Vec<FaultId> = (0..random.between(1, 2))
            .map(|_| {
                let fault = harm(&mut random, &alive);
                simulated.run_for(random.between(0, 200) * MILLISECOND);
                simulated.datacenter.inject(fault).unwrap()
            })
            .collect();
        simulated.run_for(random.between(10, 700) * MILLISECOND);
        faults.into_iter().for_each(|fault| simulated.datacenter.lift(fault));
    }
    simulated.go_on(20);
    simulated.until_whole(alive.len());
    simulated.close().0
}

/// A node stands still, or is cut off, for about as long as it takes until it is left out, and comes back: as the member
/// that it was, or as a new one. Returns the acknowledged transfers.
///
/// # Panics
/// If a promise is broken.
pub fn nodes_come_back(seed: u64) -> usize {
    let mut random = Random::new(seed ^ 0x9a05);
    let mut simulated = Simulated::start(seed, 2, GRACE);
    for _ in 0..2 {
        simulated.go_on(random.between(20, 100) as usize);
        let host = random.between(1, NODES.into()) as u32;
        let fault = if random.chance(50) { Fault::Pause { host } } else { Fault::Partition { hosts: vec![host] } };
        let fault = simulated.datacenter.inject(fault).unwrap();
        simulated.run_for(random.between(150, 600) * MILLISECOND);
        simulated.datacenter.lift(fault);
        simulated.go_on(random.between(20, 100) as usize);
        simulated.until_whole(NODES as usize);
    }
    simulated.close().1
}

/// What happens to one or two hosts for a while.
fn harm(random: &mut Random, alive: &[u32]) -> Fault {
    let (host, other) = (*random.pick(alive).unwrap(), *random.pick(alive).unwrap());
    match random.between(0, 8) {
        0..=2 => Fault::Pause { host },
        3 => Fault::Partition { hosts: vec![host] },
        4 => Fault::OneWay { from: vec![host], to: vec![MANAGER] },
        5 => Fault::OneWay { from: vec![MANAGER], to: vec![host] },
        6 if other != host => Fault::OneWay { from: vec![host], to: vec![other] },
        7 => Fault::Pause { host: MANAGER },
        _ => Fault::Partition { hosts: vec![MANAGER] },
    }
}
