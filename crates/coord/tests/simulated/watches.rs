//! Watchers that wait at the leader.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{Condition, Coordinator, Scope, Watch};
use futures::future::join_all;

use crate::harness::{self, Cluster, Setup, User};

/// Pushed answers do not wait for this.
const SLOW: Duration = Duration::from_secs(3600);

fn tree(root: &str) -> Scope {
    Scope::Tree { root: root.into() }
}

/// Waits until this many watchers wait at the only replica.
async fn watched_by(user: &User, watchers: u64) {
    while user.shared.counters[0].get().kept_questions != watchers {
        user.timers.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn watchers_are_told_within_a_round_trip() {
    let mut cluster = Cluster::new(21, 3);
    cluster.user(|user| async move {
        let (coordinator, other) = (user.coordinator().watch_every(SLOW), user.coordinator());
        let mut after = other.set("/a/b", b"", Condition::Always).await.unwrap();
        let mut watch = Watch::new(&coordinator, tree("/a"), after);
        for round in 0..20_u8 {
            let changed = async {
                user.timers.sleep(Duration::from_millis(20)).await;
                let begun = user.timers.now();
                after = other.set("/a/b", &[round], Condition::Always).await.unwrap();
                begun
            };
            let told = async {
                let event = watch.next().await.unwrap();
                (event.revision, user.timers.now())
            };
            let (begun, (revision, told)) = futures::join!(changed, told);
            assert_eq!(revision, after);
            let took = Duration::from_nanos(told - begun);
            assert!(took < Duration::from_micros(100), "{took:?}");
        }
    });
    cluster.run(20, 0);
}

/// A watcher whose question ran out of time at the client asks again at once. It does not poll.
#[test]
fn a_quiet_watcher_is_told_within_a_round_trip_after_its_question_was_asked_again() {
    // Questions are asked again every 10 s.
    const QUIET: [Duration; 3] = [Duration::from_secs(11), Duration::from_millis(9_500), Duration::from_secs(21)];
    let mut cluster = Cluster::with(25, 1, Setup { is_unwatched: true, ..Setup::default() });
    cluster.user(|user| async move {
        let (coordinator, other) = (user.coordinator().watch_every(SLOW), user.coordinator());
        let after = coordinator.members().await.unwrap().revision;
        let mut watch = Watch::new(&coordinator, tree("/a"), after);
        for quiet in QUIET {
            let changed = async {
                user.timers.sleep(quiet).await;
                let begun = user.timers.now();
                other.set("/a", b"", Condition::Always).await.unwrap();
                begun
            };
            let told = async {
                watch.next().await.unwrap();
                user.timers.now()
            };
            let (begun, told) = futures::join!(changed, told);
            let took = Duration::from_nanos(told.saturating_sub(begun));
            assert!(took < Duration::from_micros(100), "told {took:?} after {quiet:?} without an event");
        }
    });
    cluster.run(60, 0);
}

/// On five hosts. While nothing happens, none of them sends anything; then all are told at once.
#[test]
fn thousands_of_watchers_of_one_node_cost_memory_and_are_told_together() {
    const HOSTS: u64 = 5;
    const WATCHERS: u64 = 2_000;
    const IDLE: Duration = Duration::from_secs(2);
    // A watchman sends queries, too, periodically.
    let mut cluster = Cluster::with(22, 1, Setup { is_unwatched: true, ..Setup::default() });
    let (told, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for _ in 0..HOSTS {
        let (told, last) = (told.clone(), last.clone());
        cluster.user(move |user| async move {
            let coordinator = user.coordinator();
            let after = coordinator.members().await.unwrap().revision;
            let watching = (0..WATCHERS / HOSTS).map(async |_| {
                let event = Watch::new(&coordinator, tree("/watched"), after).next().await.unwrap();
                told.set(told.get() + 1);
                last.set(user.timers.now());
                event
            });
            join_all(watching).await;
        });
    }
    let (all_told, last_told) = (told.clone(), last.clone());
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        coordinator.set("/beside", b"", Condition::Always).await.unwrap();
        watched_by(&user, WATCHERS).await;
        let counters = || user.shared.counters[0].get();
        let before = counters();
        user.timers.sleep(IDLE).await;
        assert_eq!(
            (counters().reads, counters().kept_questions),
            (before.reads, WATCHERS),
            "nobody asked for anything"
        );
        let begun = user.timers.now();
        coordinator.set("/watched/a", b"", Condition::Always).await.unwrap();
        while all_told.get() < WATCHERS {
            user.timers.sleep(Duration::from_micros(100)).await;
        }
        let took = Duration::from_nanos(last_told.get() - begun);
        println!("the last of {WATCHERS} was told after {took:?}");
        assert!(took < Duration::from_millis(20), "{took:?}");
    });
    cluster.run(60, 0);
}

/// Watchers without a place poll from time to time.
#[test]
fn more_watchers_than_a_node_takes_are_told_later() {
    const WATCHERS: u64 = 6;
    let mut cluster = Cluster::with(23, 1, Setup { watchers_max: Some(2), ..Setup::default() });
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let after = coordinator.members().await.unwrap().revision;
        let watching = (0..WATCHERS).map(async |_| Watch::new(&coordinator, tree("/a"), after).next().await.unwrap());
        let changed = async {
            watched_by(&user, 2).await;
            user.timers.sleep(20 * harness::LOOK_EVERY).await;
            assert!(user.shared.counters[0].get().pushed_back > 0);
            coordinator.set("/a", b"", Condition::Always).await.unwrap()
        };
        let (told, revision) = futures::join!(join_all(watching), changed);
        assert!(told.iter().all(|event| event.revision == revision));
    });
    cluster.run(20, 0);
}

/// A client that drops its watches, or disappears, holds no places.
#[test]
fn watchers_that_are_given_up_make_room() {
    const ROUND: u64 = 50;
    let mut cluster = Cluster::with(24, 1, Setup { watchers_max: Some(ROUND as usize), ..Setup::default() });
    cluster.user(|user| async move {
        for _ in 0..5 {
            let coordinator = user.coordinator().watch_every(SLOW);
            let after = coordinator.members().await.unwrap().revision;
            let watching = join_all((0..ROUND).map(|_| coordinator.changes(&Scope::Leases, after)));
            let given_up = harness::first(watching, user.timers.sleep(Duration::from_millis(200))).await;
            assert!(given_up.is_none());
            user.timers.sleep(Duration::from_millis(20)).await;
        }
        let counters = user.shared.counters[0].get();
        assert_eq!(counters.pushed_back, 0, "{counters:?}");
        assert!(counters.kept_questions <= ROUND);
    });
    cluster.run(20, 0);
}
