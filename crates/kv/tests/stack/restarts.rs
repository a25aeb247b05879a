//! Servers that go away, and return as different ones.

use dunlin_kv::client::{ClientConfig, KvClient, KvError, Outcome};
use dunlin_net::Addr;
use dunlin_rpc::CallError;
use futures::FutureExt as _;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::world::{Begin, SERVER, World};

#[test]
fn a_restarted_server_is_found_again() {
    let mut world = World::new(2);
    let client = world.connect(ClientConfig::default());
    world.run(client.set(b"k", b"v")).unwrap();
    // It says good-bye; the next operation reconnects, to a server with another number of cores and without any items.
    world.cores.clear();
    world.start(3, 2);
    assert_eq!(world.run(client.get(b"k")).unwrap(), None);
    assert_eq!(world.run(client.map()).unwrap().routing.cores(), 3);
    world.run(client.set(b"k", b"w")).unwrap();
    assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"w"[..]));
}

#[test]
fn a_server_that_is_gone_is_an_error_that_says_what_is_known() {
    let mut world = World::new(1);
    let client = world.connect(ClientConfig::default());
    let mut cores = std::mem::take(&mut world.cores);
    // Nobody runs it, so it is silent.
    let error = world.run(client.set(b"k", b"v")).unwrap_err();
    assert!(matches!(error, KvError::Call { error: CallError::PeerSilent }), "{error}");
    assert_eq!(error.outcome(), Outcome::MaybeExecuted);
    let error = world.run(client.set(b"k", b"v")).unwrap_err();
    assert!(matches!(error, KvError::Connect(_)), "{error}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    std::mem::swap(&mut world.cores, &mut cores);
    world.run(client.set(b"k", b"v")).unwrap();
}

/// Nobody turns a client's endpoint between two calls of `block_on`, for example. Then the operation begins before the
/// endpoint's next turn, or right after it.
#[test]
fn a_client_that_was_not_turned_for_long_is_served_as_before() {
    let world = World::new(3);
    let client = world.connect(ClientConfig::default());
    world.run(client.set(b"count", b"0")).unwrap();
    let sessions = || world.cores.iter().map(|core| core.endpoint.stats().sessions).sum::<u32>();
    for begin in [Begin::BeforeATurn, Begin::AfterATurn] {
        for idle in [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(5)] {
            world.leave_client(idle);
            // In this world, the server's cores give up a client after 50 ms.
            assert_eq!(sessions(), 0);
            // Many at once, none of which is retried once it was sent.
            let calls = futures::future::join_all((0..20).map(|_| client.incr(b"count", 1)));
            let counted = world.run_from(begin, calls);
            assert!(counted.iter().all(Result::is_ok), "{counted:?}");
            assert_eq!(sessions(), 12, "four with each core");
            world.leave_client(idle);
            let values = world.run_from(begin, client.multi_get(&["count", "a", "b", "c"])).unwrap();
            assert_eq!(values.iter().flatten().count(), 1);
        }
    }
    assert_eq!(world.run(client.get(b"count")).unwrap().as_deref(), Some(&b"120"[..]));
}

/// Operations that are answered from memory, for example, or that are begun and dropped.
#[test]
fn operations_that_do_not_turn_the_endpoint_are_no_use_of_its_sessions() {
    let world = World::new(1);
    let client = world.connect(ClientConfig::default());
    world.run(client.set(b"count", b"0")).unwrap();
    for _ in 0..20 {
        world.leave_client(Duration::from_millis(100));
        assert!(client.map().now_or_never().is_none_or(|map| map.is_ok()));
        assert!(client.get(b"count").now_or_never().is_none());
    }
    let counted = world.run_from(Begin::BeforeATurn, client.incr(b"count", 1));
    assert_eq!(counted.unwrap().value, 1);
}

#[test]
fn a_deadline_ends_an_operation() {
    let mut world = World::new(1);
    let client = world.connect(ClientConfig::default()).with_deadline(Some(Duration::from_millis(1)));
    let cores = std::mem::take(&mut world.cores);
    let error = world.run(client.get(b"k")).unwrap_err();
    assert!(matches!(error, KvError::Call { error: CallError::DeadlineExceeded }), "{error}");
    world.cores = cores;
    assert_eq!(world.run(client.with_deadline(None).get(b"k")).unwrap(), None);
}

#[test]
fn operations_that_wait_for_a_connection_share_it() {
    let world = World::new(2);
    let client = dunlin_kv::KvClient::new(&world.client, &Addr::Node(1), ClientConfig::default());
    let sets = (0..50u8).map(|i| {
        let client = client.clone();
        async move { client.set(&[i], &[i]).await.map(|_| ()) }
    });
    let results = world.run(futures::future::join_all(sets));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let sessions = world.client.stats().sessions;
    assert_eq!(sessions, 8, "four with each core");
    // With no server there, all fail together.
    let client = dunlin_kv::KvClient::new(&world.client, &Addr::Node(77), ClientConfig::default());
    let results = world.run(futures::future::join_all((0..50u8).map(|i| {
        let client = client.clone();
        async move { client.get(&[i]).await.map(|_| ()) }
    })));
    assert!(results.iter().all(|result| matches!(result, Err(KvError::Connect(_)))), "{results:?}");
}

/// The caller gives it up at every stage: before the handshake is over, before the map is there, and before all sessions
/// are open.
#[test]
fn an_operation_that_is_dropped_while_it_connects_leaves_no_session() {
    let world = World::new(2);
    let (mut dropped, mut done) = (0, 0);
    for turns in 0..100 {
        let client = KvClient::new(&world.client, &Addr::Node(SERVER), ClientConfig::default());
        let mut operation = pin!(client.get(b"k"));
        let mut left = turns;
        let bounded = poll_fn(|context| {
            left -= 1;
            let polled = operation.as_mut().poll(context).map(Some);
            if polled.is_pending() && left < 0 { Poll::Ready(None) } else { polled }
        });
        *(if world.run(bounded).is_some() { &mut done } else { &mut dropped }) += 1;
    }
    assert!(dropped > 5 && done > 5, "{dropped} were dropped, {done} were done");
    world.run(world.client.timers().sleep(Duration::from_secs(1)));
    assert_eq!(world.client.stats().sessions, 0);
}
