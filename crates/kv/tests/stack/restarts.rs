//! Servers that go away, and come back as others.

use dunlin_kv::client::{ClientConfig, KvError, Outcome};
use dunlin_net::Addr;
use dunlin_rpc::CallError;
use std::time::Duration;

use crate::world::World;

#[test]
fn a_restarted_server_is_found_again() {
    let mut world = World::new(2);
    let client = world.connect(ClientConfig::default());
    world.run(client.set(b"k", b"v")).unwrap();
    // It says good-bye; the next operation connects anew, to a server of other cores, which has forgotten everything.
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
    // To nobody, all fail together.
    let client = dunlin_kv::KvClient::new(&world.client, &Addr::Node(77), ClientConfig::default());
    let results = world.run(futures::future::join_all((0..50u8).map(|i| {
        let client = client.clone();
        async move { client.get(&[i]).await.map(|_| ()) }
    })));
    assert!(results.iter().all(|result| matches!(result, Err(KvError::Connect(_)))), "{results:?}");
}
