//! Operations, versions, and clusters that are described in two ways.

use std::time::Duration;

use dunlin_kv::KvCluster;
use dunlin_kv::client::Outcome;
use dunlin_kv::cluster::{ClusterError, Copies, Description, ServerError, Written};
use dunlin_kv::wire::ReplicaState;
use dunlin_net::fault::Faults;
use dunlin_store::{Condition, Moment, Put, Refused};

use crate::world::{NOW, World, config};

#[test]
fn an_item_is_on_its_replicas_and_nowhere_else() {
    let world = World::new(4, 2, 2);
    let client = world.connect(config());
    let keys: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        let written = world.run(client.set(key.as_bytes(), key.as_bytes())).unwrap().everywhere().unwrap();
        assert_eq!((written.reached, written.absent, written.had_item), (2, 0, false));
        assert_eq!(world.holders(key.as_bytes()), world.replicas(key.as_bytes()));
        let versions = world.replicas(key.as_bytes()).into_iter().map(|server| world.held(server, key.as_bytes()));
        assert!(versions.flatten().all(|(_, version)| version == written.version));
    }
    let values = world.run(client.multi_get(&keys)).unwrap();
    assert!(keys.iter().zip(values).all(|(key, value)| value.as_deref() == Some(key.as_bytes())));
    assert_eq!(world.run(client.get(b"none")).unwrap(), None);
    assert!(world.run(client.delete(b"key-7")).unwrap().everywhere().unwrap().had_item);
    assert!(!world.run(client.delete(b"key-7")).unwrap().everywhere().unwrap().had_item);
    assert_eq!(world.holders(b"key-7"), [0; 0]);
    let (facts, value) = world.run(client.read(b"key-8")).unwrap().unwrap();
    assert_eq!((&value[..], facts.cas), (&b"key-8"[..], world.held(world.replicas(b"key-8")[0], b"key-8").unwrap().1));
    assert!(matches!(world.run(client.get(&[0; 251])), Err(ClusterError::Key(_))));
    assert!(matches!(world.run(client.set(b"", b"")), Err(ClusterError::Key(_))));
}

#[test]
fn the_last_writer_wins_whatever_clocks_say() {
    let world = World::new(3, 3, 1);
    let ahead = KvCluster::new(&world.client, world.cluster.clone(), {
        let mut config = config();
        config.wall_micros = || NOW + 300_000_000;
        config
    })
    .unwrap();
    let behind = world.connect(config());
    world.run(ahead.set(b"k", b"of the one whose clock is ahead")).unwrap().everywhere().unwrap();
    let written = world.run(behind.set(b"k", b"later")).unwrap().everywhere().unwrap();
    assert_eq!((written.reached, written.had_item), (3, true));
    for server in 0..3 {
        assert_eq!(world.held(server, b"k"), Some((b"later".to_vec(), written.version)));
    }
    assert!(world.run(behind.delete(b"k")).unwrap().everywhere().unwrap().had_item);
    world.run(ahead.set(b"k", b"again")).unwrap().everywhere().unwrap();
    let deleting = KvCluster::new(&world.client, world.cluster.clone(), config()).unwrap();
    assert!(world.run(deleting.delete(b"k")).unwrap().everywhere().unwrap().had_item);
    assert_eq!(world.holders(b"k"), [0; 0]);
}

#[test]
fn a_clock_that_is_wrong_by_far_is_refused() {
    let world = World::new(2, 2, 1);
    let seconds = (NOW / 1_000_000) as u32;
    let moment = Moment { now: seconds - 1000, wall_ahead: 1000 };
    world.servers.iter().flatten().for_each(|core| core.shard.set_moment(moment));
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    let ahead = KvCluster::new(&world.client, world.cluster.clone(), {
        let mut config = config();
        config.wall_micros = || NOW + 700_000_000;
        config
    })
    .unwrap();
    let error = world.run(ahead.set(b"k", b"w")).unwrap_err();
    let ClusterError::NoReplica { missed, .. } = &error else { panic!("{error}") };
    assert!(missed.iter().all(|missed| matches!(missed.error, ServerError::ClockAhead { .. })), "{error}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn one_replica_decides_about_conditions() {
    let world = World::new(3, 2, 1);
    let client = world.connect(config());
    let put = |condition| Put { condition, ..Put::default() };
    let absent = world.run(client.put(b"k", b"one", put(Condition::Absent))).unwrap().everywhere().unwrap();
    let error = world.run(client.put(b"k", b"two", put(Condition::Absent))).unwrap_err();
    assert!(matches!(error, ClusterError::Refused(Refused::Exists)), "{error}");
    let changed = put(Condition::Unchanged(absent.version));
    world.run(client.put(b"k", b"three", changed)).unwrap().everywhere().unwrap();
    let error = world.run(client.put(b"k", b"four", changed)).unwrap_err();
    assert!(matches!(error, ClusterError::Refused(Refused::Changed)), "{error}");
    let error = world.run(client.put(b"none", b"x", put(Condition::Present))).unwrap_err();
    assert!(matches!(error, ClusterError::Refused(Refused::NotFound)), "{error}");
    for server in world.replicas(b"k") {
        assert_eq!(world.held(server, b"k").unwrap().0, b"three");
    }
    // Many at once: one wins, and all replicas have its value.
    let adds = (0..20u8).map(|number| {
        let client = client.clone();
        async move { client.put(b"lock", &[number], put(Condition::Absent)).await.is_ok() }
    });
    let won: Vec<usize> = world
        .run(futures::future::join_all(adds))
        .into_iter()
        .enumerate()
        .filter(|(_, won)| *won)
        .map(|(number, _)| number)
        .collect();
    assert_eq!(won.len(), 1);
    for server in world.replicas(b"lock") {
        assert_eq!(world.held(server, b"lock").unwrap().0, [won[0] as u8]);
    }
}

#[test]
fn concurrent_writers_leave_replicas_equal() {
    let world = World::new(3, 3, 2);
    let others = [world.another_end(), world.another_end()];
    let clients: Vec<_> = [&world.client, &others[0], &others[1]]
        .into_iter()
        .zip(1..)
        .map(|(end, seed)| {
            let mut config = config();
            config.seed = Some(seed);
            KvCluster::new(end, world.cluster.clone(), config).unwrap()
        })
        .collect();
    for round in 0..20u8 {
        let writes = clients.iter().zip(0..).map(|(client, writer): (_, u8)| {
            let client = client.clone();
            async move { client.set(b"k", &[round, writer]).await.unwrap().everywhere().map(|_| ()) }
        });
        assert!(world.run(futures::future::join_all(writes)).iter().all(Result::is_ok));
        let held: Vec<_> = (0..3).map(|server| world.held(server, b"k")).collect();
        assert!(held[0].is_some() && held.iter().all(|other| *other == held[0]), "{held:?}");
    }
}

#[test]
fn plain_clients_read_and_do_not_write() {
    let world = World::new(2, 2, 1);
    let cluster = world.connect(config());
    world.run(cluster.set(b"k", b"v")).unwrap().everywhere().unwrap();
    let address = &world.cluster.servers()[0].address;
    let plain = dunlin_kv::KvClient::new(&world.client, address, dunlin_kv::client::ClientConfig::default());
    assert_eq!(world.run(plain.get(b"k")).unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(world.run(plain.multi_get(&["k", "none"])).unwrap().iter().flatten().count(), 1);
    let refused = [
        world.run(plain.set(b"k", b"w")).err(),
        world.run(plain.delete(b"k")).err(),
        world.run(plain.incr(b"k", 1)).err(),
        world.run(plain.flush()).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(dunlin_kv::client::KvError::Unsupported)), "{error:?}");
    }
    assert_eq!(world.held(0, b"k").unwrap().0, b"v");
}

#[test]
fn another_description_is_noticed() {
    let mut world = World::new(2, 2, 1);
    let other = dunlin_kv::cluster::Description::new("test", 1, world.cluster.servers().to_vec(), 2, 33).unwrap();
    let client = || KvCluster::new(&world.client, other.clone(), config()).unwrap();
    for error in [world.run(client().get(b"k")).unwrap_err(), world.run(client().set(b"k", b"v")).unwrap_err()] {
        let ClusterError::NoReplica { missed, .. } = &error else { panic!("{error}") };
        assert!(missed.iter().all(|missed| matches!(missed.error, ServerError::OtherMap)), "{error}");
    }
    assert_eq!(world.holders(b"k"), [0; 0]);
    // A server that returns with another description, while clients know the one before.
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.start_as(0, ReplicaState::Open, &other);
    let written = world.run(client.set(b"k", b"w")).unwrap();
    assert_eq!(written.reached, 1);
    assert!(matches!(&written.missed[..], [missed] if missed.server == "s0"), "{written:?}");
    assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"w"[..]));
    // Two servers that were given each other's address.
    let mut places = world.cluster.servers().to_vec();
    let (one, two) = (places[0].address.clone(), places[1].address.clone());
    (places[0].address, places[1].address) = (two, one);
    world.start(0, ReplicaState::Open);
    let swapped = dunlin_kv::cluster::Description::new("test", 1, places, 2, 32).unwrap();
    let client = KvCluster::new(&world.client, swapped, config()).unwrap();
    let error = world.run(client.get(b"k")).unwrap_err();
    assert!(error.to_string().contains("the server there is s"), "{error}");
}

/// Of two clusters that were set up from one file, one was given the addresses of the other.
#[test]
fn clusters_of_one_name_do_not_mix() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    world.run(client.set(b"k", b"of the first")).unwrap().everywhere().unwrap();
    let second = Description::new("test", 2, world.cluster.servers().to_vec(), 2, 32).unwrap();
    let other = KvCluster::new(&world.client, second, config()).unwrap();
    let error = world.run(other.set(b"k", b"of the second")).unwrap_err();
    let ClusterError::NoReplica { missed, .. } = &error else { panic!("{error}") };
    assert!(missed.iter().all(|missed| matches!(missed.error, ServerError::OtherMap)), "{error}");
    assert!(world.run(other.get(b"k")).is_err());
    assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"of the first"[..]));
}

/// The packets of the two come in another order at each replica.
#[test]
fn writes_and_deletions_at_once_leave_replicas_equal() {
    let faults = Faults {
        delay: 0.7,
        delay_min: Duration::from_micros(20),
        delay_max: Duration::from_micros(400),
        ..Faults::default()
    };
    let world = World::with_faults(3, 3, 1, 5, faults, Vec::new());
    let ends = [world.another_end(), world.another_end()];
    let clients: Vec<_> = ends
        .iter()
        .zip(1..)
        .map(|(end, seed)| {
            let mut config = config();
            config.seed = Some(seed);
            KvCluster::new(end, world.cluster.clone(), config).unwrap()
        })
        .collect();
    let expired = Put { expires: Some(1), ..Put::default() };
    let absent = Put { condition: Condition::Absent, ..Put::default() };
    let everywhere = |written: Result<Written, ClusterError>| written.unwrap().everywhere().unwrap();
    world.servers.iter().flatten().for_each(|core| core.shard.set_now((NOW / 1_000_000) as u32));
    for round in 0..150u32 {
        let key = round.to_le_bytes();
        let puts = async {
            match round % 3 {
                0 => _ = everywhere(clients[0].set(&key, b"v").await),
                1 => _ = everywhere(clients[0].put(&key, b"v", expired).await),
                // It is decided by one, and may be deleted at the others before.
                _ => _ = clients[0].put(&key, b"v", absent).await,
            }
        };
        let other = async {
            match round % 3 {
                1 => everywhere(clients[1].set(&key, b"w").await),
                _ => everywhere(clients[1].delete(&key).await),
            }
        };
        world.run(futures::future::join(puts, other));
        let held: Vec<_> = (0..3).map(|server| world.held(server, &key)).collect();
        assert!(held.iter().all(|other| *other == held[0]), "round {round}: {held:?}");
    }
}

#[test]
fn a_clock_that_is_ahead_counts_for_its_keys_only() {
    let world = World::new(2, 2, 1);
    let ahead = KvCluster::new(&world.another_end(), world.cluster.clone(), {
        let mut config = config();
        config.wall_micros = || NOW + 300_000_000;
        config
    })
    .unwrap();
    let behind = world.connect(config());
    world.run(ahead.delete(b"k")).unwrap().everywhere().unwrap();
    let written = world.run(behind.set(b"k", b"v")).unwrap().everywhere().unwrap();
    assert_eq!(world.holders(b"k"), [0, 1]);
    assert!(written.version >> 12 > NOW + 300_000_000, "it is above the deletion");
    let written = world.run(behind.set(b"other", b"v")).unwrap().everywhere().unwrap();
    assert!(written.version >> 12 < NOW + 1000, "{}", written.version);
}

#[test]
fn a_write_ends_at_its_deadline_and_says_what_is_not_known() {
    let mut world = World::new(3, 3, 1);
    let mut config = config();
    config.deadline = Duration::from_millis(20);
    let client = world.connect(config);
    // No session yet: it would take 50 ms to find out that there is nobody.
    world.hung[2] = true;
    let begun = world.client.now();
    let written = world.run(client.set(b"k", b"v")).unwrap();
    assert!(world.client.now() - begun < 22_000_000, "{} ns", world.client.now() - begun);
    assert_eq!(written.reached, 2);
    assert!(matches!(&written.missed[..], [missed] if missed.server == "s2"), "{written:?}");
    assert_eq!(written.missed[0].error.outcome(), Outcome::MaybeExecuted);
}

#[test]
fn a_hundred_thousand_keys_are_few_requests_at_a_time() {
    let world = World::new(3, 2, 2);
    let mut config = config();
    config.in_flight_max = 8;
    config.deadline = Duration::from_secs(9);
    let client = world.connect(config);
    for number in 0..50u32 {
        world.run(client.set(&(number * 2000).to_le_bytes(), &number.to_le_bytes())).unwrap().everywhere().unwrap();
    }
    let keys: Vec<[u8; 4]> = (0..100_000u32).map(u32::to_le_bytes).collect();
    let (values, trace) = world.run(client.multi_get_traced(&keys));
    let values = values.unwrap();
    let found: Vec<usize> =
        values.iter().enumerate().filter(|(_, value)| value.is_some()).map(|(place, _)| place).collect();
    assert_eq!(found, (0..50).map(|number| number * 2000).collect::<Vec<_>>());
    assert_eq!(trace.parts.iter().map(|part| part.keys).sum::<usize>(), 100_000, "each was asked for once");
    let is_during =
        |part: &dunlin_kv::cluster::PartTrace, time| part.sent <= time && part.ended.is_none_or(|ended| ended > time);
    for part in &trace.parts {
        assert!(part.keys <= 1024);
        let together = trace.parts.iter().filter(|other| is_during(other, part.sent)).count();
        assert!(together <= 8, "{together} at {:?}", part.sent);
    }
    assert!(trace.parts.iter().any(|part| part.sent > part.ready), "some waited");
}

#[test]
fn duplicates_ask_two_replicas() {
    let world = World::new(3, 2, 1);
    let mut config = config();
    config.copies = Copies::Two;
    let client = world.connect(config);
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    let (values, trace) = world.run(client.multi_get_traced(&["k"]));
    assert_eq!(values.unwrap()[0].as_deref(), Some(&b"v"[..]));
    let mut servers: Vec<&str> = trace.parts.iter().map(|part| part.server.as_str()).collect();
    servers.sort_unstable();
    let names: Vec<String> = world.replicas(b"k").iter().map(|server| format!("s{server}")).collect();
    assert_eq!(servers, names);
}

#[test]
fn a_deletion_with_a_higher_version_is_no_item() {
    let world = World::new(2, 2, 1);
    let ahead = KvCluster::new(&world.another_end(), world.cluster.clone(), {
        let mut config = config();
        config.wall_micros = || NOW + 300_000_000;
        config
    });
    assert!(!world.run(ahead.unwrap().delete(b"k")).unwrap().everywhere().unwrap().had_item);
    let client = world.connect(config());
    assert!(!world.run(client.delete(b"k")).unwrap().everywhere().unwrap().had_item);
    assert!(!world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap().had_item);
    assert!(world.run(client.set(b"k", b"w")).unwrap().everywhere().unwrap().had_item);
}
