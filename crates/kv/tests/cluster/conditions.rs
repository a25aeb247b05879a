//! Conditional writes: which replica decides, and what the others have by then.

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{ClusterError, ServerError};
use dunlin_rpc::EndpointConfig;
use dunlin_store::{Condition, Put, Refused, Store};

use crate::world::{Client, End, NOW, World, config, mute, until};

fn put(condition: Condition) -> Put {
    Put { condition, ..Put::default() }
}

/// A client whose clock is ahead.
fn ahead(world: &World) -> Client {
    let mut config = config();
    config.wall_micros = || NOW + 300_000_000;
    KvCluster::new(&world.another_end(), world.cluster.clone(), config).unwrap()
}

/// A client that waits long for servers, and its endpoint.
fn patient(world: &World) -> (Client, End) {
    let end = world.another_end_with(EndpointConfig::default());
    (KvCluster::new(&end, world.cluster.clone(), config()).unwrap(), end)
}

/// Has a server hold a value with this version.
fn plant(world: &World, server: u32, key: &[u8], version: u64) {
    let core = world.servers[server as usize].iter().find(|core| core.shard.owns(key)).unwrap();
    let store = &mut *core.shard.store.borrow_mut();
    let key = store.key(key).unwrap();
    store.put(&key, b"planted", Put { cas: Some(version), ..Put::default() }).unwrap();
}

/// Returns the servers of a key: the one that decides, and the other.
fn order(world: &World, key: &[u8]) -> [u32; 2] {
    world.cluster.replicas_of(world.cluster.partition(key)).try_into().unwrap()
}

/// What it holds is from before the fill, and has a higher version than the write.
#[test]
fn a_server_that_is_filled_decides_nothing() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    let version = world.run(ahead(&world).set(b"k", b"old")).unwrap().everywhere().unwrap().version;
    let [first, second] = order(&world, b"k");
    plant(&world, second, b"k", version + 1);
    world.run(client.begin_fill(&format!("s{first}"))).unwrap();
    let written = world.run(client.put(b"k", b"new", put(Condition::Unchanged(version + 1)))).unwrap();
    assert_eq!((written.reached, written.missed.len()), (2, 0), "{written:?}");
    assert_eq!(world.held(second, b"k").unwrap().0, b"new");
}

/// It was made after one replica had decided, and both have it.
#[test]
fn a_deletion_that_is_later_than_a_conditional_write_is_not_missed() {
    let world = World::new(2, 2, 1);
    let (client, end) = patient(&world);
    world.run(client.set(b"other", b"v")).unwrap().everywhere().unwrap();
    let [first, _] = order(&world, b"k");
    let ahead = ahead(&world);
    let deletes = async {
        until(|| world.held(first, b"k").is_some()).await;
        mute(&end, true);
        assert!(ahead.delete(b"k").await.unwrap().everywhere().unwrap().had_item);
        mute(&end, false);
    };
    let adds = client.put(b"k", b"v", put(Condition::Absent));
    let (written, ()) = world.run(futures::future::join(adds, deletes));
    let written = written.unwrap();
    assert_eq!((written.reached, written.missed.len()), (2, 0), "{written:?}");
    assert_eq!(world.holders(b"k"), [0; 0]);
}

#[test]
fn a_replica_with_a_later_write_than_the_one_that_decided_is_named() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    for key in [b"k1", b"k2", b"k3", b"k4"] {
        let [_, second] = order(&world, key);
        plant(&world, second, key, (NOW + 300_000_000) << 12);
        let written = world.run(client.put(key, b"v", put(Condition::Absent))).unwrap();
        assert_eq!((written.reached, written.missed.len()), (1, 1), "{written:?}");
        assert_eq!(written.missed[0].server, format!("s{second}"));
        assert!(matches!(written.missed[0].error, ServerError::Refused(Refused::Changed)), "{written:?}");
    }
}

#[test]
fn a_value_that_is_too_long_is_no_matter_of_replicas() {
    let world = World::new(2, 2, 1);
    let client = world.connect(config());
    let value = vec![0; (1 << 20) + 1];
    for condition in [Condition::Always, Condition::Absent, Condition::Unchanged(7)] {
        let error = world.run(client.put(b"k", &value, put(condition))).unwrap_err();
        assert!(matches!(error, ClusterError::Refused(Refused::TooLarge { max: 1_048_576, .. })), "{error}");
    }
}

/// Also if its version has to be raised first.
#[test]
fn a_conditional_write_says_whether_there_was_an_item() {
    let world = World::new(1, 1, 1);
    let client = world.connect(config());
    let had_item = |condition| {
        let written = world.run(client.put(b"k", b"v", put(condition))).unwrap().everywhere().unwrap();
        (written.had_item, written.version)
    };
    assert!(!had_item(Condition::Absent).0);
    let (had, version) = had_item(Condition::Present);
    assert!(had && had_item(Condition::Unchanged(version)).0);
    world.run(ahead(&world).set(b"k", b"of the one whose clock is ahead")).unwrap().everywhere().unwrap();
    assert!(had_item(Condition::Present).0);
}

/// One replica makes it at once; the other one has a deletion with a higher version.
#[test]
fn a_write_whose_version_is_raised_does_not_take_itself_for_the_item_before() {
    let mut world = World::new(2, 2, 1);
    let [first, second] = order(&world, b"k");
    let client = world.connect(config());
    world.run(client.set(b"k", b"v")).unwrap().everywhere().unwrap();
    world.run(client.delete(b"k")).unwrap().everywhere().unwrap();
    let ahead = ahead(&world);
    world.hung[first as usize] = true;
    assert_eq!(world.run(ahead.delete(b"k")).unwrap().reached, 1);
    world.hung[first as usize] = false;
    let written = world.run(client.set(b"k", b"w")).unwrap().everywhere().unwrap();
    assert_eq!(written.reached, 2);
    assert!(!written.had_item);
    assert_eq!(world.held(first, b"k"), world.held(second, b"k"));
}
