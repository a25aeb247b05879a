//! Multi-gets over packets in one process, turn by turn.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, Session};
use dunlin_schedule::Order;
use dunlin_store::{Mode, Partition, PartitionConfig, Put};

use super::*;
use crate::KvService;
use crate::metrics::Outcome;
use crate::routing::Routing;
use crate::tier::tests::orders;
use crate::wire::{
    Found, Limits, MULTI_GET, MULTI_GET_KEYS_MAX, MultiGetAnswer, OPERATE, Operation as Single, RANKED_BYTES,
    RANKED_MULTI_GET, Ranked, ServerMap, Status, WAITED_BYTES,
};

/// Keys 0 to 4,095 exist, but for each seventh.
const KEYS: usize = 4_096;
/// More turns than any test takes.
const TURNS_MAX: usize = 20_000;

fn exists(key: usize) -> bool {
    key < KEYS && !key.is_multiple_of(7)
}

fn name(key: usize) -> String {
    format!("key {key}")
}

/// Some hundred bytes, some kilobytes for a few.
fn value(key: usize) -> Vec<u8> {
    let len = if key.is_multiple_of(50) { 20_000 } else { 100 + key % 300 };
    vec![key as u8; len]
}

type Loopback = Rc<Endpoint<LoopbackTransport>>;

/// A server and clients on hosts of their own.
struct World {
    network: LoopbackNetwork,
    server: Loopback,
    clients: Vec<Loopback>,
    shard: Rc<Shard<Partition>>,
    turns: Cell<usize>,
    /// Most keys that the server has looked up in one turn.
    longest: Cell<u64>,
}

impl World {
    fn new(schedule: Schedule, clients: u16) -> World {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint =
            |node| Rc::new(Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap());
        let server = endpoint(1);
        let mut store = Partition::with_secret(PartitionConfig::new(Mode::Store, 64 << 20), [1, 2]).unwrap();
        for number in (0..KEYS).filter(|key| exists(*key)) {
            let name = name(number);
            let key = store.key(name.as_bytes()).unwrap();
            store.put(&key, &value(number), Put::default()).unwrap();
        }
        let routing = Routing::new([3; 16], 1).unwrap();
        let shard = Rc::new(Shard::new(store, routing, 0).with_schedule(schedule).unwrap());
        let addresses = vec![vec![server.local_addr().to_string()]];
        let map = ServerMap { incarnation: 1, routing, limits: Limits { value_bytes_max: 1 << 20 }, addresses };
        KvService::new(shard.clone(), map).register(&server).unwrap();
        let clients = (0..clients).map(|client| endpoint(2 + client)).collect();
        World { network, server, clients, shard, turns: Cell::new(0), longest: Cell::new(0) }
    }

    fn looked_up(&self) -> u64 {
        let metrics = self.shard.metrics.borrow();
        Outcome::ALL.iter().map(|outcome| metrics.counted(Operation::Get, *outcome)).sum()
    }

    fn turn(&self) {
        let before = self.looked_up();
        self.network.advance(Duration::from_micros(10));
        self.server.run_once();
        self.longest.set(self.longest.get().max(self.looked_up() - before));
        self.clients.iter().for_each(|client| _ = client.run_once());
        self.turns.set(self.turns.get() + 1);
        assert!(self.turns.get() < TURNS_MAX, "it does not end");
    }

    fn until(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            self.turn();
        }
    }

    /// Runs a future of a client.
    fn run<R>(&self, client: usize, future: impl Future<Output = R>) -> R {
        let mut future = Box::pin(future);
        loop {
            self.turn();
            if let Some(result) = self.clients[client].poll_once(future.as_mut()) {
                return result;
            }
        }
    }

    fn connect(&self, client: usize) -> Session {
        let address = self.server.local_addr();
        self.run(client, self.clients[client].connect(&address)).unwrap()
    }

    /// Sends a request, whose answer is put into what is returned.
    fn call(&self, client: usize, session: &Session, req_type: u8, request: Vec<u8>) -> Rc<RefCell<Option<Vec<u8>>>> {
        let (answer, call) = (Rc::new(RefCell::new(None)), session.call(req_type, request));
        let answered = answer.clone();
        self.clients[client].spawn(async move {
            *answered.borrow_mut() = Some(call.await.unwrap().response.to_vec());
        });
        answer
    }

    fn queue(&self) -> QueueSnapshot {
        self.shard.line().stats().unwrap_or_default()
    }

    fn waiting(&self) -> u64 {
        self.queue().lengths.iter().sum()
    }
}

fn request(keys: impl Iterator<Item = usize>) -> Vec<u8> {
    let names: Vec<String> = keys.map(name).collect();
    let names = || names.iter().map(String::as_bytes);
    let mut request = vec![0; MultiGet::encoded_len(names())];
    MultiGet::encode(names(), &mut request);
    request
}

fn ranked(rank: u64, keys: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut whole = vec![0; RANKED_BYTES];
    Ranked { rank, wants_waited: true }.encode(&mut whole);
    whole.extend(request(keys));
    whole
}

/// Checks each part of an answer; returns how many have a value.
fn check(answer: &[u8], keys: impl ExactSizeIterator<Item = usize>) -> usize {
    let parts: Vec<Found> = MultiGetAnswer::new(answer).collect();
    assert_eq!(parts.len(), keys.len());
    let mut values = 0;
    for (part, key) in parts.into_iter().zip(keys) {
        match part {
            Found::Item { value: place, .. } => {
                assert!(exists(key) && answer[place] == value(key), "key {key}");
                values += 1;
            }
            Found::None(Status::NotFound) => assert!(!exists(key), "key {key}"),
            Found::None(status) => assert_eq!(status, Status::Later, "key {key}"),
        }
    }
    values
}

fn quantum() -> u64 {
    Quantum::TURN.keys() as u64
}

#[test]
fn a_long_multi_get_is_answered_in_quanta_and_others_go_on_meanwhile() {
    let world = World::new(Schedule::default(), 2);
    let sessions = [0, 1].map(|client| world.connect(client));
    let keys = 0..MULTI_GET_KEYS_MAX;
    let long = world.call(0, &sessions[0], MULTI_GET, request(keys.clone()));
    world.until(|| world.waiting() > 0);
    let single = Single::Get { key: b"key 1" };
    let mut bytes = vec![0; single.encoded_len()];
    single.encode(&mut bytes);
    let short = world.call(1, &sessions[1], OPERATE, bytes);
    world.until(|| short.borrow().is_some());
    assert!(long.borrow().is_none(), "a single operation does not wait for it");
    world.until(|| long.borrow().is_some());
    let values = check(long.borrow().as_ref().unwrap(), keys);
    assert!(values > MULTI_GET_KEYS_MAX / 2, "{values} values");
    // The values fill quanta before the keys do.
    assert!(world.longest.get() <= quantum() + 1, "{} keys in a turn", world.longest.get());
    assert_eq!((world.queue().served, world.waiting()), (1, 0));
    let metrics = world.shard.metrics.borrow();
    let (_, stats) = metrics.operations().find(|(operation, _)| *operation == Operation::Get).unwrap();
    assert_eq!(stats.latency.count(), MULTI_GET_KEYS_MAX as u64 + 1, "the latency of each");
}

#[test]
fn values_count_as_well_as_keys() {
    let world = World::new(Schedule::default(), 1);
    let session = world.connect(0);
    // 20 kB each: seven fill a quantum, with the missing ones between them.
    let keys = || (1..=60).map(|number| number * 50);
    let answer = world.call(0, &session, MULTI_GET, request(keys()));
    world.until(|| answer.borrow().is_some());
    assert!(world.longest.get() <= 9, "{} long values in a turn", world.longest.get());
    check(answer.borrow().as_ref().unwrap(), keys().collect::<Vec<_>>().into_iter());
}

/// A client with the best rank sends twice what the server can do; another one has a long multi-get of a poor rank, and
/// single operations.
#[test]
fn nobody_starves_whatever_the_order() {
    const BURST: usize = 256;
    for schedule in orders() {
        let order = schedule.queue.order.clone();
        let world = World::new(schedule, 2);
        let is_over = Rc::new(Cell::new(false));
        for flood in 0..4 {
            let (session, is_over) = (world.connect(0), is_over.clone());
            for lane in 0..4 {
                let (session, is_over) = (session.clone(), is_over.clone());
                world.clients[0].spawn(async move {
                    let keys = || (0..BURST).map(|key| 1_000 * flood + 50 * lane + key);
                    while !is_over.get() {
                        let response = session.call(RANKED_MULTI_GET, ranked(0, keys())).await.unwrap().response;
                        check(&response[WAITED_BYTES..], keys().collect::<Vec<_>>().into_iter());
                    }
                });
            }
        }
        let session = world.connect(1);
        world.until(|| world.waiting() >= 8);
        let (singles, begun) = (Rc::new(Cell::new(0)), world.turns.get());
        let (single, counted, over) = (session.clone(), singles.clone(), is_over.clone());
        world.clients[1].spawn(async move {
            while !over.get() {
                let operation = Single::Get { key: b"key 1" };
                let mut bytes = vec![0; operation.encoded_len()];
                operation.encode(&mut bytes);
                single.call(OPERATE, bytes).await.unwrap();
                counted.set(counted.get() + 1);
            }
        });
        let keys = 0..MULTI_GET_KEYS_MAX;
        let victim = world.call(1, &session, RANKED_MULTI_GET, ranked(1 << 40, keys.clone()));
        world.until(|| victim.borrow().is_some());
        let turns = world.turns.get() - begun;
        assert!(turns < 1_000, "{order:?}: {turns} turns");
        assert!(singles.get() * 8 > turns, "{order:?}: {} single operations in {turns} turns", singles.get());
        // What comes in a turn in which none waits, and what waits: two quanta, and some single operations.
        assert!(world.longest.get() <= 2 * quantum() + 8, "{order:?}: {} keys in a turn", world.longest.get());
        let victim = victim.borrow();
        let (waited, answer) = Waited::parse(victim.as_ref().unwrap()).unwrap();
        assert!(waited.queued_micros > 0, "{order:?}: it waited");
        check(answer, keys);
        is_over.set(true);
        world.until(|| world.waiting() == 0);
        let waits: u64 = world.queue().waits.iter().map(LatencyHistogram::count).sum();
        assert_eq!(waits, world.queue().served, "{order:?}");
    }
}

#[test]
fn the_lowest_rank_goes_first() {
    let world = World::new(Schedule::new(Order::Exact { ageing: None }), 1);
    let session = world.connect(0);
    let keys = 0..256;
    let calls: HashMap<u64, _> = [9, 3, 7, 1, 5]
        .map(|rank| (rank, world.call(0, &session, RANKED_MULTI_GET, ranked(rank, keys.clone()))))
        .into();
    let mut order = Vec::new();
    while order.len() < calls.len() {
        world.turn();
        let mut answered: Vec<u64> = calls.keys().copied().filter(|rank| calls[rank].borrow().is_some()).collect();
        answered.retain(|rank| !order.contains(rank));
        assert!(answered.len() <= 1, "one quantum in a turn: {answered:?}");
        order.append(&mut answered);
    }
    // The first found nobody waiting.
    assert_eq!(order, [9, 1, 3, 5, 7]);
}

#[test]
fn nothing_is_done_for_a_caller_that_has_gone() {
    let world = World::new(Schedule::new(Order::Fifo), 2);
    let sessions = [0, 1].map(|client| world.connect(client));
    let keys = 0..MULTI_GET_KEYS_MAX;
    let calls: Vec<_> = (0..4).map(|_| world.call(0, &sessions[0], MULTI_GET, request(keys.clone()))).collect();
    world.until(|| world.waiting() == 4);
    let mut gone = Box::pin(sessions[1].call(MULTI_GET, request(0..10)));
    while world.waiting() < 5 {
        world.turn();
        assert!(world.clients[1].poll_once(gone.as_mut()).is_none(), "it waits");
    }
    drop(gone);
    world.until(|| calls.iter().all(|call| call.borrow().is_some()));
    world.until(|| world.waiting() == 0);
    assert_eq!((world.queue().served, world.queue().abandoned), (4, 1));
    assert_eq!(world.looked_up(), 4 * keys.len() as u64);
}

#[test]
fn unfinished_answers_take_bounded_memory() {
    let world = World::new(Schedule::new(Order::Fifo), 1);
    // Two megabytes each.
    let keys = || (1..=60).cycle().map(|number| number * 50).take(200);
    let mut calls = Vec::new();
    for _ in 0..2 {
        let session = world.connect(0);
        calls.extend((0..6).map(|_| world.call(0, &session, MULTI_GET, request(keys()))));
    }
    let mut most = 0;
    while calls.iter().any(|call| call.borrow().is_none()) {
        world.turn();
        most = most.max(world.shard.line().begun.get());
    }
    // The last one that began to wait, and what it grew to.
    let longest = 4 << 20;
    assert!((BEGUN_BYTES_MAX..BEGUN_BYTES_MAX + longest).contains(&most), "{most} bytes");
    assert_eq!(world.shard.line().begun.get(), 0);
    for call in calls {
        let values = check(call.borrow().as_ref().unwrap(), keys().collect::<Vec<_>>().into_iter());
        assert!(values > 80, "{values} values");
    }
}
