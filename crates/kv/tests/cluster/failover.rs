//! Servers that are gone, silent, late, or behind a bad network.

use std::collections::BTreeMap;
use std::time::Duration;

use dunlin_kv::client::Outcome;
use dunlin_kv::cluster::{Choice, ClusterError, Copies, ServerError, Why};
use dunlin_kv::wire::ReplicaState;
use dunlin_net::fault::Faults;
use dunlin_net::random::Random;

use crate::world::{World, config};

#[test]
fn reads_go_on_and_writes_say_who_missed_them() {
    let mut world = World::new(3, 2, 1);
    let client = world.connect(config());
    let keys: Vec<String> = (0..60).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        world.run(client.set(key.as_bytes(), b"before")).unwrap().everywhere().unwrap();
    }
    world.stop(1);
    let values = world.run(client.multi_get(&keys)).unwrap();
    assert!(values.iter().all(|value| value.as_deref() == Some(&b"before"[..])));
    for key in &keys {
        let written = world.run(client.set(key.as_bytes(), b"after")).unwrap();
        let is_missed = world.replicas(key.as_bytes()).contains(&1);
        assert_eq!((written.reached, written.missed.len()), if is_missed { (1, 1) } else { (2, 0) });
        if is_missed {
            assert_eq!(written.missed[0].server, "s1");
            let error = written.everywhere().unwrap_err();
            assert_eq!(error.outcome(), Outcome::MaybeExecuted);
            assert!(error.to_string().starts_with("1 of 2 replicas have it; s1: "), "{error}");
        }
    }
    let values = world.run(client.multi_get(&keys)).unwrap();
    assert!(values.iter().all(|value| value.as_deref() == Some(&b"after"[..])));
    world.stop(0);
    world.stop(2);
    let error = world.run(client.get(b"key-1")).unwrap_err();
    let ClusterError::NoReplica { missed, .. } = &error else { panic!("{error}") };
    assert_eq!(missed.len(), 2);
    let error = world.run(client.set(b"key-1", b"x")).unwrap_err();
    assert!(matches!(error, ClusterError::NoReplica { .. }), "{error}");
}

/// It is empty, and must refuse every read.
#[test]
fn a_server_that_was_restarted_is_not_read_until_it_is_filled() {
    let mut world = World::new(2, 2, 2);
    let client = world.connect(config());
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        world.run(client.set(key.as_bytes(), key.as_bytes())).unwrap().everywhere().unwrap();
    }
    world.start(0, ReplicaState::Closed);
    for _ in 0..4 {
        let values = world.run(client.multi_get(&keys)).unwrap();
        assert!(values.iter().all(Option::is_some), "read from an empty server");
    }
    let plain = dunlin_kv::KvClient::new(
        &world.client,
        &world.cluster.servers()[0].address,
        dunlin_kv::client::ClientConfig::default(),
    );
    let error = world.run(plain.get(b"key-1")).unwrap_err();
    assert!(matches!(error, dunlin_kv::client::KvError::Closed { .. }), "{error}");
    let error = world.run(plain.multi_get(&keys)).unwrap_err();
    assert!(matches!(error, dunlin_kv::client::KvError::Closed { .. }), "{error}");
    let error = world.run(plain.scan(|_| std::ops::ControlFlow::Continue(()))).unwrap_err();
    assert!(matches!(error, dunlin_kv::client::KvError::Closed { .. }), "{error}");
    // It is left alone for a while, since its sessions had ended.
    world.wait(Duration::from_millis(300));
    let written = world.run(client.set(b"key-0", b"changed")).unwrap();
    assert!(matches!(&written.missed[..], [missed] if matches!(missed.error, ServerError::Closed)), "{written:?}");
    let refilled = world.run(client.refill("s0")).unwrap().unwrap();
    assert_eq!((refilled.items, refilled.sources), (40, 1));
    world.stop(1);
    let values = world.run(client.multi_get(&keys)).unwrap();
    for (key, value) in keys.iter().zip(values) {
        let expected = if key == "key-0" { b"changed" } else { key.as_bytes() };
        assert_eq!(value.as_deref(), Some(expected), "{key}");
    }
}

/// One loss, however many operations fail with it, is one failure. Writes do not wait for the end of the pause.
#[test]
fn a_server_that_returns_is_written_to_at_once() {
    let mut world = World::new(2, 2, 1);
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.stop(1);
    let keys: Vec<[u8; 1]> = (0..8).map(|key| [key]).collect();
    let written = world.run(futures::future::join_all(keys.iter().map(|key| client.set(key, b"w"))));
    assert!(written.iter().all(|written| written.as_ref().unwrap().missed.len() == 1));
    world.start(1, ReplicaState::Open);
    let written = world.run(client.set(b"k", b"x")).unwrap();
    written.everywhere().unwrap();
    assert_eq!(world.holders(b"k"), [0, 1]);
}

/// As one part of a multiget would.
#[test]
fn a_read_with_its_version_goes_to_another_replica_in_time() {
    let mut world = World::new(2, 2, 1);
    let mut config = config().choosing(Choice::RoundRobin);
    config.failover_after = Duration::from_millis(5);
    let client = world.connect(config);
    let version = world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap().version;
    for _ in 0..2 {
        world.run(client.read(b"k")).unwrap();
    }
    world.hung[0] = true;
    for _ in 0..4 {
        let begun = world.client.now();
        let (facts, value) = world.run(client.read(b"k")).unwrap().unwrap();
        assert_eq!((facts.cas, &value[..]), (version, &b"v"[..]));
        assert!(world.client.now() - begun < 8_000_000);
    }
}

/// A server that hangs keeps the places of its requests until they count as slow, and no longer.
#[test]
fn a_large_multiget_goes_on_beside_a_server_that_hangs() {
    let mut world = World::new(4, 2, 1);
    let mut config = config().choosing(Choice::RoundRobin);
    config.failover_after = Duration::from_millis(5);
    config.in_flight_max = 2;
    let client = world.connect(config);
    let keys: Vec<[u8; 4]> = (0..20_000u32).map(u32::to_le_bytes).collect();
    world.run(client.multi_get(&keys)).unwrap();
    world.hung[0] = true;
    let (values, trace) = world.run(client.multi_get_traced(&keys));
    values.unwrap();
    assert!(trace.total < Duration::from_millis(200), "{:?}", trace.total);
}

#[test]
fn a_replica_that_never_answers_costs_one_wait() {
    let mut world = World::new(2, 2, 1);
    let mut config = config().choosing(Choice::RoundRobin);
    config.failover_after = Duration::from_millis(5);
    let client = world.connect(config);
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.run(client.get(b"k")).unwrap();
    world.hung[0] = true;
    let mut slow = 0;
    for _ in 0..10 {
        let (values, trace) = world.run(client.multi_get_traced(&["k"]));
        assert_eq!(values.unwrap()[0].as_deref(), Some(&b"v"[..]));
        assert!(trace.total < Duration::from_millis(8), "{trace:?}");
        slow += trace.parts.iter().filter(|part| part.why == Why::Slow).count();
    }
    assert_eq!(slow, 1, "from then on the other one is asked first");
    let written = world.run(client.set(b"k", b"w")).unwrap();
    assert_eq!((written.reached, written.missed.len()), (1, 1));
    assert_eq!(written.missed[0].error.outcome(), Outcome::MaybeExecuted);
    world.hung[0] = false;
    world.wait(Duration::from_secs(2));
    world.run(client.set(b"k", b"x")).unwrap().everywhere().unwrap();
}

/// After the 90th percentile of response times, which are some tens of microseconds here.
#[test]
fn a_speculative_retry_does_not_wait_for_the_failover_time() {
    let mut world = World::new(2, 2, 1);
    let mut config = config().choosing(Choice::RoundRobin);
    config.copies = Copies::Speculative;
    config.failover_after = Duration::from_millis(40);
    let client = world.connect(config);
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    for _ in 0..64 {
        world.run(client.get(b"k")).unwrap();
    }
    world.hung[0] = true;
    for _ in 0..2 {
        let (values, trace) = world.run(client.multi_get_traced(&["k"]));
        assert_eq!(values.unwrap()[0].as_deref(), Some(&b"v"[..]));
        assert!(trace.total < Duration::from_millis(2), "{trace:?}");
    }
}

/// What a reader may see of a key: all values since the last write that reached all replicas.
#[derive(Default)]
struct Allowed(BTreeMap<u8, Vec<Option<u32>>>);

impl Allowed {
    fn of(&mut self, key: u8) -> &mut Vec<Option<u32>> {
        self.0.entry(key).or_insert_with(|| vec![None])
    }
}

/// Reads, writes and deletions in order, with packets lost, duplicated and late, and servers that come and go: a read
/// returns the value of the last write that reached all replicas, or of one after it.
#[test]
fn reads_return_what_was_written_under_loss() {
    for seed in 1..=12 {
        let faults = Faults {
            drop: 0.03,
            duplicate: 0.02,
            reorder: 0.05,
            delay: 0.05,
            delay_min: Duration::from_micros(50),
            delay_max: Duration::from_micros(900),
            ..Faults::default()
        };
        let mut world = World::with_faults(3, 2, 1, seed, faults, Vec::new());
        let mut config = config();
        config.failover_after = Duration::from_millis(4);
        config.deadline = Duration::from_millis(60);
        config.copies = [Copies::One, Copies::Two, Copies::Speculative][seed as usize % 3];
        let client = world.connect(config);
        let mut random = Random::new(seed);
        let (mut allowed, mut partial, mut down) = (Allowed::default(), 0, None);
        for step in 0..150u32 {
            let key = random.below(12) as u8;
            match random.below(20) {
                0 if down.is_none() => {
                    let server = random.below(3) as u32;
                    world.stop(server);
                    down = Some(server);
                }
                1 | 2 if down.is_some() => {
                    let server = down.take().unwrap_or_default();
                    world.start(server, ReplicaState::Closed);
                    // The others are up, so it can be filled, though perhaps not at once.
                    let mut tries = 0;
                    while let Err(error) = world.run(client.refill(&format!("s{server}"))) {
                        tries += 1;
                        assert!(tries < 50, "seed {seed}: {error}");
                        world.wait(Duration::from_millis(20));
                    }
                }
                3..=9 => {
                    let value = random.chance(0.8).then_some(step);
                    let done = match value {
                        Some(step) => world.run(client.set(&[key], &step.to_le_bytes())),
                        None => world.run(client.delete(&[key])),
                    };
                    let is_everywhere = done.and_then(dunlin_kv::cluster::Written::everywhere).is_ok();
                    if is_everywhere {
                        allowed.of(key).clear();
                    } else {
                        partial += 1;
                        // What is on its way still arrives: a deletion keeps nothing in mind that would stop it.
                        world.wait(Duration::from_millis(5));
                    }
                    allowed.of(key).push(value);
                }
                _ => {
                    let Ok(value) = world.run(client.get(&[key])) else { continue };
                    let value = value.map(|value| u32::from_le_bytes(value[..].try_into().unwrap()));
                    let allowed = allowed.of(key);
                    assert!(allowed.contains(&value), "seed {seed}, step {step}: {value:?} of {allowed:?}");
                }
            }
        }
        assert!(partial < 100, "seed {seed}: hardly any write reached all replicas");
    }
}
