//! The service in the simulated datacenter: nodes with their agents, a cluster manager, and a bank. Nodes crash, stand
//! still and are cut off. The same program as `dunlin txn serve`, on one core for each node.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Condition, Coordinator, Happening, Scope, Watch, WatchmanConfig};
use dunlin_net::{Addr, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Inline;
use dunlin_sim::fault::FaultId;
use dunlin_sim::{CostModel, Datacenter, Fault, Next, SimTransport, Topology};
use dunlin_smr::{Beginning, Client as Replicated, ClientConfig as ReplicatedConfig, MemoryLog, Node, NodeConfig};
use dunlin_trial::Random;
use dunlin_txn::node::{AgentConfig, CoreConfig, Remote, RemoteConfig, Wanted, document, node};
use dunlin_txn::{Configuration, Limits, Mode, Outcome, PartitionId, TxnError};
use tokio::sync::oneshot;

const MILLISECOND: u64 = 1_000_000;
const FAILURE_TIMEOUT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);
const GRACE: Duration = Duration::from_secs(10);
/// Hosts: the cluster manager, the nodes, and the bank.
const MANAGER: u32 = 0;
const NODES: u32 = 4;
const BANK: u32 = NODES + 1;
const ACCOUNTS: u64 = 30;
const BALANCE: u64 = 100;
const TELLERS: u64 = 6;
const ITERATIONS_MAX: u32 = 256;

type End = Rc<Endpoint<SimTransport>>;
type Client = Remote<SimTransport>;

fn endpoint(transport: SimTransport, seed: u64) -> End {
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
fn turn(endpoint: &End) -> Next {
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

fn manager_of(endpoint: &End) -> Embedded<SimTransport> {
    let (config, members) = (manager_config(Duration::from_millis(100)), [(1, Datacenter::addr(MANAGER, 0))]);
    Embedded::new(Replicated::new(endpoint, members, config)).watch_every(LOOK)
}

fn start_manager(datacenter: &mut Datacenter, books: &Rc<Books>, seed: u64) {
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
fn start_node(datacenter: &mut Datacenter, host: u32, grace: Duration, seed: u64) -> oneshot::Sender<()> {
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
struct Books {
    done: RefCell<Vec<(String, Result<(), TxnError>)>>,
    working: Cell<u64>,
    is_over: Cell<bool>,
    is_open: Cell<bool>,
    /// The result of the last question.
    counted: RefCell<Option<Counted>>,
    configuration: RefCell<Option<Rc<Configuration>>>,
    /// Every configuration that was published.
    published: RefCell<Vec<Configuration>>,
    /// Members that the cluster manager has marked as failed.
    failures: Cell<u64>,
}

impl Books {
    fn now(&self) -> Rc<Configuration> {
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
struct Counted {
    acknowledged: usize,
    lost: usize,
    ghosts: usize,
    sum: u64,
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
            let configuration = document::parse(&String::from_utf8(value.to_vec()).unwrap());
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

struct Simulated {
    datacenter: Datacenter,
    bank: End,
    books: Rc<Books>,
    /// Of the nodes, by their order.
    stops: Vec<oneshot::Sender<()>>,
    seed: u64,
}

impl Simulated {
    fn start(seed: u64, replicas: usize, grace: Duration) -> Simulated {
        let topology = Topology::one_switch(BANK + 1, 25);
        let mut datacenter = Datacenter::new(&topology, CostModel::free(), seed).unwrap();
        let books = Rc::<Books>::default();
        start_manager(&mut datacenter, &books, seed ^ 0x3a9a_0000);
        let stops = (1..=NODES).map(|host| start_node(&mut datacenter, host, grace, seed)).collect();
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

    fn run_for(&mut self, time: u64) {
        self.datacenter.run_until(self.datacenter.now() + time);
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Books) -> bool) {
        let end = self.datacenter.now() + 60_000 * MILLISECOND;
        while !is_so(&self.books) {
            let now = self.books.configuration.borrow().clone();
            assert!(self.datacenter.now() < end, "seed {}: not so: {what}: {now:?}", self.seed);
            self.run_for(MILLISECOND);
        }
    }

    /// Waits for more transfers.
    fn go_on(&mut self, more: usize) {
        let goal = self.books.done.borrow().len() + more;
        self.until("transfers go on", |books| books.done.borrow().len() >= goal);
    }

    /// Waits until so many members have all copies.
    fn until_whole(&mut self, members: usize) {
        self.until("all copies are complete", |books| {
            let now = books.configuration.borrow();
            now.as_ref().is_some_and(|now| {
                let is_full = now.partitions.iter().all(|copies| copies.len() == now.replicas);
                now.nodes.len() == members && now.filling.is_empty() && is_full
            })
        });
    }

    /// The nodes with copies of the first partition come to harm, and fail.
    fn fail_together(&mut self, fault: impl Fn(u32) -> Fault) -> Vec<FaultId> {
        let (failures, now) = (self.books.failures.get(), self.books.now());
        let hosts: Vec<u32> = now.copies(PartitionId(0)).iter().map(|copy| copy.node).collect();
        assert_eq!(hosts.len(), 2, "seed {}", self.seed);
        let faults = hosts.iter().map(|host| self.datacenter.inject(fault(*host)).unwrap()).collect();
        self.until("they have failed", |books| books.failures.get() == failures + 2);
        faults
    }

    fn close(mut self) -> usize {
        self.books.is_over.set(true);
        self.until("the bank has counted", |books| books.counted.borrow().is_some());
        self.books.check_members(self.seed);
        let counted = self.books.counted.take().unwrap();
        let expected = Counted { acknowledged: counted.acknowledged, sum: ACCOUNTS * BALANCE, ..Counted::default() };
        assert_eq!(counted, expected, "seed {}", self.seed);
        counted.acknowledged
    }
}

fn seeds(few: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(few),
    }
}

/// A client whose timeout stands for ever waits for its service for as long as that takes.
#[test]
fn a_client_may_wait_for_ever() {
    // They do not fit 64 bits of nanoseconds, or only just.
    let seconds = Duration::from_secs(u64::MAX / 1_000_000_000 + 1);
    for timeout in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1), seconds] {
        let topology = Topology::one_switch(BANK + 1, 25);
        let mut datacenter = Datacenter::new(&topology, CostModel::free(), 1).unwrap();
        let end = endpoint(datacenter.bind(BANK, 0).unwrap(), 7);
        let connected = Rc::<RefCell<Option<Result<(), String>>>>::default();
        let (result, endpoint) = (connected.clone(), end.clone());
        end.spawn(async move {
            let attempt_timeout = Duration::from_millis(50);
            let config = RemoteConfig { timeout, attempt_timeout, seed: Some(1), ..RemoteConfig::default() };
            let remote = Remote::connect(&endpoint, vec![Datacenter::addr(1, 0)], config).await;
            *result.borrow_mut() = Some(remote.map(|_| ()).map_err(|error| error.to_string()));
        });
        datacenter.spawn(BANK, 0, move || turn(&end)).unwrap();
        datacenter.run_until(1000 * MILLISECOND);
        assert_eq!(connected.take(), None, "{timeout:?} is over while the service does not run");
        start_manager(&mut datacenter, &Rc::default(), 2);
        let _stop = start_node(&mut datacenter, 1, GRACE, 3);
        datacenter.run_until(3000 * MILLISECOND);
        assert_eq!(connected.take(), Some(Ok(())), "{timeout:?}");
    }
}

/// As many nodes crash for good as there are copies, and then another one.
#[test]
fn a_bank_loses_nothing_while_nodes_crash() {
    for seed in seeds(4) {
        let mut random = Random::new(seed ^ 0xc4a5);
        let mut simulated = Simulated::start(seed, 2, GRACE);
        for left in [3, 2] {
            simulated.go_on(random.between(20, 100) as usize);
            let now = simulated.books.now();
            let nodes: Vec<u32> = now.nodes.keys().copied().collect();
            let host = *random.pick(&nodes).unwrap();
            simulated.datacenter.inject(Fault::Crash { host }).unwrap();
            simulated.go_on(random.between(20, 100) as usize);
            simulated.until_whole(left);
        }
        assert!(simulated.close() > 100);
    }
}

/// A node is stopped: it leaves, and the others need not wait until it has failed.
#[test]
fn a_node_that_is_stopped_leaves_first() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, GRACE);
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        let stop = simulated.stops.swap_remove(seed as usize % NODES as usize);
        stop.send(()).unwrap();
        simulated.go_on(50);
        simulated.until_whole(NODES as usize - 1);
        assert_eq!(simulated.books.failures.get(), 0, "seed {seed}: it has left");
        simulated.close();
    }
}

/// A node stands still, or is cut off, for about as long as it takes until it is left out, and comes back: as the member
/// that it was, or as a new one.
#[test]
fn a_bank_loses_nothing_when_nodes_come_back() {
    for seed in seeds(6) {
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
        assert!(simulated.close() > 100);
    }
}

/// Somebody writes over the configuration, and then mends it: no node drops what it has.
#[test]
fn a_configuration_that_cannot_be_read_costs_no_data() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, GRACE);
        simulated.go_on(50);
        let (manager, path) = (manager_of(&simulated.bank), "/txn/configuration");
        let is_mended = Rc::new(Cell::new(false));
        let (timers, told) = (simulated.bank.timers(), is_mended.clone());
        simulated.bank.spawn(async move {
            let before = manager.get(path).await.unwrap().unwrap();
            manager.set(path, b"txn 7", Condition::Always).await.unwrap();
            timers.sleep(Duration::from_millis(500)).await;
            manager.set(path, &before.value, Condition::Always).await.unwrap();
            told.set(true);
        });
        simulated.until("it is mended", |_| is_mended.get());
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        simulated.close();
    }
}

/// While nobody hears the nodes, none of them serves. Then all go on, whether or not they count as failed.
#[test]
fn nobody_serves_while_the_cluster_manager_is_cut_off() {
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 3, GRACE);
        simulated.go_on(50);
        let fault = simulated.datacenter.inject(Fault::Partition { hosts: vec![MANAGER] }).unwrap();
        // Three quarters of the failure timeout, and what is under way.
        simulated.run_for(200 * MILLISECOND);
        let before = simulated.books.done.borrow().len();
        simulated.run_for(300 * MILLISECOND);
        assert_eq!(simulated.books.done.borrow().len(), before, "seed {seed}: it has served without a lease");
        assert_eq!(simulated.books.failures.get(), u64::from(NODES), "seed {seed}: all have failed");
        simulated.datacenter.lift(fault);
        simulated.go_on(50);
        simulated.close();
    }
}

/// All nodes with copies of a partition fail. They are waited for: first they come back, then they do not.
#[test]
fn a_partition_is_given_up_only_after_the_grace() {
    let grace = Duration::from_secs(2);
    for seed in seeds(2) {
        let mut simulated = Simulated::start(seed, 2, grace);
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        let faults = simulated.fail_together(|host| Fault::Pause { host });
        simulated.run_for(300 * MILLISECOND);
        faults.into_iter().for_each(|fault| simulated.datacenter.lift(fault));
        simulated.go_on(50);
        simulated.until_whole(NODES as usize);
        simulated.fail_together(|host| Fault::Crash { host });
        simulated.run_for(grace.as_nanos() as u64 - 100 * MILLISECOND);
        assert_eq!(simulated.books.now().lost().count(), 0, "seed {seed}: they are waited for");
        simulated.until("a partition is lost", |books| books.now().lost().count() > 0);
        simulated.until("that is said", |books| {
            let done = books.done.borrow();
            done.iter().any(|(_, done)| matches!(done, Err(TxnError::PartitionLost { .. })))
        });
    }
}
