//! What clients and servers do at their limits.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{Choice, ClusterError, ConfigError, Why};
use dunlin_kv::wire::ReplicaState;
use dunlin_net::fault::Faults;
use dunlin_rpc::EndpointConfig;
use futures::future::{join, join_all, select};

use crate::world::{NOW, World, config};

/// Servers keep deletions in mind for ten seconds, and wait as long for writes that are under way.
#[test]
fn a_client_whose_writes_may_take_too_long_is_refused() {
    let world = World::new(1, 1, 1);
    let within = |seconds| {
        let mut config = config();
        config.deadline = Duration::from_secs(seconds);
        KvCluster::new(&world.client, world.cluster.clone(), config).err()
    };
    assert_eq!(within(9), None);
    let error = within(10).unwrap();
    assert_eq!(error, ConfigError::Deadline { deadline: Duration::from_secs(10) });
    assert!(error.to_string().contains("give a deadline below 10s"), "{error}");
}

/// A server that does not know whether a write is later than a deletion that it has forgotten has it repeated, as long
/// as it forgets further ones meanwhile.
#[test]
fn a_write_is_later_than_deletions_that_were_forgotten() {
    /// The clock of the client that deletes: far ahead, and fast.
    static AHEAD: AtomicU64 = AtomicU64::new(NOW + 100_000_000);
    let mut world = World::new(2, 2, 1);
    world.deletions = 2;
    (0..2).for_each(|server| world.start(server, ReplicaState::Open));
    let deleting = KvCluster::new(&world.another_end(), world.cluster.clone(), {
        let mut config = config();
        config.wall_micros = || AHEAD.fetch_add(10_000, Ordering::Relaxed);
        config
    });
    let deleting = deleting.unwrap();
    let delete = async |keys: std::ops::Range<u8>| {
        for key in keys {
            deleting.delete(&[key]).await.unwrap().everywhere().unwrap();
        }
    };
    let client = world.connect(config());
    world.run(delete(0..3));
    let written = world.run(client.set(b"one", b"v")).unwrap().everywhere().unwrap();
    assert!(written.version >> 12 > NOW + 100_000_000 && !written.had_item);
    let (written, ()) = world.run(join(client.set(b"two", b"v"), delete(3..6)));
    written.unwrap().everywhere().unwrap();
    assert_eq!([world.holders(b"one"), world.holders(b"two")], [[0, 1], [0, 1]]);
}

/// It is back-pressure, and no error.
#[test]
fn operations_wait_for_a_place_in_a_session() {
    let world = World::new(1, 1, 1);
    let end = world.another_end_with(EndpointConfig { queued_calls_max: 2, ..EndpointConfig::default() });
    let client = KvCluster::new(&end, world.cluster.clone(), config()).unwrap();
    world.run(client.set(b"first", b"v")).unwrap().everywhere().unwrap();
    let sets = (0..200u8).map(|key| {
        let client = client.clone();
        async move {
            client.set(&[key], &[key]).await.unwrap().everywhere().unwrap();
            assert_eq!(client.get(&[key]).await.unwrap().as_deref(), Some(&[key][..]));
        }
    });
    world.run(join_all(sets));
}

/// All servers are slow, and none is silent.
#[test]
fn one_in_ten_requests_goes_to_another_replica_because_one_is_slow() {
    const READERS: u64 = 100;
    const READS: u64 = 10;
    let world = World::new(2, 2, 1);
    let client = world.connect({
        let mut config = config().choosing(Choice::RoundRobin);
        config.failover_after = Duration::from_millis(1);
        config.sessions_per_core = 16;
        config
    });
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.run(join_all((0..4).map(|_| client.get(b"k"))));
    let [delay_min, delay_max] = [100, 16_000].map(Duration::from_micros);
    let slow = Faults { delay: 1.0, delay_min, delay_max, ..Faults::default() };
    for core in world.servers.iter().flatten() {
        core.endpoint.with_transport(|wire| wire.set_faults(slow)).unwrap();
    }
    let further = Cell::new(0);
    let readers = (0..READERS).map(|_| async {
        for _ in 0..READS {
            let (values, trace) = client.multi_get_traced(&["k"]).await;
            assert_eq!(values.unwrap()[0].as_deref(), Some(&b"v"[..]));
            further.set(further.get() + trace.parts.iter().filter(|part| part.why == Why::Slow).count() as u64);
        }
    });
    world.run(join_all(readers));
    let allowed = 10 + READERS * READS / 10;
    assert!((allowed - 10..=allowed + 1).contains(&further.get()), "{} of {allowed}", further.get());
}

#[test]
fn a_silent_host_costs_writes_one_attempt() {
    let mut world = World::new(2, 2, 1);
    // As it is by default.
    let end = world.another_end_with(EndpointConfig::default());
    let client = KvCluster::new(&end, world.cluster.clone(), config()).unwrap();
    world.hung[1] = true;
    let mut times = Vec::new();
    for _ in 0..6 {
        let begun = world.client.now();
        let written = world.run(client.set(b"k", b"v")).unwrap();
        assert_eq!((written.reached, written.missed.len()), (1, 1), "{written:?}");
        times.push(Duration::from_nanos(world.client.now() - begun));
    }
    assert!(times[0] > Duration::from_secs(1), "{times:?}");
    assert!(times[2..].iter().all(|time| *time < Duration::from_millis(110)), "{times:?}");
    world.hung[1] = false;
    world.wait(Duration::from_secs(4));
    world.run(client.set(b"k", b"w")).unwrap().everywhere().unwrap();
}

/// It takes writes, and says so: that does not make it one to read from.
#[test]
fn writes_to_a_server_that_is_filled_do_not_draw_reads() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config().choosing(Choice::RoundRobin));
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.run(client.begin_fill("s0")).unwrap();
    let mut failed = 0;
    for _ in 0..20 {
        world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
        let (values, trace) = world.run(client.multi_get_traced(&["k"]));
        assert_eq!(values.unwrap()[0].as_deref(), Some(&b"v"[..]));
        failed += trace.parts.iter().filter(|part| part.error.is_some()).count();
    }
    assert!(failed <= 1, "{failed} reads went there first");
}

/// An agent asks every second.
#[test]
fn asking_whether_a_server_is_open_opens_no_new_sessions() {
    let mut world = World::new(1, 1, 1);
    let client = world.connect(config());
    assert!(world.run(client.is_open("s0")).unwrap());
    let opened = || world.servers[0][0].endpoint.stats().counters.sessions_accepted;
    let before = opened();
    for _ in 0..5 {
        world.wait(Duration::from_secs(1));
        assert!(world.run(client.is_open("s0")).unwrap());
    }
    assert_eq!(opened(), before);
    world.start(0, ReplicaState::Closed);
    assert!(!world.run(client.is_open("s0")).unwrap());
    world.stop(0);
    assert!(matches!(world.run(client.is_open("s0")), Err(ClusterError::Server(_))));
}

/// Each write begins another attempt to reach it.
#[test]
fn attempts_to_reach_a_silent_host_leave_no_tasks_behind() {
    let mut world = World::new(2, 2, 1);
    world.hung[1] = true;
    let client = world.connect(config());
    let tasks = || world.client.stats().tasks;
    let before = tasks();
    world.run(async {
        for _ in 0..40 {
            assert_eq!(client.set(b"k", b"v").await.unwrap().missed.len(), 1);
        }
    });
    world.wait(Duration::from_millis(1));
    assert_eq!(tasks(), before);
    // Nobody learns any more what became of an attempt.
    let leaves = world.client.timers().sleep(Duration::from_millis(1));
    world.run(select(std::pin::pin!(client.set(b"k", b"v")), std::pin::pin!(leaves)));
    assert_eq!(tasks(), before + 1);
    drop(client);
    world.wait(Duration::from_millis(1));
    assert_eq!(tasks(), before);
}
