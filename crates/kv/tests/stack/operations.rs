//! Each operation, once.

use dunlin_kv::KvClient;
use dunlin_kv::client::{ClientConfig, KvError, Pipeline};
use dunlin_kv::metrics::Operation;
use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{self, Limits, ServerMap, Status};
use dunlin_net::Addr;
use dunlin_rpc::{Endpoint, EndpointConfig, Request};
use dunlin_store::{Condition, Moment, Put, Refused};
use futures::future::join_all;
use futures::poll;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::world::{SERVER, World};

fn refused<R: std::fmt::Debug>(result: Result<R, KvError>) -> Refused {
    match result.unwrap_err() {
        KvError::Refused(refused) => refused,
        error => panic!("not refused: {error}"),
    }
}

#[test]
fn a_multi_get_that_a_busy_core_pushes_back_is_tried_again() {
    const NODE: u32 = 50;
    let world = World::new(1);
    let server = Endpoint::new(world.network.endpoint(NODE).unwrap(), EndpointConfig::default()).unwrap();
    let map = ServerMap {
        incarnation: 1,
        routing: Routing::new([1; 16], 1).unwrap(),
        limits: Limits { value_bytes_max: 1 },
        addresses: vec![vec![Addr::Node(NODE).to_string()]],
    };
    let mut encoded = vec![0; map.encoded_len()];
    map.encode(&mut encoded);
    server.register(wire::MAP, move |request| request.respond(&encoded)).unwrap();
    let pushed_back = Cell::new(0);
    let answer = move |request: Request<'_>| {
        pushed_back.set(pushed_back.get() + 1);
        if pushed_back.get() <= 5 { request.push_back() } else { request.respond(&[Status::NotFound as u8]) }
    };
    server.register(wire::MULTI_GET, answer).unwrap();
    let client = KvClient::new(&world.client, &Addr::Node(NODE), ClientConfig::default());
    let mut work = pin!(client.multi_get(&["bird"]));
    let values = loop {
        world.network.advance(Duration::from_micros(10));
        server.run_once();
        if let Some(values) = world.client.poll_once(work.as_mut()) {
            break values;
        }
    };
    assert_eq!(values.unwrap(), [None]);
}

/// Its task goes on with another operation, and polls the first one later.
#[test]
fn an_operation_does_not_wait_for_one_that_nobody_polls() {
    let world = World::new(2);
    let client = KvClient::new(&world.client, &Addr::Node(SERVER), ClientConfig::default());
    world.run(async {
        let mut first = pin!(client.get(b"first"));
        assert!(poll!(first.as_mut()).is_pending());
        assert_eq!(client.get(b"second").await.unwrap(), None);
        assert_eq!(first.await.unwrap(), None);
    });
}

#[test]
fn every_operation_does_what_it_says() {
    let world = World::new(3);
    let client = world.connect(ClientConfig::default());
    world.set_now(1000);
    world.run(async {
        assert_eq!(client.get(b"k").await.unwrap(), None);
        client.set(b"k", b"one").await.unwrap();
        assert_eq!(&client.get(b"k").await.unwrap().unwrap()[..], b"one");
        assert_eq!(refused(client.add(b"k", b"two").await), Refused::Exists);
        client.replace(b"k", b"two").await.unwrap();
        assert_eq!(refused(client.replace(b"none", b"two").await), Refused::NotFound);

        let (facts, value) = client.read(b"k").await.unwrap().unwrap();
        assert_eq!((&value[..], facts.flags, facts.expires), (&b"two"[..], 0, None));
        assert_eq!(refused(client.cas(b"k", b"three", facts.cas + 1).await), Refused::Changed);
        let stored = client.cas(b"k", b"three", facts.cas).await.unwrap();
        assert_eq!(client.read(b"k").await.unwrap().unwrap().0.cas, stored.cas);

        client.append(b"k", b" end").await.unwrap();
        client.prepend(b"k", b"start ").await.unwrap();
        assert_eq!(&client.get(b"k").await.unwrap().unwrap()[..], b"start three end");
        assert_eq!(refused(client.append(b"none", b"x").await), Refused::NotFound);
        assert_eq!(refused(client.incr(b"k", 1).await), Refused::NotANumber);

        client.set(b"n", b"10").await.unwrap();
        assert_eq!(client.incr(b"n", 5).await.unwrap().value, 15);
        assert_eq!(client.decr(b"n", 100).await.unwrap().value, 0);

        let put = Put { flags: 0xdead_beef, expires: Some(2000), ..Put::default() };
        client.put(b"f", b"", put).await.unwrap();
        let value = client.get(b"f").await.unwrap().unwrap();
        assert_eq!((value.flags(), value.len()), (0xdead_beef, 0));
        assert!(client.touch(b"f", Some(3000)).await.unwrap());
        assert!(!client.touch(b"none", None).await.unwrap());
        assert_eq!(client.read(b"f").await.unwrap().unwrap().0.expires, Some(3000));
        assert_eq!(client.read_and_touch(b"f", Some(1500)).await.unwrap().unwrap().0.expires, Some(1500));
        world.set_now(1500);
        assert_eq!(client.get(b"f").await.unwrap(), None);

        assert_eq!(refused(client.delete_unchanged(b"k", Some(0)).await), Refused::Changed);
        assert!(client.delete(b"k").await.unwrap());
        assert!(!client.delete(b"k").await.unwrap());
        client.flush().await.unwrap();
        assert_eq!(client.get(b"n").await.unwrap(), None);
        assert!(matches!(client.snapshot().await, Err(KvError::Unsupported)));
    });
}

/// Times from and to clients are wall-clock times. A step of the wall clock neither expires an item nor keeps it alive.
#[test]
fn a_step_of_the_wall_clock_expires_nothing_and_keeps_nothing() {
    for wall_ahead in [-500, 0, 100_000] {
        let world = World::new(2);
        let client = world.connect(ClientConfig::default());
        let tell = |now, wall_ahead| world.set_moment(Moment { now, wall_ahead });
        tell(1000, 0);
        world.run(async {
            let put = Put { expires: Some(1060), ..Put::default() };
            for key in [&b"a"[..], b"b", b"c"] {
                client.put(key, b"value", put).await.unwrap();
            }
            // The wall clock was set.
            let wall = |now: i64| (now + wall_ahead) as u32;
            tell(1001, wall_ahead);
            let (facts, _) = client.read(b"a").await.unwrap().unwrap();
            assert_eq!(facts.expires, Some(wall(1060)), "59 seconds are left");
            client.put(b"d", b"value", Put { expires: Some(wall(1031)), ..put }).await.unwrap();
            assert!(client.touch(b"b", Some(wall(1031))).await.unwrap());
            let (facts, _) = client.read_and_touch(b"c", Some(wall(1031))).await.unwrap().unwrap();
            assert_eq!(facts.expires, Some(wall(1031)));
            tell(1030, wall_ahead);
            for key in [&b"a"[..], b"b", b"c", b"d"] {
                assert!(client.get(key).await.unwrap().is_some(), "{key:?} lives on");
            }
            tell(1031, wall_ahead);
            for key in [&b"b"[..], b"c", b"d"] {
                assert_eq!(client.get(key).await.unwrap(), None, "{key:?}");
            }
            assert!(client.get(b"a").await.unwrap().is_some());
            tell(1060, wall_ahead);
            assert_eq!(client.get(b"a").await.unwrap(), None);
        });
    }
}

#[test]
fn each_key_is_on_one_core_only() {
    let world = World::new(4);
    let client = world.connect(ClientConfig::default());
    let keys: Vec<String> = (0..400).map(|i| format!("key-{i}")).collect();
    world.run(join_all(keys.iter().map(|key| client.set(key.as_bytes(), key.as_bytes()))));
    let mut total = 0;
    for core in &world.cores {
        let items = dunlin_store::Store::stats(&*core.shard.store.borrow()).items;
        assert!((50..150).contains(&items), "{items}");
        assert_eq!(core.shard.strays.get().not_owned, 0);
        total += items;
    }
    assert_eq!(total, 400);
    let gets = world.run(join_all(keys.iter().map(|key| client.get(key.as_bytes()))));
    for (key, got) in keys.iter().zip(gets) {
        assert_eq!(&got.unwrap().unwrap()[..], key.as_bytes());
    }
}

#[test]
fn a_multi_get_is_one_request_to_each_owner() {
    let world = World::new(2);
    let client = world.connect(ClientConfig::default());
    let keys: Vec<String> = (0..600).map(|i| format!("key-{i}")).collect();
    world.run(join_all(keys.iter().step_by(2).map(|key| async {
        let put = Put { flags: key.len() as u32, condition: Condition::Absent, ..Put::default() };
        client.put(key.as_bytes(), key.as_bytes(), put).await.unwrap();
    })));
    let handled =
        || world.cores.iter().map(|core| core.endpoint.stats().counters.requests_handled).collect::<Vec<u64>>();
    let mut puts = handled().into_iter();
    let values = world.run(client.multi_get(&keys)).unwrap();
    for (i, (key, value)) in keys.iter().zip(&values).enumerate() {
        let expected = (i % 2 == 0).then_some(key.as_bytes());
        assert_eq!(value.as_deref(), expected, "{key}");
        assert!(value.as_ref().is_none_or(|value| value.flags() == key.len() as u32));
    }
    for core in &world.cores {
        assert_eq!(core.endpoint.stats().counters.requests_handled - puts.next().unwrap(), 1);
    }
    assert!(world.run(client.multi_get::<&[u8]>(&[])).unwrap().is_empty());
    let stats = world.run(client.stats()).unwrap();
    let (gets, adds) = (stats.operation(Operation::Get), stats.operation(Operation::Add));
    assert_eq!((gets.hits, gets.misses, adds.hits, stats.cores.len()), (300, 300, 300, 2));
    assert_eq!(stats.store().items, 300);
    assert!(stats.uptime_micros > 0);
}

#[test]
fn a_pipeline_ends_each_operation_once() {
    let world = World::new(2);
    let client = world.connect(ClientConfig::default());
    let seen = Rc::new(RefCell::new(vec![None; 200]));
    let ends = seen.clone();
    let pipeline = world.run(Pipeline::new(&client, move |finished| {
        let before = ends.borrow_mut()[finished.tag as usize].replace(finished.status());
        assert_eq!(before, None, "operation {} ended twice", finished.tag);
    }));
    let pipeline = pipeline.unwrap();
    let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_be_bytes).collect();
    let finish = |count: usize| {
        world.run(std::future::poll_fn(|_| {
            if pipeline.in_flight() == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }));
        assert_eq!(seen.borrow().iter().flatten().count(), count);
    };
    for (tag, key) in keys.iter().enumerate() {
        let put = wire::Operation::Put { key, value: b"value", put: Put::default() };
        pipeline.submit(&put, tag as u64).unwrap();
    }
    assert_eq!(pipeline.in_flight(), 100);
    finish(100);
    for (tag, key) in keys.iter().enumerate() {
        pipeline.submit(&wire::Operation::Get { key }, 100 + tag as u64).unwrap();
    }
    finish(200);
    assert!(seen.borrow().iter().all(|status| *status == Some(Some(Status::Done))));
    assert!(matches!(pipeline.submit(&wire::Operation::Get { key: b"" }, 0), Err(KvError::Key(_))));
}
