//! Desks in front of devices that answer when they are told to, or not at all.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_schedule::{Ageing, Damping, Levels, Order};
use dunlin_store::tier::{Label, Located, Ticket, TierConfig};
use dunlin_store::{Mode, Partition, PartitionConfig, Put, Store};
use tokio::task::{LocalSet, spawn_local};

use super::desk::{advance, attend};
use super::*;
use crate::cluster::label_of;
use crate::routing::Routing;
use crate::shard::Shard;
use crate::wire::Waited;

const MEMORY_BYTES: usize = 1 << 20;
const TIER_BYTES: u64 = 8 << 20;
const VALUE: [u8; 600] = [7; 600];
/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device in memory. With a gate, each read waits until it is let through.
pub(crate) struct Memory {
    bytes: Mutex<Vec<u8>>,
    gate: Option<Mutex<Receiver<()>>>,
    fails_reads: AtomicBool,
    fails_writes: AtomicBool,
    /// No write ends meanwhile,
    pub is_stuck: AtomicBool,
    /// but one for which this is set.
    pub lets_one_write: AtomicBool,
}

impl Memory {
    pub fn new(gate: Option<Receiver<()>>) -> Memory {
        Memory {
            bytes: Mutex::new(vec![0; TIER_BYTES as usize]),
            gate: gate.map(Mutex::new),
            fails_reads: AtomicBool::new(false),
            fails_writes: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            lets_one_write: AtomicBool::new(false),
        }
    }
}

impl Device for Memory {
    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if let Some(gate) = &self.gate {
            // At the end of the test there are no more tickets.
            let _ = gate.lock().unwrap().recv();
        }
        if self.fails_reads.load(Ordering::Relaxed) {
            return Err(io::Error::other("a planted error"));
        }
        let at = offset as usize;
        Ok(self.bytes.lock().unwrap()[at..at + len].to_vec())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        while self.is_stuck.load(Ordering::Relaxed) && !self.lets_one_write.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fails_writes.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let at = offset as usize;
        self.bytes.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

pub(crate) type TestShard = Rc<Shard<Partition>>;

/// A shard with a tier on this device, with so many reads at a time.
fn shard(device: Arc<Memory>, reads: usize, schedule: Schedule) -> TestShard {
    shard_within(device, reads, schedule, PATIENCE)
}

/// The same, for a device that hangs if a read takes longer than this.
pub(crate) fn shard_within(
    device: Arc<Memory>,
    reads: usize,
    schedule: Schedule,
    read_time_max: Duration,
) -> TestShard {
    let mut store = Partition::with_secret(PartitionConfig::new(Mode::Cache, MEMORY_BYTES), [1, 2]).unwrap();
    let label = Some(label_of as Label);
    assert!(store.attach_tier(TierConfig { label, ..TierConfig::new(TIER_BYTES, 5) }));
    let pool = Pool::start(device, reads, Duration::ZERO).unwrap();
    let desk = Desk::new(pool, 0, reads, schedule).unwrap().with_read_time_max(read_time_max);
    Rc::new(Shard::new(store, Routing::new([3; 16], 1).unwrap(), 0).with_desk(desk))
}

/// Waits until something is so, while other tasks run.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::task::yield_now().await;
        std::thread::yield_now();
    }
}

pub(crate) fn put(shard: &TestShard, number: usize) {
    let mut store = shard.store.borrow_mut();
    let name = format!("key_{number}");
    let key = store.key(name.as_bytes()).unwrap();
    store.put(&key, &VALUE, Put::default()).unwrap();
    shard.desk().unwrap().write(store.tier_mut().unwrap());
}

/// Stores more than memory holds, and returns the keys that must be read from the device.
pub(crate) async fn fill(shard: &TestShard) -> Vec<(String, Ticket)> {
    for number in 0..6_000 {
        put(shard, number);
        if number % 40 == 0 {
            // A block has fewer than 200 of them, and four may wait.
            let stats = || tier_stats(shard);
            until("a write", || (stats().count("writes") + 3) * 200 >= stats().count("stored")).await;
        }
    }
    until("writes", || located(shard).len() >= 1_000).await;
    located(shard)
}

fn located(shard: &TestShard) -> Vec<(String, Ticket)> {
    let store = shard.store.borrow();
    let names = (0..6_000).map(|number| format!("key_{number}"));
    let located = names.filter_map(|name| {
        let key = store.key(name.as_bytes()).unwrap();
        match store.tier().unwrap().locate(key.hash(), 0) {
            Located::Device(ticket) => Some((name, ticket)),
            _ => None,
        }
    });
    located.collect()
}

fn tier_stats(shard: &TestShard) -> crate::metrics::TierSnapshot {
    shard.tier_stats().unwrap()
}

/// Notes that it was served, and whether its item was found.
struct Noting {
    name: String,
    number: usize,
    shard: TestShard,
    served: Rc<RefCell<Vec<(usize, bool)>>>,
}

impl Waiter for Noting {
    fn is_over(&self) -> bool {
        false
    }

    fn serve(self: Box<Self>, hold: Option<Hold>, _: Waited) {
        let store = self.shard.store.borrow();
        let key = store.key(self.name.as_bytes()).unwrap();
        let is_found = store.peek(&key).is_some_and(|item| item.value == VALUE);
        drop(store);
        self.served.borrow_mut().push((self.number, is_found));
        drop(hold);
    }

    fn refuse(self: Box<Self>, _: Refusal) {
        self.served.borrow_mut().push((self.number, false));
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

pub(crate) fn orders() -> Vec<Schedule> {
    let ageing = Some(Ageing { after: 64, one_in: 8 });
    vec![
        Schedule::new(Order::Fifo),
        Schedule::new(Order::Exact { ageing }),
        Schedule::levels(Levels::uniform(4, 3).unwrap()),
        Schedule::new(Order::Learnt { levels: 8, ageing }),
    ]
}

/// The victim is a connection of memcached; what overtakes it are native operations. Twice as many of them come as the
/// device can serve.
#[test]
fn nobody_starves_under_overload_whatever_the_order() {
    for schedule in orders() {
        run(async move {
            let (open, gate) = channel();
            let order = schedule.queue.order.clone();
            let shard = shard(Arc::new(Memory::new(Some(gate))), 1, schedule);
            spawn_local(attend(shard.clone()));
            let cold = fill(&shard).await;
            let served = Rc::new(RefCell::new(Vec::new()));
            let next = Cell::new(0);
            let push = |count: usize| {
                for _ in 0..count {
                    let number = next.replace(next.get() + 1);
                    let (name, ticket) = cold[100 + number % (cold.len() - 100)].clone();
                    let served = served.clone();
                    let waiter = Box::new(Noting { name, number, shard: shard.clone(), served });
                    let parcel = Parcel { ticket, rank: 0, client: number as u64 % 8, waiter };
                    shard.desk().unwrap().push(parcel);
                }
                advance(&shard);
            };
            push(20);
            // A connection that asks for fifty keys at once.
            let tickets: Vec<Ticket> = cold[..50].iter().map(|(_, ticket)| *ticket).collect();
            let victim = spawn_local(fetch(&shard, tickets, 77));
            tokio::task::yield_now().await;
            let mut reads = 0;
            while !victim.is_finished() {
                assert!(reads < 3_000, "{order:?}: it starves behind {} others", next.get());
                push(2);
                let before = tier_stats(&shard).count("reads");
                open.send(()).unwrap();
                reads += 1;
                until("a read", || tier_stats(&shard).count("reads") > before).await;
                tokio::task::yield_now().await;
            }
            assert_eq!(victim.await.unwrap().unwrap().len(), 50, "{order:?}");
            assert!(served.borrow().iter().all(|(_, is_found)| *is_found), "{order:?}");
            // What holds the values of the victim is gone.
            advance(&shard);
            drop(open);
        });
    }
}

#[test]
fn ranks_decide_who_is_read_first_and_a_client_that_lies_has_its_share() {
    run(async {
        let (open, gate) = channel();
        let mut schedule = Schedule::new(Order::Exact { ageing: None });
        schedule.queue.damping = Some(Damping { burst: 8 });
        let shard = shard(Arc::new(Memory::new(Some(gate))), 1, schedule);
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let served = Rc::new(RefCell::new(Vec::new()));
        let push = |number: usize, rank: u64, client: u64| {
            let (name, ticket) = cold[number].clone();
            let waiter = Box::new(Noting { name, number, shard: shard.clone(), served: served.clone() });
            shard.desk().unwrap().push(Parcel { ticket, rank, client, waiter });
        };
        // A liar asks for a hundred values, all of them most urgent. Then an honest client asks for eight.
        (0..100).for_each(|number| push(number, 0, 1));
        (100..108).for_each(|number| push(number, 9 + number as u64 % 2, 2));
        advance(&shard);
        assert_eq!(tier_stats(&shard).reading, 1);
        assert_eq!(tier_stats(&shard).lengths.iter().sum::<u64>(), 107);
        (0..108).for_each(|_| open.send(()).unwrap());
        until("all", || served.borrow().len() == 108).await;
        let place = |number| served.borrow().iter().position(|(served, _)| *served == number).unwrap();
        let last = (100..108).map(place).max().unwrap();
        assert!(last < 8 + 8 + 3, "the honest client's last value is number {last}");
        assert!(place(100) < place(101), "the lower rank first");
        assert!(served.borrow().iter().all(|(_, is_found)| *is_found));
        let stats = tier_stats(&shard);
        assert_eq!((stats.served, stats.refused, stats.reading), (108, 0, 0));
        assert_eq!(stats.waits.iter().map(|waits| waits.queued.count()).sum::<u64>(), 108);
    });
}

#[test]
fn a_value_that_many_wait_for_is_read_once() {
    run(async {
        let (open, gate) = channel();
        let shard = shard(Arc::new(Memory::new(Some(gate))), 4, Schedule::default());
        spawn_local(attend(shard.clone()));
        let (name, ticket) = fill(&shard).await[0].clone();
        let served = Rc::new(RefCell::new(Vec::new()));
        for number in 0..20 {
            let waiter = Box::new(Noting { name: name.clone(), number, shard: shard.clone(), served: served.clone() });
            shard.desk().unwrap().push(Parcel { ticket, rank: 1, client: 1, waiter });
        }
        advance(&shard);
        open.send(()).unwrap();
        until("all", || served.borrow().len() == 20).await;
        assert_eq!(tier_stats(&shard).count("reads"), 1);
        assert!(served.borrow().iter().all(|(_, is_found)| *is_found));
    });
}

#[test]
fn what_was_changed_while_it_was_read_is_not_what_was_read() {
    run(async {
        let (open, gate) = channel();
        let shard = shard(Arc::new(Memory::new(Some(gate))), 4, Schedule::default());
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let served = Rc::new(RefCell::new(Vec::new()));
        for (number, (name, ticket)) in cold[..2].iter().cloned().enumerate() {
            let waiter = Box::new(Noting { name, number, shard: shard.clone(), served: served.clone() });
            shard.desk().unwrap().push(Parcel { ticket, rank: 1, client: 1, waiter });
        }
        advance(&shard);
        {
            let mut store = shard.store.borrow_mut();
            let (deleted, stored) = (cold[0].0.as_bytes(), cold[1].0.as_bytes());
            let (deleted, stored) = (store.key(deleted).unwrap(), store.key(stored).unwrap());
            store.delete(&deleted, None).unwrap();
            store.put(&stored, b"new", Put::default()).unwrap();
        }
        (0..2).for_each(|_| open.send(()).unwrap());
        until("both", || served.borrow().len() == 2).await;
        assert!(served.borrow().iter().all(|(_, is_found)| !is_found), "neither is the old value");
        let mut store = shard.store.borrow_mut();
        let (deleted, stored) = (store.key(cold[0].0.as_bytes()).unwrap(), store.key(cold[1].0.as_bytes()).unwrap());
        assert!(store.get(&deleted).is_none());
        assert_eq!(store.get(&stored).unwrap().value, b"new");
    });
}

#[test]
fn errors_of_the_device_are_misses_and_counted() {
    run(async {
        let device = Arc::new(Memory::new(None));
        let shard = shard(device.clone(), 2, Schedule::default());
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        device.fails_reads.store(true, Ordering::Relaxed);
        let holds = fetch(&shard, vec![cold[0].1, cold[1].1], 1).await.unwrap();
        assert!(holds.is_empty());
        let stats = tier_stats(&shard);
        assert_eq!((stats.count("read_errors"), stats.count("lost")), (2, 2));
        {
            let mut store = shard.store.borrow_mut();
            let key = store.key(cold[0].0.as_bytes()).unwrap();
            assert!(store.get(&key).is_none());
        }
        device.fails_reads.store(false, Ordering::Relaxed);
        assert_eq!(fetch(&shard, vec![cold[2].1], 1).await.unwrap().len(), 1, "others are still there");
        // A full disk.
        device.fails_writes.store(true, Ordering::Relaxed);
        for number in 10_000..11_000 {
            put(&shard, number);
            tokio::task::yield_now().await;
        }
        until("a failed write", || tier_stats(&shard).count("write_errors") > 0).await;
        assert!(tier_stats(&shard).count("lost") > 2);
    });
}

/// Connections have no timeout of their own. What they gave up is not in the way of others.
#[test]
fn a_connection_waits_for_a_hung_device_for_a_time_only() {
    run(async {
        let (open, gate) = channel();
        let time_max = Duration::from_millis(80);
        let shard = shard_within(Arc::new(Memory::new(Some(gate))), 1, Schedule::default(), time_max);
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        for number in 0..3 {
            let tickets = vec![cold[2 * number].1, cold[2 * number + 1].1];
            assert_eq!(fetch(&shard, tickets, 1).await.unwrap_err(), DeviceHangs);
        }
        let stats = tier_stats(&shard);
        assert_eq!((stats.reading, stats.lengths.iter().sum::<u64>(), stats.count("reads")), (1, 0, 0));
        assert_eq!((stats.refused, shard.desk().unwrap().stats().bytes), (6, 0));
        // The device answers again, though a busy machine may be late to hear of it.
        open.send(()).unwrap();
        until("the read that hung", || tier_stats(&shard).reading == 0).await;
        let holds = loop {
            open.send(()).unwrap();
            match fetch(&shard, vec![cold[9].1], 1).await {
                Ok(holds) => break holds,
                Err(DeviceHangs) => until("a read", || tier_stats(&shard).reading == 0).await,
            }
        };
        assert_eq!(holds.len(), 1);
        drop(holds);
        assert_eq!(shard.desk().unwrap().stats().bytes, 0);
        drop(open);
    });
}

/// Each read takes a quarter of the time that it may take, unless the machine is too busy for that.
#[test]
fn a_long_queue_is_no_device_that_hangs() {
    const TIME_MAX: Duration = Duration::from_millis(400);
    run(async {
        let (open, gate) = channel();
        let shard = shard_within(Arc::new(Memory::new(Some(gate))), 1, Schedule::default(), TIME_MAX);
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        for tickets in cold.chunks(6) {
            let tickets = tickets.iter().map(|(_, ticket)| *ticket).collect();
            let fetching = spawn_local(fetch(&shard, tickets, 1));
            let (mut longest, mut begun) = (Duration::ZERO, std::time::Instant::now());
            for _ in 0..6 {
                longest = longest.max(begun.elapsed());
                begun = std::time::Instant::now();
                tokio::time::sleep(TIME_MAX / 4).await;
                open.send(()).unwrap();
            }
            let fetched = fetching.await.unwrap();
            // The last one lasts until it is heard of.
            longest = longest.max(begun.elapsed());
            match fetched {
                Ok(holds) => return assert_eq!(holds.len(), 6),
                Err(DeviceHangs) => assert!(longest > TIME_MAX / 2, "no read took longer than {longest:?}"),
            }
            until("all reads", || tier_stats(&shard).reading == 0).await;
        }
    });
}

/// One client has all of its share. Others find room; it waits for its own.
#[test]
fn one_client_does_not_take_all_room_and_whoever_waits_for_some_is_woken() {
    run(async {
        let shard = shard(Arc::new(Memory::new(None)), 1, Schedule::default());
        let (store, desk) = (&shard.store, shard.desk().unwrap());
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let tickets = vec![cold[0].1; 1 << 10];
        let requests: Vec<Reserved> = std::iter::from_fn(|| desk.reserve(1, &tickets)).collect();
        assert_eq!((requests.len(), desk.stats().bytes), (8, 8 << 20));
        for other in 2..5 {
            assert!(desk.reserve(other, &tickets).is_some(), "client {other}");
        }
        let mut connections = Vec::new();
        for _ in 0..8 {
            connections.push(fetch(&shard, tickets.clone(), 1).await.unwrap());
        }
        let waiting = spawn_local(fetch(&shard, vec![cold[0].1], 1));
        assert_eq!(fetch(&shard, vec![cold[1].1], 2).await.unwrap().len(), 1);
        assert!(!waiting.is_finished());
        connections.pop();
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
        drop((requests, connections));
        assert_eq!(desk.stats().bytes, 0);
        assert!(store.try_borrow_mut().is_ok());
    });
}

/// They are pushed back if there is no room, so they would never be first in a line.
#[test]
fn requests_find_room_while_connections_stand_in_line() {
    run(async {
        let shard = shard(Arc::new(Memory::new(None)), 1, Schedule::default());
        let desk = shard.desk().unwrap();
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let tickets = vec![cold[0].1; 1 << 10];
        let mut connections = Vec::new();
        for number in 0..32 {
            connections.push(fetch(&shard, tickets.clone(), number % 4).await.unwrap());
        }
        // The room of all connections is taken.
        let waiting: Vec<_> = (10..14).map(|client| spawn_local(fetch(&shard, tickets.clone(), client))).collect();
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        assert!(desk.reserve(20, &tickets).is_some());
        drop(connections);
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
    });
}

/// A waiter whose caller goes away when the test says so.
struct Leaving {
    has_left: Rc<Cell<bool>>,
    is_served: Rc<Cell<bool>>,
}

impl Waiter for Leaving {
    fn is_over(&self) -> bool {
        self.has_left.get()
    }

    fn serve(self: Box<Self>, _: Option<Hold>, _: Waited) {
        self.is_served.set(true);
    }

    fn refuse(self: Box<Self>, _: Refusal) {}
}

#[test]
fn an_operation_whose_caller_left_during_its_read_is_not_served() {
    run(async {
        let (open, gate) = channel();
        let shard = shard(Arc::new(Memory::new(Some(gate))), 1, Schedule::default());
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let [has_left, is_served] = [(); 2].map(|()| Rc::new(Cell::new(false)));
        let waiter = Box::new(Leaving { has_left: has_left.clone(), is_served: is_served.clone() });
        shard.desk().unwrap().push(Parcel { ticket: cold[0].1, rank: 1, client: 1, waiter });
        advance(&shard);
        has_left.set(true);
        open.send(()).unwrap();
        until("the read", || tier_stats(&shard).count("reads") == 1 && tier_stats(&shard).reading == 0).await;
        assert_eq!((is_served.get(), tier_stats(&shard).abandoned), (false, 1));
        let location = shard.store.borrow().tier().unwrap().locate(cold[0].1.hash(), 0);
        assert!(matches!(location, Located::Device(_)), "nothing is kept for it: {location:?}");
    });
}

/// Operations that need no read after all, and some that nobody waits for.
#[test]
fn a_turn_serves_a_bounded_number_and_the_rest_have_theirs() {
    const COUNT: usize = 900;
    run(async {
        let shard = shard(Arc::new(Memory::new(None)), 1, Schedule::default());
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        let served = Rc::new(RefCell::new(Vec::new()));
        for (number, (name, ticket)) in cold[..COUNT].iter().cloned().enumerate() {
            let mut store = shard.store.borrow_mut();
            let key = store.key(name.as_bytes()).unwrap();
            store.delete(&key, None).unwrap();
            let waiter = Box::new(Noting { name, number, shard: shard.clone(), served: served.clone() });
            shard.desk().unwrap().push(Parcel { ticket, rank: 1, client: number as u64, waiter });
        }
        advance(&shard);
        let in_turn = served.borrow().len();
        assert!((1..=256).contains(&in_turn), "{in_turn} in one turn");
        until("the rest", || served.borrow().len() == COUNT).await;
    });
}

#[test]
fn operations_that_wait_when_the_core_ends_do_not_keep_it() {
    let weak = RefCell::default();
    let (open, gate) = channel();
    run(async {
        let shard = shard(Arc::new(Memory::new(Some(gate))), 1, Schedule::default());
        weak.replace(Rc::downgrade(&shard));
        spawn_local(attend(shard.clone()));
        let cold = fill(&shard).await;
        for (number, (name, ticket)) in cold[..3].iter().cloned().enumerate() {
            let waiter = Box::new(Noting { name, number, shard: shard.clone(), served: Rc::default() });
            shard.desk().unwrap().push(Parcel { ticket, rank: 1, client: 1, waiter });
        }
        advance(&shard);
        assert_eq!(tier_stats(&shard).reading, 1);
    });
    let weak: std::rc::Weak<Shard<Partition>> = weak.into_inner();
    assert!(weak.upgrade().is_none(), "{} hold it", weak.strong_count());
    drop(open);
}

fn settings(name: &str) -> TierSettings {
    let path = std::env::temp_dir().join(format!("dunlin-kv-tier-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    TierSettings::new(path, 4 << 20, 1 << 20)
}

#[test]
fn a_file_belongs_to_one_server_and_foreign_files_stay_as_they_are() {
    let settings = settings("file");
    let first = TierFile::open(&settings, 2).unwrap();
    assert_eq!(std::fs::metadata(&settings.path).unwrap().len(), 4 << 20);
    let error = TierFile::open(&settings, 2).unwrap_err();
    assert!(matches!(error, TierError::InUse { .. }), "{error}");
    first.write(first.part(1), b"left behind").unwrap();
    drop(first);
    // What an earlier tier left is gone.
    let second = TierFile::open(&settings, 2).unwrap();
    assert_eq!(second.read(second.part(1), 11).unwrap(), [0; 11]);
    assert!(second.read(4 << 20, 1).is_err(), "beyond its end");
    drop(second);
    for (foreign, what) in [(&b"somebody's diary"[..], "another file"), (&b"dunlin kv tear 1"[..], "a damaged one")] {
        std::fs::write(&settings.path, foreign).unwrap();
        let error = TierFile::open(&settings, 2).unwrap_err();
        assert!(matches!(error, TierError::Foreign { .. }), "{what}: {error}");
        assert_eq!(std::fs::read(&settings.path).unwrap(), foreign, "{what} stays as it is");
    }
    std::fs::remove_file(&settings.path).unwrap();
}

/// Whatever a first start leaves that was interrupted, or found no room.
#[test]
fn a_first_start_that_failed_does_not_make_the_file_foreign() {
    let settings = settings("first");
    let magic = b"dunlin kv tier 1";
    let zeros = vec![0; 4096];
    for left in [&[][..], &magic[..5], magic, &zeros] {
        std::fs::write(&settings.path, left).unwrap();
        TierFile::open(&settings, 2).unwrap_or_else(|error| panic!("{} bytes left: {error}", left.len()));
    }
    // As images of disks begin.
    std::fs::write(&settings.path, vec![0; 4097]).unwrap();
    assert!(matches!(TierFile::open(&settings, 2), Err(TierError::Foreign { .. })));
    std::fs::remove_file(&settings.path).unwrap();
    let error = TierFile::open(&TierSettings { bytes: 1 << 60, ..settings.clone() }, 1).unwrap_err();
    assert!(matches!(error, TierError::NoRoom { .. }), "{error}");
    assert_eq!(std::fs::metadata(&settings.path).unwrap().len(), 4096, "what was reserved is given back");
    TierFile::open(&settings, 2).unwrap();
    std::fs::remove_file(&settings.path).unwrap();
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_to_do() {
    let good = settings("settings");
    let refusal = |settings: &TierSettings, cores| TierFile::open(settings, cores).unwrap_err().to_string();
    assert!(refusal(&TierSettings { bytes: 100_000, ..good.clone() }, 1).contains("give it at least 528384"));
    assert!(refusal(&TierSettings { reads: 0, ..good.clone() }, 1).contains("choose 1 to 256"));
    assert!(
        refusal(&TierSettings { path: "/no/such/directory/tier".into(), ..good.clone() }, 1).contains("cannot open")
    );
    let error = refusal(&TierSettings { bytes: 1 << 60, ..good.clone() }, 1);
    assert!(error.contains("choose a smaller size"), "{error}");
    let _ = std::fs::remove_file(&good.path);
}
