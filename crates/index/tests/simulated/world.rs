//! A server and clients on hosts of the simulated datacenter.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_index::wire::{LONG_PAGE, PageLimits, SHORT_PAGE};
use dunlin_index::{Client, ClientConfig, Gap, Index, IndexError, IndexService, Order, Range, SharedIndex, pin};
use dunlin_judge::map::{Answer, Direction, End, Entry, Operation, Scan};
use dunlin_net::PollPolicy;
use dunlin_rpc::{Endpoint, EndpointConfig, Timers, WorkerPool};
use dunlin_serve::channel::Turning;
use dunlin_sim::fault::{PacketFaults, Place};
use dunlin_sim::{CostModel, Datacenter, Fault, Next, SimTransport, ThreadClock, Topology};
use dunlin_trial::Random;

pub const MILLISECOND: u64 = 1_000_000;
pub const CLIENTS: u32 = 3;
/// Concurrent tasks of a client.
const TASKS: u32 = 2;
/// Keys that clients use.
const KEYS: u64 = 60;
/// The server's host.
const SERVER: u32 = 0;
/// Turns of an endpoint in one run.
const TURNS_MAX: u32 = 256;

/// What clients saw.
#[derive(Default)]
pub struct Seen {
    pub history: Vec<Entry>,
    pub pages: usize,
    /// Removals of ranges that were answered.
    pub range_deletes: usize,
    /// Writes that may have been done.
    pub unknown: usize,
    /// Scans that ended because their server was restarted.
    pub restarted: usize,
    /// Nanoseconds.
    pub longest_get: u64,
    pub longest_page: u64,
}

pub struct World {
    pub datacenter: Datacenter,
    seed: u64,
    shared: Rc<RefCell<Arc<SharedIndex>>>,
    seen: Rc<RefCell<Seen>>,
    is_over: Rc<Cell<bool>>,
    busy: Rc<Cell<u32>>,
}

fn endpoint(transport: SimTransport, seed: u64) -> Rc<Endpoint<SimTransport>> {
    let config = EndpointConfig {
        poll: PollPolicy::Sleep,
        peer_timeout: Duration::from_millis(20),
        connect_timeout: Duration::from_millis(20),
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

/// One of three is the beginning of another one.
fn key(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => number.to_be_bytes().to_vec(),
        1 => [&(number - 1).to_be_bytes()[..], b"and more"].concat(),
        _ => format!("common prefix {number:03}").into_bytes(),
    }
}

impl World {
    /// Worker threads run at most once in `worker_pause` nanoseconds.
    pub fn new(seed: u64, worker_pause: u64) -> World {
        let topology = Topology::one_switch(1 + CLIENTS, 25);
        let datacenter = Datacenter::new(&topology, CostModel::default(), seed).unwrap();
        let mut world = World {
            datacenter,
            seed,
            shared: Rc::new(RefCell::new(World::index(1))),
            seen: Rc::default(),
            is_over: Rc::default(),
            busy: Rc::default(),
        };
        world.add_server(worker_pause);
        (1..=CLIENTS).for_each(|host| world.add_client(host));
        world
    }

    fn index(incarnation: u64) -> Arc<SharedIndex> {
        SharedIndex::with_incarnation(Index::new(64 << 20).unwrap(), incarnation)
    }

    /// The endpoint on thread 0, its worker on thread 1.
    fn add_server(&mut self, worker_pause: u64) {
        let (seed, shared) = (self.seed, self.shared.clone());
        let pool = Rc::new(WorkerPool::by_hand(64));
        let of_server = pool.clone();
        let factory = move |transport: SimTransport| {
            let shared = shared.borrow().clone();
            let endpoint = endpoint(transport, seed ^ shared.incarnation() << 32);
            IndexService::register(&endpoint, shared, &of_server).unwrap();
            move || turn(&endpoint)
        };
        self.datacenter.spawn_from(SERVER, 0, factory).unwrap();
        let factory = move |transport: SimTransport| {
            let (pool, clock) = (pool.clone(), transport.clock());
            move || {
                // Keeps the thread's place on its host.
                let _ = &transport;
                pool.run_queued();
                Next::OnPacket { or_at: Some(clock.now() + worker_pause) }
            }
        };
        self.datacenter.spawn_from(SERVER, 1, factory).unwrap();
    }

    /// Crashes the server, and restarts it with an empty index.
    pub fn restart(&mut self, down: u64) {
        let fault = self.datacenter.inject(Fault::Crash { host: SERVER }).unwrap();
        let incarnation = self.shared.borrow().incarnation() + 1;
        *self.shared.borrow_mut() = World::index(incarnation);
        self.run_for(down);
        self.datacenter.lift(fault);
    }

    fn add_client(&mut self, host: u32) {
        let transport = self.datacenter.bind(host, 0).unwrap();
        let clock = transport.clock();
        let endpoint = endpoint(transport, self.seed ^ u64::from(host) << 28);
        let config = ClientConfig {
            // With the longer one, calls that failed are tried again.
            timeout: Duration::from_millis(if self.seed.is_multiple_of(2) { 25 } else { 200 }),
            turning: Turning::Always,
            seed: Some(self.seed),
            ..ClientConfig::default()
        };
        let client = Client::new(&endpoint, Datacenter::addr(SERVER, 0), config);
        for task in 0..TASKS {
            let number = host * TASKS + task;
            let mut user = User {
                client: client.clone(),
                clock: clock.clone(),
                timers: endpoint.timers(),
                seen: self.seen.clone(),
                random: Random::new(self.seed ^ u64::from(number) << 16),
                number: number as usize,
                writes: 0,
            };
            let (is_over, busy) = (self.is_over.clone(), self.busy.clone());
            busy.set(busy.get() + 1);
            endpoint.spawn(async move {
                while !is_over.get() {
                    user.step().await;
                    let pause = user.random.between(0, 500);
                    user.timers.sleep(Duration::from_micros(pause)).await;
                }
                busy.set(busy.get() - 1);
            });
        }
        self.datacenter.spawn(host, 0, move || turn(&endpoint)).unwrap();
    }

    pub fn harm_packets(&mut self) {
        let mut random = Random::new(self.seed ^ 0xfa17);
        let faults = PacketFaults {
            loss: random.probability(0.05),
            duplicate: random.probability(0.1),
            reorder: random.probability(0.3),
            delay: random.probability(0.1),
            reorder_max_ns: random.between(1, 3000) * 1000,
            delay_max_ns: random.between(1, 500) * 1000,
            ..PacketFaults::default()
        };
        self.datacenter.inject(Fault::Packets { place: Place::Everywhere, faults }).unwrap();
    }

    pub fn run_for(&mut self, time: u64) {
        self.datacenter.run_until(self.datacenter.now() + time);
    }

    /// Ends the clients, and returns what they saw.
    pub fn finish(mut self) -> Seen {
        let seed = self.seed;
        self.is_over.set(true);
        let end = self.datacenter.now() + 5_000 * MILLISECOND;
        while self.busy.get() > 0 {
            assert!(self.datacenter.now() < end, "seed {seed}: {} tasks have not ended", self.busy.get());
            self.run_for(MILLISECOND);
        }
        let shared = self.shared.borrow().clone();
        shared.index().verify(&pin()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:?}"));
        self.seen.take()
    }
}

/// A task of a client.
struct User {
    client: Client<SimTransport>,
    clock: ThreadClock,
    timers: Timers,
    seen: Rc<RefCell<Seen>>,
    random: Random,
    number: usize,
    writes: u64,
}

impl User {
    fn key(&mut self) -> Vec<u8> {
        key(self.random.between(0, KEYS - 1))
    }

    fn record(&self, begun: u64, operation: Operation, end: End) {
        self.seen.borrow_mut().history.push(Entry { client: self.number, begun, operation, end });
    }

    fn answered(&self, answer: Answer) -> End {
        End::Answered(self.clock.virtual_now(), answer)
    }

    /// Only a call that failed may be without an answer.
    fn is_expected(&self, error: &IndexError) {
        assert!(matches!(error, IndexError::Call { .. }), "client {}: {error}", self.number);
    }

    async fn step(&mut self) {
        let (key, begun) = (self.key(), self.clock.virtual_now());
        match self.random.between(0, 99) {
            0..35 => {
                self.writes += 1;
                let mut value = (self.writes << 8 | self.number as u64).to_le_bytes().to_vec();
                value.resize(8 + 500 * self.random.index(3), 1);
                let result = self.client.put(&key, &value).await;
                self.wrote(begun, Operation::Put { key, value }, result);
            }
            35..50 => {
                let result = self.client.delete(&key).await;
                self.wrote(begun, Operation::Delete { key }, result);
            }
            50..70 => match self.client.get(&key).await {
                Ok(value) => {
                    let end = self.answered(Answer::Value(value.as_deref().map(<[u8]>::to_vec)));
                    self.record(begun, Operation::Get { key }, end);
                    let took = self.clock.virtual_now() - begun;
                    let mut seen = self.seen.borrow_mut();
                    seen.longest_get = seen.longest_get.max(took);
                }
                Err(error) => self.is_expected(&error),
            },
            70..73 => self.delete_range(key, begun).await,
            73..80 => {
                let keys: Vec<Vec<u8>> = (0..self.random.between(2, 12)).map(|_| self.key()).collect();
                match self.client.get_many(&keys).await {
                    Ok(values) => {
                        for (key, value) in keys.into_iter().zip(values) {
                            let end = self.answered(Answer::Value(value.as_deref().map(<[u8]>::to_vec)));
                            self.record(begun, Operation::Get { key }, end);
                        }
                    }
                    Err(error) => self.is_expected(&error),
                }
            }
            _ => self.scan(key).await,
        }
    }

    fn wrote(&self, begun: u64, operation: Operation, result: Result<bool, IndexError>) {
        let end = match result {
            Ok(existed) => self.answered(Answer::Existed(existed)),
            Err(error) => {
                self.is_expected(&error);
                let IndexError::Call { why, .. } = &error else { return };
                self.seen.borrow_mut().unknown += usize::from(why.may_have_run);
                if why.may_have_run { End::Unknown } else { End::NotExecuted }
            }
        };
        self.record(begun, operation, end);
    }

    /// For the judge, the removal of a range is one of each key in it, at any time while it ran.
    async fn delete_range(&mut self, low: Vec<u8>, begun: u64) {
        let high = self.key();
        let range = Range::between(&low, &high);
        let result = self.client.delete_range(range).await;
        let (end, unknown) = match &result {
            Ok(_) => (self.answered(Answer::Done), 0),
            Err(IndexError::Reversed) => return,
            // The first parts may have been removed before the server was restarted, and after it others.
            Err(IndexError::Restarted { .. }) => (End::Unknown, 0),
            Err(error) => {
                self.is_expected(error);
                (End::Unknown, 1)
            }
        };
        self.seen.borrow_mut().unknown += unknown;
        self.seen.borrow_mut().range_deletes += usize::from(result.is_ok());
        for number in 0..KEYS {
            let key = key(number);
            if range.contains(&key) {
                self.record(begun, Operation::Delete { key }, end.clone());
            }
        }
    }

    /// Each page is a scan from where the page before ended.
    async fn scan(&mut self, first: Vec<u8>) {
        let (order, direction) = match self.random.chance(50) {
            true => (Order::Ascending, Direction::Forward),
            false => (Order::Descending, Direction::Backward),
        };
        let most = if self.random.chance(50) { SHORT_PAGE } else { LONG_PAGE };
        let limits = PageLimits { items: self.random.between(1, 20) as u32, bytes: most.bytes };
        let range = Range { low: Gap::Before(&first), ..Range::ALL };
        let mut pages = self.client.scan_with(range, order, limits).unwrap();
        let (mut from, mut to) = (Bound::Included(first.clone()), Bound::Unbounded);
        loop {
            let begun = self.clock.virtual_now();
            let page = match pages.next().await {
                Ok(Some(page)) => page,
                Ok(None) => return,
                Err(IndexError::Restarted { .. }) => {
                    self.seen.borrow_mut().restarted += 1;
                    return;
                }
                // The scan goes on where it was.
                Err(error) => {
                    self.is_expected(&error);
                    if self.random.chance(50) {
                        return;
                    }
                    continue;
                }
            };
            let items: Vec<_> = page.items().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let limit = page.has_more().then_some(items.len());
            let scan = Scan { from: from.clone(), to: to.clone(), direction, limit };
            if let Some((last, _)) = items.last() {
                match direction {
                    Direction::Forward => from = Bound::Excluded(last.clone()),
                    Direction::Backward => to = Bound::Excluded(last.clone()),
                }
            }
            let end = self.answered(Answer::Items(items));
            self.record(begun, Operation::Scan(scan), end);
            let mut seen = self.seen.borrow_mut();
            seen.pages += 1;
            seen.longest_page = seen.longest_page.max(self.clock.virtual_now() - begun);
        }
    }
}
