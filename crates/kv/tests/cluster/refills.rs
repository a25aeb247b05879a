//! Servers that are filled while writes go on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{ClusterError, ServerError};
use dunlin_kv::wire::{FILL, ReplicaState, SCAN_VALUE_BYTES_MAX, TURN};
use dunlin_net::fault::Faults;
use dunlin_net::random::Random;
use dunlin_rpc::EndpointConfig;
use dunlin_store::Store;
use futures::future::join;

use crate::world::{NOW, World, config, mute, until};

/// A value that names its step, long enough that a fill takes several requests; some are too long for a scan.
fn value(key: u32, step: u32) -> Vec<u8> {
    let len = if key.is_multiple_of(17) { SCAN_VALUE_BYTES_MAX + 1 } else { 6000 };
    let mut value = vec![key as u8; len];
    value[..4].copy_from_slice(&step.to_le_bytes());
    value
}

/// Random writes and deletions while a server is filled, which are judged against a model: afterwards the server has
/// what the model has, and so has the other replica, to the version.
#[test]
fn a_filled_server_has_what_was_written_and_nothing_that_was_deleted() {
    const KEYS: u32 = 150;
    let (mut all_steps, mut all_deleted) = (0, 0);
    for seed in 1..=3 {
        let faults = Faults {
            drop: if seed % 2 == 0 { 0.02 } else { 0.0 },
            reorder: 0.05,
            delay: 0.3,
            delay_min: Duration::from_micros(20),
            delay_max: Duration::from_micros(400),
            ..Faults::default()
        };
        let mut world = World::with_faults(2, 2, 2, seed, faults, Vec::new());
        let mut random = Random::new(seed);
        let client = world.connect({
            let mut config = config();
            config.seed = Some(seed);
            config
        });
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        for key in 0..KEYS {
            if random.chance(0.8) {
                world.run(client.set(&key.to_le_bytes(), &value(key, 0))).unwrap().everywhere().unwrap();
                model.insert(key, 0);
            }
        }
        world.start(0, ReplicaState::Closed);
        let is_over = Cell::new(false);
        // Another client, whose clock is behind.
        let writer = KvCluster::new(&world.another_end(), world.cluster.clone(), {
            let mut config = config();
            config.seed = Some(seed + 100);
            config.wall_micros = || NOW - 60_000_000;
            config
        })
        .unwrap();
        // It takes writes from now on.
        let fill = world.run(client.begin_fill("s0")).unwrap();
        let (mut steps, mut deleted) = (0, 0);
        let work = join(
            async {
                let refilled = client.fill("s0", fill).await;
                is_over.set(true);
                refilled
            },
            async {
                while !is_over.get() {
                    steps += 1;
                    let key = random.below(u64::from(KEYS)) as u32;
                    let written = match random.chance(0.6) {
                        true => {
                            model.insert(key, steps);
                            writer.set(&key.to_le_bytes(), &value(key, steps)).await
                        }
                        false => {
                            deleted += u32::from(model.remove(&key).is_some());
                            writer.delete(&key.to_le_bytes()).await
                        }
                    };
                    written.unwrap().everywhere().unwrap();
                }
            },
        );
        world.run(work).0.unwrap();
        (all_steps, all_deleted) = (all_steps + steps, all_deleted + deleted);
        for key in 0..KEYS {
            let [filled, source] = [0, 1].map(|server| world.held(server, &key.to_le_bytes()));
            let expected = model.get(&key).map(|step| value(key, *step));
            // Values are too long to be printed.
            let is_expected = filled.as_ref().map(|(value, _)| value) == expected.as_ref();
            assert!(is_expected && filled == source, "seed {seed}, key {key} of step {:?}", model.get(&key));
        }
        world.stop(1);
        for key in [0, 1, 34] {
            let read = world.run(client.get(&u32::to_le_bytes(key))).unwrap();
            assert_eq!(read.map(|value| value.to_vec()), model.get(&key).map(|step| value(key, *step)));
        }
    }
    assert!(
        all_steps > 60 && all_deleted > 10,
        "{all_steps} writes while servers were filled, {all_deleted} deletions"
    );
}

#[test]
fn a_server_is_filled_from_all_servers_that_share_partitions_with_it() {
    let mut world = World::new(5, 2, 1);
    let client = world.connect(config());
    let keys: Vec<String> = (0..300).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        world.run(client.set(key.as_bytes(), key.as_bytes())).unwrap().everywhere().unwrap();
    }
    world.start(2, ReplicaState::Closed);
    let refilled = world.run(client.refill("s2")).unwrap().unwrap();
    let own: Vec<&String> = keys.iter().filter(|key| world.replicas(key.as_bytes()).contains(&2)).collect();
    assert_eq!(refilled.items as usize, own.len());
    assert!(refilled.sources >= 3, "{refilled:?}");
    for key in &keys {
        assert_eq!(world.holders(key.as_bytes()), world.replicas(key.as_bytes()), "{key}");
    }
}

#[test]
fn without_a_source_nothing_is_dropped_and_an_operator_decides() {
    let mut world = World::new(2, 2, 1);
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.start(0, ReplicaState::Closed);
    world.start(1, ReplicaState::Closed);
    let error = world.run(client.refill("s0")).unwrap_err();
    let ClusterError::NoSource { missed, .. } = &error else { panic!("{error}") };
    assert!(matches!(&missed[..], [missed] if matches!(missed.error, ServerError::NotOpen)), "{error}");
    assert!(matches!(world.run(client.get(b"k")).unwrap_err(), ClusterError::NoReplica { .. }));
    world.run(client.open("s1")).unwrap();
    assert_eq!(world.run(client.get(b"k")).unwrap(), None);
    let written = world.run(client.set(b"k", b"w")).unwrap();
    assert_eq!((written.reached, written.missed.len()), (1, 1));
    world.run(client.refill("s0")).unwrap();
    assert_eq!(world.holders(b"k"), [0, 1]);
    // The last one that has it is not dropped by mistake.
    world.stop(1);
    assert!(matches!(world.run(client.refill("s0")).unwrap_err(), ClusterError::NoSource { .. }));
    assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"w"[..]));
    assert!(matches!(world.run(client.refill("nobody")).unwrap_err(), ClusterError::NoServer(_)));
}

/// Two operators at once, or a server that fails on the way.
#[test]
fn a_fill_that_was_overtaken_does_not_open_the_server() {
    let mut world = World::new(2, 2, 1);
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    let first = world.run(client.begin_fill("s0")).unwrap();
    let second = world.run(client.begin_fill("s0")).unwrap();
    let error = world.run(client.fill("s0", first)).unwrap_err();
    assert!(matches!(error, ClusterError::Superseded { .. }), "{error}");
    world.run(client.fill("s0", second)).unwrap();
    let fill = world.run(client.begin_fill("s0")).unwrap();
    world.start(0, ReplicaState::Closed);
    let error = world.run(client.fill("s0", fill)).unwrap_err();
    assert!(matches!(error, ClusterError::Server(_) | ClusterError::Superseded { .. }), "{error}");
    let error = world.run(client.fill("s0", fill)).unwrap_err();
    assert!(matches!(error, ClusterError::Superseded { .. }), "{error}");
    assert_eq!(world.held(0, b"k"), None);
    world.run(client.refill("s0")).unwrap();
    assert_eq!(world.held(0, b"k").unwrap().0, b"v");
}

/// Each looked for a source before the other began.
#[test]
fn two_servers_that_are_filled_at_once_do_not_both_drop_what_they_hold() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    for key in 0..20u8 {
        world.run(client.set(&[key], b"v")).unwrap().everywhere().unwrap();
    }
    let (one, two) = world.run(join(client.refill("s0"), client.refill("s1")));
    assert!(one.is_err() || two.is_err(), "{one:?} {two:?}");
    // An operator says which one has everything.
    for server in ["s0", "s1"].into_iter().zip([one, two]).filter(|(_, done)| done.is_err()).map(|(name, _)| name) {
        world.run(client.open(server)).unwrap();
    }
    for key in 0..20u8 {
        assert_eq!(world.holders(&[key]), [0, 1], "{key}");
        assert_eq!(world.run(client.get(&[key])).unwrap().as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn what_was_there_before_is_not_read_and_is_dropped_with_the_fill() {
    let world = World::new(2, 2, 2);
    let client = world.connect(config());
    for key in 0..50u8 {
        world.run(client.set(&[key], b"old")).unwrap().everywhere().unwrap();
    }
    let fill = world.run(client.begin_fill("s0")).unwrap();
    assert!(world.held(0, &[1]).is_some(), "it is kept as long as there is no source");
    let plain = dunlin_kv::KvClient::new(
        &world.client,
        &world.cluster.servers()[0].address,
        dunlin_kv::client::ClientConfig::default(),
    );
    let error = world.run(plain.get(&[1])).unwrap_err();
    assert!(matches!(error, dunlin_kv::client::KvError::Closed { .. }), "{error}");
    world.run(client.set(&[1], b"new")).unwrap().everywhere().unwrap();
    // The source has lost some since.
    let source = &world.servers[1];
    for core in source {
        let store = &mut *core.shard.store.borrow_mut();
        for key in 2..10u8 {
            let key = [key];
            let key = store.key(&key).unwrap();
            let _ = store.delete(&key, None);
        }
    }
    world.run(client.fill("s0", fill)).unwrap();
    for key in 0..50u8 {
        assert_eq!(world.held(0, &[key]), world.held(1, &[key]), "{key}");
    }
    assert_eq!(world.held(0, &[1]).unwrap().0, b"new");
}

/// The server that is filled has it when the fill begins; the source gets it three seconds later.
#[test]
fn a_write_that_was_under_way_when_a_fill_began_is_in_the_copy() {
    let world = World::new(2, 2, 1);
    let long = Duration::from_secs(9);
    let end = world.another_end_with(EndpointConfig {
        peer_timeout: long,
        connect_timeout: long,
        ..EndpointConfig::default()
    });
    let mut patient = config();
    patient.deadline = long;
    let writer = KvCluster::new(&end, world.cluster.clone(), patient).unwrap();
    // It has no session with the source yet.
    assert!(world.run(writer.is_open("s0")).unwrap());
    let client = world.connect(config());
    let sleep = |time| world.client.timers().sleep(time);
    let fills = async {
        until(|| world.held(0, b"k").is_some()).await;
        mute(&end, true);
        let fill = client.begin_fill("s0").await.unwrap();
        let heals = async {
            sleep(Duration::from_secs(3)).await;
            mute(&end, false);
        };
        join(client.fill("s0", fill), heals).await.0.unwrap();
    };
    let (written, ()) = world.run(join(writer.set(b"k", b"v"), fills));
    written.unwrap().everywhere().unwrap();
    assert_eq!(world.holders(b"k"), [0, 1]);
}

/// It is open by then, and the one that filled it must not think that it is not.
#[test]
fn a_server_whose_last_answer_is_lost_is_asked_again() {
    let world = World::new(2, 2, 1);
    let mut config = config();
    config.deadline = Duration::from_millis(100);
    let client = world.connect(config);
    for key in 0..20u8 {
        world.run(client.set(&[key], b"v")).unwrap().everywhere().unwrap();
    }
    let server = &world.servers[0][0].endpoint;
    let asked = || {
        let stats = server.stats();
        stats.handlers.iter().find(|handler| handler.req_type == FILL).map_or(0, |handler| handler.requests)
    };
    let fill = world.run(client.begin_fill("s0")).unwrap();
    let cuts = async {
        until(|| asked() > 0).await;
        mute(server, true);
        world.client.timers().sleep(Duration::from_millis(1500)).await;
        mute(server, false);
    };
    let (filled, ()) = world.run(join(client.fill("s0", fill), cuts));
    assert_eq!(filled.unwrap().items, 20);
    assert!(world.run(client.is_open("s0")).unwrap());
}

/// Its source fails when the server has dropped what it held.
#[test]
fn an_operator_does_not_open_a_server_with_holes() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    for key in 0..20u8 {
        world.run(client.set(&[key], b"v")).unwrap().everywhere().unwrap();
    }
    let fill = world.run(client.begin_fill("s0")).unwrap();
    let source = &world.servers[1][0].endpoint;
    let cuts = async {
        until(|| world.held(0, &[0]).is_none()).await;
        mute(source, true);
    };
    world.run(join(client.fill("s0", fill), cuts)).0.unwrap_err();
    let refused = |error: ClusterError| assert!(matches!(error, ClusterError::HasHoles { .. }), "{error}");
    refused(world.run(client.open("s0")).unwrap_err());
    // Nor when another fill has begun, and nothing more was dropped.
    world.run(client.begin_fill("s0")).unwrap();
    refused(world.run(client.open("s0")).unwrap_err());
    mute(source, false);
    world.run(client.refill("s0")).unwrap();
    world.run(client.open("s0")).unwrap();
    assert_eq!(world.held(0, &[0]), world.held(1, &[0]));
}

/// Nothing could be dropped on the first of its cores.
#[test]
fn a_server_that_is_refused_to_open_opens_none_of_its_cores() {
    let world = World::new(2, 2, 2);
    let client = world.connect(config());
    let keys: Vec<[u8; 1]> = (0..60).map(|key| [key]).filter(|key| world.servers[0][1].shard.owns(key)).collect();
    for key in &keys {
        world.run(client.set(key, b"v")).unwrap().everywhere().unwrap();
    }
    let fill = world.run(client.begin_fill("s0")).unwrap();
    let cuts = async {
        until(|| world.held(0, &keys[0]).is_none()).await;
        world.servers[1].iter().for_each(|core| mute(&core.endpoint, true));
    };
    world.run(join(client.fill("s0", fill), cuts)).0.unwrap_err();
    let error = world.run(client.open("s0")).unwrap_err();
    assert!(matches!(error, ClusterError::HasHoles { .. }), "{error}");
    let infos = world.run(client.status()).remove(0).unwrap();
    assert!(infos.iter().all(|info| info.state == ReplicaState::Filling), "{infos:?}");
}

/// It lost nothing by that fill.
#[test]
fn a_server_that_was_empty_before_a_fill_that_failed_can_be_opened() {
    let mut world = World::new(2, 2, 2);
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.start(0, ReplicaState::Closed);
    let turns = || {
        let stats = world.servers[0][1].endpoint.stats();
        stats.handlers.iter().find(|handler| handler.req_type == TURN).map_or(0, |handler| handler.requests)
    };
    let fill = world.run(client.begin_fill("s0")).unwrap();
    let cuts = async {
        until(|| turns() == 2).await;
        world.servers[1].iter().for_each(|core| mute(&core.endpoint, true));
    };
    world.run(join(client.fill("s0", fill), cuts)).0.unwrap_err();
    world.run(client.open("s0")).unwrap();
    assert!(world.run(client.is_open("s0")).unwrap());
}
