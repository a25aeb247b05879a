//! Changes that wait for a snapshot's disk.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_kv::client::ClientConfig;
use dunlin_kv::memcached::limits::STALL_TURN_MAX;
use dunlin_kv::metrics::Operation;
use dunlin_kv::wire::{Answer, MAP, OPERATE, Status};
use dunlin_net::Addr;
use dunlin_rpc::{CallError, CallOptions, Endpoint, EndpointConfig, Reply, Session};
use dunlin_store::{KeyHash, Store, Sweep, Visit, Watch};
use futures::FutureExt as _;
use futures::future::{join, join_all};
use futures::stream::{FuturesUnordered, StreamExt as _};

use crate::world::{SERVER, World};

/// How long a slow disk delays each change.
const STALL: Duration = Duration::from_millis(9);
/// Time between two turns.
const TURN: Duration = Duration::from_micros(10);
/// The node of a client on another host.
const OTHER_CLIENT: u32 = 200;
/// Turns after which a test is stuck.
const TURNS_MAX: u32 = 1_000_000;

/// A snapshot that delays changes.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The delay of the next change, and of those after it.
    next: Duration,
    later: Duration,
    stalled: Duration,
}

impl Disk {
    /// Creates a disk that delays every change.
    fn slow() -> Disk {
        Disk::with(STALL, STALL)
    }

    fn with(next: Duration, later: Duration) -> Disk {
        Disk(Arc::new(Mutex::new(State { next, later, stalled: Duration::ZERO })))
    }

    /// Returns how long changes have waited since the snapshot's last turn; this is the next turn.
    fn turn(&self) -> Duration {
        std::mem::take(&mut self.0.lock().unwrap().stalled)
    }

    /// Other changes have waited for this long.
    fn hold(&self, time: Duration) {
        self.0.lock().unwrap().stalled += time;
    }
}

impl Watch for Disk {
    fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {
        let state = &mut *self.0.lock().unwrap();
        state.stalled += std::mem::replace(&mut state.next, state.later);
    }

    fn before_flush(&mut self, _items: &dyn Visit) {}

    fn stalled(&self) -> Duration {
        self.0.lock().unwrap().stalled
    }
}

/// Starts a server of one core whose snapshot has this disk.
fn world(disk: &Disk) -> World {
    let world = World::new(1);
    watch(&world, disk);
    world
}

fn watch(world: &World, disk: &Disk) {
    drop(world.cores[0].shard.store.borrow_mut().watch(Box::new(disk.clone())));
}

fn sessions(world: &World, count: usize) -> Vec<Session> {
    (0..count).map(|_| world.run(world.client.connect(&Addr::Node(SERVER))).unwrap()).collect()
}

/// Returns a put of a key of two bytes.
fn put(key: usize) -> Vec<u8> {
    vec![2, 0, 2, (key >> 8) as u8, key as u8, b'v']
}

fn is_done<B, F>(reply: &Result<Reply<B>, F>) -> bool {
    reply.as_ref().is_ok_and(|reply| Status::of(&reply.response) == Some(Status::Done))
}

/// Runs one turn of the core, of its snapshot, and of the client. Time passes while changes wait. Returns how long they
/// waited, and the result of the work.
fn turn<F: Future>(world: &World, disk: &Disk, work: Pin<&mut F>) -> (Duration, Option<F::Output>) {
    world.network.advance(TURN);
    world.cores.iter().for_each(|core| _ = core.endpoint.run_once());
    let held = disk.turn();
    world.network.advance(held);
    (held, world.client.poll_once(work))
}

/// Runs turns until the work is done.
fn run<F: Future>(world: &World, disk: &Disk, work: F) -> F::Output {
    let mut work = pin!(work);
    (0..TURNS_MAX).find_map(|_| turn(world, disk, work.as_mut()).1).expect("changes are stuck")
}

#[test]
fn changes_that_wait_for_a_disk_hold_their_core_for_a_bounded_time_and_no_reads() {
    const SESSIONS: usize = 8;
    let disk = Disk::slow();
    let world = world(&disk);
    let shard = &world.cores[0].shard;
    let sessions = sessions(&world, SESSIONS + 1);
    // Each with its own key, as many at once as sessions take.
    let puts = (0..8 * SESSIONS).map(|i| sessions[i / 8].call(OPERATE, put(i)));
    let mut puts = pin!(join_all(puts));
    let mut read = pin!(sessions[SESSIONS].call(OPERATE, vec![0, b'r']));
    let (mut longest, mut turns, mut read_after) = (Duration::ZERO, 0, None);
    let replies = loop {
        let (held, replies) = turn(&world, &disk, puts.as_mut());
        // Commands of memcached clients also get a part of each turn.
        assert!(held < STALL_TURN_MAX, "{held:?} in one turn");
        longest = longest.max(held);
        turns += 1;
        if read_after.is_none() && world.client.poll_once(read.as_mut()).is_some() {
            read_after = Some(turns);
        }
        if let Some(replies) = replies {
            break replies;
        }
        assert!(turns < TURNS_MAX, "changes are stuck");
    };
    assert!(replies.iter().all(is_done));
    assert_eq!(shard.store.borrow().stats().stored, 8 * SESSIONS as u64);
    assert!(longest >= STALL, "nothing had to wait");
    assert!(read_after.is_some_and(|read| read < turns / 4), "a read waited for {read_after:?} of {turns} turns");
}

/// Clients that always have changes in flight soon get their earlier rate back after a disk was slow.
#[test]
fn changes_are_as_fast_as_before_soon_after_a_disk_was_slow() {
    const TURNS: u32 = 100;
    // A few more than are made at once, and more than a receive burst in each turn.
    for count in [16, 128] {
        let disk = Disk::default();
        let world = world(&disk);
        let sessions = sessions(&world, count);
        let done = Cell::new(0);
        let load = join_all((0..8 * count).map(|i| {
            let (session, done) = (&sessions[i / 8], &done);
            async move {
                loop {
                    assert!(is_done(&session.call(OPERATE, put(i)).await));
                    done.set(done.get() + 1);
                }
            }
        }));
        let mut load = pin!(load);
        let mut count = |turns: u32| {
            done.set(0);
            (0..turns).for_each(|_| assert!(turn(&world, &disk, load.as_mut()).1.is_none()));
            done.get()
        };
        count(TURNS);
        let before = count(TURNS);
        disk.0.lock().unwrap().next = 2 * STALL_TURN_MAX;
        count(TURNS);
        let after = count(TURNS);
        assert!(after * 10 >= before * 9, "{after} changes in the time in which there were {before}");
        assert_eq!(world.cores[0].endpoint.stats().counters.requests_pushed_back, 0);
    }
}

/// Something else makes the core wait whenever a postponed change could be made.
#[test]
fn changes_go_on_though_others_always_use_up_the_time_that_may_be_waited() {
    const CHANGES: usize = 100;
    // A disk that is fast from here on, and one that is not.
    for disk in [Disk::default(), Disk::slow()] {
        let world = world(&disk);
        let session = &sessions(&world, 1)[0];
        let mut puts = pin!(join_all((0..CHANGES).map(|i| session.call(OPERATE, put(i)))));
        let begun = world.client.now();
        loop {
            disk.hold(STALL_TURN_MAX);
            let (held, replies) = turn(&world, &disk, puts.as_mut());
            assert!(held <= STALL_TURN_MAX + STALL, "{held:?} in one turn");
            if let Some(replies) = replies {
                assert!(replies.iter().all(is_done));
                break;
            }
            assert!(
                world.client.now() - begun < 60_000_000_000,
                "{} changes in a minute",
                world.cores[0].shard.store.borrow().stats().stored
            );
        }
    }
}

/// A snapshot that gets no turn any more.
#[test]
fn a_snapshot_that_ended_badly_stops_no_changes() {
    let disk = Disk::with(STALL_TURN_MAX, Duration::ZERO);
    let world = world(&disk);
    let session = &sessions(&world, 1)[0];
    let begun = world.client.now();
    // Its stall is never reset.
    let replies = world.run(join_all((0..500).map(|i| session.call(OPERATE, put(i)))));
    assert!(replies.iter().all(is_done));
    let took = Duration::from_nanos(world.client.now() - begun);
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[test]
fn changes_that_wait_are_made_and_answered_in_the_order_in_which_they_came() {
    const CHANGES: usize = 64;
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, CHANGES / 8);
    let answered = RefCell::new(Vec::new());
    let puts = join_all((0..CHANGES).map(|i| {
        let (call, answered) = (sessions[i / 8].call(OPERATE, put(7)), &answered);
        async move {
            let reply = call.await.unwrap();
            let stored = Answer::parse_stored(&reply.response).unwrap().unwrap();
            answered.borrow_mut().push((i, stored.cas));
        }
    }));
    run(&world, &disk, puts);
    let answered = answered.into_inner();
    assert!(answered.is_sorted_by_key(|(i, _)| *i), "{answered:?}");
    assert!(answered.is_sorted_by_key(|(_, cas)| *cas), "{answered:?}");
}

#[test]
fn changes_beyond_the_limit_are_pushed_back_and_not_made() {
    const LIMIT: u32 = 8;
    let disk = Disk::slow();
    let world = World::new(1).keeping_at_most(LIMIT);
    watch(&world, &disk);
    let sessions = sessions(&world, 4);
    let replies = run(&world, &disk, join_all((0..32).map(|i| sessions[i / 8].call(OPERATE, put(i)))));
    let done = replies.iter().filter(|reply| is_done(*reply)).count();
    let busy = replies.iter().filter(|reply| matches!(reply, Err(failure) if failure.error == CallError::Busy)).count();
    // The first ones were made at once.
    assert!((LIMIT as usize..LIMIT as usize + 3).contains(&done) && done + busy == 32, "{done} done, {busy} busy");
    assert_eq!(world.cores[0].shard.store.borrow().stats().stored, done as u64);
}

#[test]
fn a_client_tries_changes_again_that_a_busy_core_has_pushed_back() {
    let disk = Disk::slow();
    let world = World::new(1).keeping_at_most(4);
    watch(&world, &disk);
    let client = world.connect(ClientConfig::default());
    let keys: Vec<[u8; 1]> = (0..100).map(|i| [i]).collect();
    let stored = run(&world, &disk, join_all(keys.iter().map(|key| client.set(key, b"v"))));
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let stats = world.cores[0].endpoint.stats();
    assert!(stats.counters.requests_pushed_back > 0, "none had to be tried again");
    assert_eq!(world.cores[0].shard.store.borrow().stats().stored, 100, "each was made once");
    // No longer than its deadline allows.
    let client = client.with_deadline(Some(Duration::from_millis(100)));
    let begun = world.client.now();
    let stored = run(&world, &disk, join_all(keys.iter().map(|key| client.set(key, b"v"))));
    let took = Duration::from_nanos(world.client.now() - begun);
    assert!(took < Duration::from_millis(200), "{took:?}");
    let busy = stored
        .iter()
        .filter_map(|stored| stored.as_ref().err())
        .filter(|error| matches!(error, dunlin_kv::client::KvError::Call { error: CallError::Busy }));
    assert!(busy.count() > 0, "{stored:?}");
}

/// The server goes on with its other cores, or a client may assume so.
#[test]
fn a_core_that_is_lost_leaves_the_changes_that_wait_on_others_alone() {
    for is_multi_get in [false, true] {
        let disk = Disk::slow();
        let mut world = World::new(2);
        watch(&world, &disk);
        let client = world.connect(ClientConfig::default());
        let shard = &world.cores[0].shard;
        let (here, there): (Vec<_>, Vec<_>) = (0..=u8::MAX).map(|key| [key]).partition(|key| shard.owns(key));
        let (here, there) = (&here[..20], there[0]);
        let mut sets = pin!(join_all(here.iter().map(|key| client.set(key, b"v"))));
        while world.cores[0].shard.store.borrow().stats().stored < 3 {
            assert!(turn(&world, &disk, sets.as_mut()).1.is_none());
        }
        drop(world.cores.remove(1));
        let read = async {
            if is_multi_get { client.multi_get(&[there]).await.map(drop) } else { client.get(&there).await.map(drop) }
        };
        let (stored, read) = run(&world, &disk, async { futures::join!(sets, read) });
        assert!(read.is_err() && stored.iter().all(Result::is_ok), "{read:?}, {stored:?}");
        // Nothing is left of them once all have ended.
        run(&world, &disk, world.client.timers().sleep(Duration::from_millis(1)));
        assert_eq!(world.client.stats().sessions, 0);
    }
}

#[test]
fn an_operation_that_took_long_has_kept_its_sessions_in_use() {
    let disk = Disk::slow();
    let world = world(&disk);
    let client = world.connect(ClientConfig::default());
    let keys: Vec<[u8; 1]> = (0..40).map(|key| [key]).collect();
    for _ in 0..3 {
        let stored = run(&world, &disk, join_all(keys.iter().map(|key| client.set(key, b"v"))));
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    }
    assert!(world.client.now() > 3 * 300_000_000, "they did not take long");
    let stats = world.cores[0].endpoint.stats();
    let maps = stats.handlers.iter().find(|handler| handler.req_type == MAP).map(|handler| handler.requests);
    assert_eq!(maps, Some(1), "sessions were tried though they were in use");
}

#[test]
fn changes_whose_callers_have_given_up_are_not_made() {
    const CHANGES: usize = 64;
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, CHANGES / 8);
    // Half of them time out before the others finish, and one is dropped.
    let short = CallOptions::timeout(CHANGES as u32 / 8 * STALL);
    let call = |i: usize| {
        let options = if i < CHANGES / 2 { CallOptions::default() } else { short };
        sessions[i / 8].call_with(OPERATE, put(i), options)
    };
    let mut calls = pin!(join_all((0..CHANGES - 1).map(call).collect::<Vec<_>>()));
    let dropped = call(0);
    (0..10).for_each(|_| assert!(turn(&world, &disk, calls.as_mut()).1.is_none()));
    drop(dropped);
    let replies = run(&world, &disk, calls);
    let done = replies.iter().filter(|reply| is_done(*reply)).count();
    let late =
        replies.iter().filter(|reply| matches!(reply, Err(failure) if failure.error == CallError::DeadlineExceeded));
    assert_eq!((done, late.count()), (CHANGES / 2, CHANGES / 2 - 1));
    run(&world, &disk, world.client.timers().sleep(Duration::from_secs(1)));
    assert_eq!(world.cores[0].shard.store.borrow().stats().stored, done as u64);
}

/// Clients that ask for ten times as much as the disk takes, whatever they are told.
#[test]
fn changes_under_overload_are_made_only_as_long_as_their_callers_wait_for_them() {
    const DEADLINE: Duration = STALL.saturating_mul(60);
    const EACH: Duration = Duration::from_millis(1);
    const CLIENTS: usize = 128;
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, CLIENTS);
    let (begun, mut sent, mut in_time) = (world.client.now(), 0, 0);
    let since = |begun| Duration::from_nanos(world.client.now() - begun);
    let mut calls = FuturesUnordered::new();
    while since(begun) < 6 * DEADLINE {
        while sent as u32 * EACH < since(begun) {
            let (call_begun, options) = (world.client.now(), CallOptions::timeout(DEADLINE));
            let call = sessions[sent % CLIENTS].call_with(OPERATE, put(sent), options);
            // The answer has left before the time passes that its change has waited, and may come to a caller that
            // looks at its clock after.
            calls.push(async move { is_done(&call.await) && since(call_begun) <= DEADLINE });
            sent += 1;
        }
        turn(&world, &disk, pin!(pending::<()>()));
        while let Some(Some(is_in_time)) = calls.next().now_or_never() {
            in_time += u32::from(is_in_time);
        }
    }
    let stored = world.cores[0].shard.store.borrow().stats().stored as u32;
    assert!(2 * stored * STALL > 6 * DEADLINE, "{stored} changes in {:?}", since(begun));
    assert!(in_time * 10 >= stored * 9, "{in_time} of {stored} changes were acknowledged in time");
}

#[test]
fn changes_of_a_host_do_not_wait_for_all_those_of_another_host() {
    const CHANGES: usize = 1_000;
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, CHANGES / 8);
    let other = Endpoint::new(world.network.endpoint(OTHER_CLIENT).unwrap(), EndpointConfig::default()).unwrap();
    let mut puts = pin!(join_all((0..CHANGES).map(|i| sessions[i / 8].call(OPERATE, put(i)))));
    (0..100).for_each(|_| assert!(turn(&world, &disk, puts.as_mut()).1.is_none()));
    let work = async {
        let session = other.connect(&Addr::Node(SERVER)).await.unwrap();
        session.call_with(OPERATE, put(CHANGES), CallOptions::timeout(20 * STALL)).await
    };
    let mut work = pin!(work);
    let reply = loop {
        assert!(turn(&world, &disk, puts.as_mut()).1.is_none(), "it waited for all of them");
        if let Some(reply) = other.poll_once(work.as_mut()) {
            break reply;
        }
    };
    assert!(is_done(&reply), "{reply:?}");
    let replies = run(&world, &disk, puts);
    assert!(replies.iter().all(is_done));
}

/// A client whose endpoint was not turned meanwhile, so that it has not noticed that its deadline passed.
#[test]
fn a_caller_that_looks_late_hears_that_its_change_was_not_made() {
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, 3);
    disk.hold(STALL_TURN_MAX);
    let first = join_all((0..16).map(|i| sessions[i / 8].call(OPERATE, put(i))));
    let late = sessions[2].call_with(OPERATE, put(16), CallOptions::timeout(Duration::from_millis(10)));
    let mut calls = pin!(join(first, late));
    assert!(world.client.poll_once(calls.as_mut()).is_none());
    for _ in 0..4_000 {
        world.network.advance(TURN);
        world.cores[0].endpoint.run_once();
    }
    let (first, late) = run(&world, &disk, calls);
    assert!(first.iter().all(is_done));
    assert_eq!(late.unwrap_err().error, CallError::Busy);
    assert_eq!(world.cores[0].shard.store.borrow().stats().stored, 16);
}

#[test]
fn the_time_of_an_operation_is_that_which_its_change_has_waited() {
    const CHANGES: usize = 64;
    let disk = Disk::slow();
    let world = world(&disk);
    let sessions = sessions(&world, CHANGES / 8);
    let begun = world.client.now();
    let replies = run(&world, &disk, join_all((0..CHANGES).map(|i| sessions[i / 8].call(OPERATE, put(i)))));
    assert!(replies.iter().all(is_done));
    let last = Duration::from_nanos(world.client.now() - begun);
    assert!(last > 20 * STALL, "{last:?}");
    let metrics = world.cores[0].shard.metrics.borrow();
    let (_, sets) = metrics.operations().find(|(operation, _)| *operation == Operation::Set).unwrap();
    assert_eq!(sets.latency.count(), CHANGES as u64, "each is counted once");
    // Those of the last turn wait by another clock, which the test does not advance.
    let (longest, turns) = (sets.latency.percentile(100.0), 3 * STALL);
    assert!(longest + turns >= last, "the last change took {last:?}, the longest {longest:?}");
    let half = sets.latency.percentile(50.0);
    assert!(half > last / 4 && half < last, "{half:?} of {last:?}");
}
