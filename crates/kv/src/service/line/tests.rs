//! Multi-gets over packets in one process, turn by turn.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{CallError, Endpoint, EndpointConfig, Session};
use dunlin_schedule::{Damping, Order};
use dunlin_store::{Mode, Partition, PartitionConfig, Put};

use super::*;
use crate::KvService;
use crate::metrics::Outcome;
use crate::routing::Routing;
use crate::tier::tests::orders;
use crate::wire::{
    Found, Limits, MULTI_GET, MULTI_GET_KEYS_MAX, MULTI_GET_VALUE_BYTES_MAX, MultiGetAnswer, OPERATE,
    Operation as Single, RANKED_BYTES, RANKED_MULTI_GET, Ranked, ServerMap, Status, WAITED_BYTES,
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
    fn new(schedule: Schedule, clients: u32) -> World {
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
        self.shard.line.stats().unwrap_or_default()
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
    Ranked { rank, is_level: false, wants_waited: true }.encode(&mut whole);
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
    Quantum::TURN.keys as u64
}

#[test]
fn a_long_multi_get_is_answered_in_quanta_and_others_go_on_meanwhile() {
    let world = World::new(Schedule::default(), 2);
    let sessions = [0, 1].map(|client| world.connect(client));
    let keys = 0..MULTI_GET_KEYS_MAX;
    let long = world.call(0, &sessions[0], MULTI_GET, request(keys.clone()));
    world.until(|| world.waiting() > 0);
    world.run(1, single(&sessions[1]));
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

/// Keys that do not exist: an answer about them is one packet.
fn missing() -> impl ExactSizeIterator<Item = usize> {
    (0..Quantum::TURN.keys).map(|key| 7 * key)
}

fn single(session: &Session) -> impl Future<Output = ()> + use<> {
    let operation = Single::Get { key: b"key 1" };
    let mut bytes = vec![0; operation.encoded_len()];
    operation.encode(&mut bytes);
    let call = session.call(OPERATE, bytes);
    async move { _ = call.await.unwrap() }
}

/// A client with the best rank sends many times what the server can do; another one has a long multi-get of a poor rank,
/// and single operations.
#[test]
fn nobody_starves_whatever_the_order() {
    for mut schedule in orders().into_iter().chain(orders().into_iter().map(undamped)) {
        // As many as a client has in flight.
        schedule.queue.limit = 64;
        let order = (schedule.queue.order.clone(), schedule.queue.damping);
        let world = World::new(schedule, 2);
        let is_over = Rc::new(Cell::new(false));
        for _ in 0..2 {
            let session = world.connect(0);
            for _ in 0..8 {
                let (session, is_over) = (session.clone(), is_over.clone());
                world.clients[0].spawn(async move {
                    while !is_over.get() {
                        let response = session.call(RANKED_MULTI_GET, ranked(0, missing())).await.unwrap().response;
                        check(&response[WAITED_BYTES..], missing());
                    }
                });
            }
        }
        let session = world.connect(1);
        world.until(|| world.waiting() >= 8);
        let (singles, begun) = (Rc::new(Cell::new(0)), world.turns.get());
        let (of_singles, counted, over) = (session.clone(), singles.clone(), is_over.clone());
        world.clients[1].spawn(async move {
            while !over.get() {
                single(&of_singles).await;
                counted.set(counted.get() + 1);
            }
        });
        let keys = 0..MULTI_GET_KEYS_MAX;
        let victim = world.call(1, &session, RANKED_MULTI_GET, ranked(1 << 40, keys.clone()));
        world.until(|| victim.borrow().is_some());
        let turns = world.turns.get() - begun;
        assert!(turns < 2_000, "{order:?}: {turns} turns");
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

fn undamped(mut schedule: Schedule) -> Schedule {
    schedule.queue.damping = None;
    schedule
}

#[test]
fn the_lowest_rank_goes_first() {
    let world = World::new(Schedule::new(Order::Exact { ageing: None }), 1);
    // A session each, so that they come together.
    let sessions = [9, 3, 7, 1, 5].map(|rank| (rank, world.connect(0)));
    let calls: HashMap<u64, _> = sessions
        .map(|(rank, session)| (rank, world.call(0, &session, RANKED_MULTI_GET, ranked(rank, missing()))))
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
    const LONG: usize = 16;
    let world = World::new(undamped(Schedule::new(Order::Fifo)), 2);
    let keys = 0..MULTI_GET_KEYS_MAX;
    let mut calls = Vec::new();
    for _ in 0..LONG / 8 {
        let session = world.connect(0);
        calls.extend((0..8).map(|_| world.call(0, &session, MULTI_GET, request(keys.clone()))));
    }
    let session = world.connect(1);
    world.until(|| world.waiting() >= 12);
    let mut gone = Box::pin(session.call(MULTI_GET, request(0..10)));
    // It arrives behind all of these, and each turn does one quantum.
    for _ in 0..8 {
        assert!(world.clients[1].poll_once(gone.as_mut()).is_none(), "it waits");
        world.turn();
    }
    drop(gone);
    world.until(|| calls.iter().all(|call| call.borrow().is_some()));
    world.until(|| world.waiting() == 0);
    assert_eq!((world.queue().served, world.queue().abandoned), (LONG as u64, 1));
    assert_eq!(world.looked_up(), (LONG * keys.len()) as u64);
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
        most = most.max(world.shard.line.begun.get());
    }
    // The last one that began to wait, and what it grew to.
    let longest = 4 << 20;
    assert!((BEGUN_BYTES_MAX..BEGUN_BYTES_MAX + longest).contains(&most), "{most} bytes");
    assert_eq!(world.shard.line.begun.get(), 0);
    for call in calls {
        let values = check(call.borrow().as_ref().unwrap(), keys().collect::<Vec<_>>().into_iter());
        assert!(values > 80, "{values} values");
    }
}

#[test]
fn a_client_above_its_share_makes_room_in_a_full_line() {
    const LIMIT: u64 = 8;
    let mut schedule = Schedule::default();
    schedule.queue.limit = LIMIT as usize;
    schedule.queue.damping = Some(Damping { burst: 20 });
    let world = World::new(schedule, 2);
    let (busy, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    for _ in 0..5 {
        let session = world.connect(0);
        for _ in 0..8 {
            let (session, busy, is_over) = (session.clone(), busy.clone(), is_over.clone());
            world.clients[0].spawn(async move {
                while !is_over.get() {
                    match session.call(MULTI_GET, request(missing())).await {
                        Ok(_) => {}
                        Err(failure) if matches!(failure.error, CallError::Busy) => busy.set(busy.get() + 1),
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    }
    let session = world.connect(1);
    world.until(|| busy.get() > 100);
    for _ in 0..20 {
        // One is served at the end of each turn.
        world.until(|| world.waiting() >= LIMIT - 1);
        let modest = world.run(1, session.call(MULTI_GET, request(missing())));
        check(&modest.unwrap().response, missing());
    }
    is_over.set(true);
    world.until(|| world.waiting() == 0);
    assert!(world.queue().refused >= busy.get(), "{} refused, {} heard of it", world.queue().refused, busy.get());
}

#[test]
fn what_a_quantum_costs_is_what_it_did() {
    let spent = |keys, bytes| Quantum::TURN.less(Quantum::TURN.less(Quantum { keys, bytes }));
    assert!(Quantum { keys: 1, bytes: 1 << 20 }.cost() > 30, "a long value costs what it is");
    assert_eq!([spent(0, 0), spent(1, 100), spent(63, 0)].map(Quantum::cost), [1; 3]);
    assert_eq!(spent(8, 128 << 10).cost(), Quantum::TURN.cost(), "few long values as much as many short ones");
    let longest = MULTI_GET_VALUE_BYTES_MAX / (128 << 10) * Quantum::TURN.cost() as usize;
    assert!(longest <= Damping::default().burst as usize, "the longest answer is within the lead: {longest}");
}
