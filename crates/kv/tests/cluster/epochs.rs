//! Clients and servers of a cluster whose members a cluster manager knows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{ClusterError, Directory, Seen};
use dunlin_kv::service::Fence;
use dunlin_kv::wire::ReplicaState;
use dunlin_net::fault::Faults;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::world::{Client, World, config};

/// The epoch in which a server may serve; 0 if in none.
#[derive(Debug, Default)]
struct Told {
    epoch: AtomicU64,
    heard_of: AtomicU64,
}

impl Fence for Told {
    fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::Relaxed)).filter(|epoch| *epoch > 0)
    }

    fn heard_of(&self, epoch: u64) {
        self.heard_of.fetch_max(epoch, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Book {
    seen: RefCell<Seen>,
    looks: Cell<u32>,
}

impl Directory for Book {
    fn look(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Seen, String>> {
        self.looks.set(self.looks.get() + 1);
        let seen = self.seen.borrow().clone();
        async move { if seen.epoch == 0 { Err("nobody answers".into()) } else { Ok(seen) } }.boxed_local()
    }
}

struct Managed {
    world: World,
    told: Vec<Arc<Told>>,
    book: Rc<Book>,
    client: Client,
}

impl Managed {
    fn new(servers: u32) -> Managed {
        let told: Vec<Arc<Told>> = (0..servers).map(|_| Arc::default()).collect();
        let fences = told.iter().map(|told| Some(told.clone() as Arc<dyn Fence>)).collect();
        let world = World::with_faults(servers, servers as usize, 1, 3, Faults::default(), fences);
        let book = Rc::new(Book::default());
        let client = KvCluster::with_directory(&world.client, world.cluster.clone(), config(), book.clone()).unwrap();
        let managed = Managed { world, told, book, client };
        managed.begin(1, &vec![true; servers as usize]);
        managed
    }

    /// Begins an epoch, which all live servers know at once. The others are not safe.
    fn begin(&self, epoch: u64, live: &[bool]) {
        self.book.seen.replace(Seen { epoch, live: live.to_vec() });
        for (told, is_live) in self.told.iter().zip(live) {
            told.epoch.store(if *is_live { epoch } else { 0 }, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_server_that_failed_has_no_part_in_writes_and_is_not_read() {
    let managed = Managed::new(3);
    let Managed { world, book, client, .. } = &managed;
    let written = world.run(client.set(b"k", b"one")).unwrap().everywhere().unwrap();
    assert_eq!((written.reached, written.absent), (3, 0));
    managed.begin(2, &[true, false, true]);
    let looks = book.looks.get();
    let written = world.run(client.set(b"k", b"two")).unwrap().everywhere().unwrap();
    assert_eq!((written.reached, written.absent), (2, 1), "it learnt of the epoch from those that refused");
    assert_eq!(book.looks.get(), looks + 1);
    assert_eq!(world.held(1, b"k").unwrap().0, b"one", "it is cut off, and holds the old value");
    for _ in 0..20 {
        assert_eq!(world.run(client.get(b"k")).unwrap().as_deref(), Some(&b"two"[..]));
    }
    // A client that has not heard of it does not read there either: the server refuses.
    let stale = Rc::new(Book::default());
    stale.seen.replace(Seen { epoch: 1, live: vec![true; 3] });
    let other = KvCluster::with_directory(&world.client, world.cluster.clone(), config(), stale).unwrap();
    for _ in 0..20 {
        assert_eq!(world.run(other.get(b"k")).unwrap().as_deref(), Some(&b"two"[..]));
    }
    let error = world.run(other.set(b"k", b"three")).unwrap_err();
    assert!(matches!(error, ClusterError::NoReplica { .. }), "{error}");
    assert_eq!(world.held(0, b"k").unwrap().0, b"two");
}

#[test]
fn a_server_that_is_behind_is_told_and_waited_for() {
    let managed = Managed::new(2);
    let Managed { world, told, client, .. } = &managed;
    managed.begin(2, &[true, true]);
    told[1].epoch.store(1, Ordering::Relaxed);
    let catches_up = async {
        world.client.timers().sleep(std::time::Duration::from_millis(30)).await;
        assert_eq!(told[1].heard_of.load(Ordering::Relaxed), 2);
        told[1].epoch.store(2, Ordering::Relaxed);
    };
    let (written, ()) = world.run(futures::future::join(client.set(b"k", b"v"), catches_up));
    assert_eq!(written.unwrap().everywhere().unwrap().reached, 2);
    assert_eq!(world.holders(b"k"), [0, 1]);
}

/// A writer that knows the epoch before: its writes reach the server that is filled, or are there before it is copied.
#[test]
fn writes_of_the_epoch_before_do_not_pass_a_server_that_is_filled() {
    for delay in 0..40u64 {
        let mut managed = Managed::new(2);
        managed.begin(2, &[false, true]);
        let Managed { world, book, client, .. } = &managed;
        for key in 0..20u8 {
            let written = world.run(client.set(&[key], b"before")).unwrap().everywhere().unwrap();
            assert_eq!((written.reached, written.absent), (1, 1));
        }
        let filler =
            KvCluster::with_directory(&world.another_end(), world.cluster.clone(), config(), book.clone()).unwrap();
        managed.world.start(0, ReplicaState::Closed);
        let managed = &managed;
        let Managed { world, client, .. } = managed;
        // It takes writes, joins, and is copied to.
        let fills = async {
            let fill = filler.begin_fill("s0").await.unwrap();
            managed.begin(3, &[true, true]);
            filler.fill("s0", fill).await.unwrap();
        };
        let writes = async {
            world.client.timers().sleep(std::time::Duration::from_micros(10 * delay)).await;
            for key in 0..20u8 {
                client.set(&[key], &[key]).await.unwrap().everywhere().unwrap();
            }
        };
        world.run(futures::future::join(fills, writes));
        for key in 0..20u8 {
            assert_eq!(world.held(0, &[key]).map(|(value, _)| value), Some(vec![key]), "delay {delay}");
            assert_eq!(world.held(0, &[key]), world.held(1, &[key]));
        }
    }
}

#[test]
fn without_a_cluster_manager_nothing_is_guessed() {
    let managed = Managed::new(2);
    managed.book.seen.replace(Seen::default());
    let error = managed.world.run(managed.client.get(b"k")).unwrap_err();
    assert!(matches!(error, ClusterError::Directory(_)), "{error}");
    let error = managed.world.run(managed.client.set(b"k", b"v")).unwrap_err();
    assert!(matches!(error, ClusterError::Directory(_)), "{error}");
    managed.begin(2, &[false, false]);
    let error = managed.world.run(managed.client.get(b"k")).unwrap_err();
    assert!(error.to_string().contains("none is live"), "{error}");
}

/// One replica has it; then the cluster manager does not say who the others are.
#[test]
fn a_write_that_failed_after_a_replica_made_it_is_in_doubt() {
    let managed = Managed::new(2);
    let Managed { world, told, book, client, .. } = &managed;
    world.run(client.set(b"k", b"one")).unwrap().everywhere().unwrap();
    told[1].epoch.store(2, Ordering::Relaxed);
    book.seen.replace(Seen::default());
    let error = world.run(client.set(b"k", b"two")).unwrap_err();
    let ClusterError::InDoubt(why) = &error else { panic!("{error}") };
    assert!(matches!(**why, ClusterError::Directory(_)), "{why}");
    assert_eq!(error.outcome(), dunlin_kv::client::Outcome::MaybeExecuted);
    assert_eq!(world.held(0, b"k").unwrap().0, b"two");
}
