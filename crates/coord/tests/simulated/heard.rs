//! How heartbeats are heard: after an election, and among other reads.

use std::time::Duration;

use dunlin_coord::{CoordError, Coordinator, attend};
use futures::future::join_all;

use crate::BEAT;
use crate::harness::{self, Cluster, FAILURE_TIMEOUT, Setup};

/// As set by the harness.
const OPERATION: Duration = Duration::from_secs(5);

fn unwatched() -> Setup {
    Setup { is_unwatched: true, ..Setup::default() }
}

/// No watchman reigns, as shortly after each election.
#[test]
fn members_ask_less_and_less_often_until_they_are_heard() {
    const MEMBERS: u64 = 20;
    let mut cluster = Cluster::with(11, 1, unwatched());
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let joins = join_all((1..=MEMBERS).map(|id| coordinator.join(id, b""))).await;
        let joined: Vec<_> = joins.into_iter().map(Result::unwrap).collect();
        for heard in join_all(joined.iter().map(|member| coordinator.heartbeat(member))).await {
            assert_eq!(heard.unwrap_err(), CoordError::TimedOut { may_have_run: false });
        }
    });
    cluster.run(20, 0);
    let reads = cluster.shared.counters[0].get().reads;
    // At first each asks once in a millisecond, in the end every 32 ms.
    assert!((100 * MEMBERS..300 * MEMBERS).contains(&reads), "{reads} tries of {MEMBERS} members in {OPERATION:?}");
}

/// The time limit covers all tries together, not the last one alone.
#[test]
fn a_heartbeat_takes_the_time_of_one_operation_at_most() {
    let mut cluster = Cluster::with(12, 1, unwatched());
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let member = coordinator.join(1, b"").await.unwrap();
        let begun = user.timers.now();
        let heard = coordinator.heartbeat(&member).await;
        assert_eq!(heard, Err(CoordError::TimedOut { may_have_run: false }));
        let took = Duration::from_nanos(user.timers.now() - begun);
        assert!(took < OPERATION + Duration::from_millis(50), "{took:?}");
    });
    cluster.stand_still(0, 4000);
    cluster.run(20, 0);
}

/// On the sessions of those answers, heartbeats would wait for many of them.
#[test]
fn a_heartbeat_does_not_wait_behind_long_answers() {
    const ANSWERS: usize = 300;
    let mut cluster = Cluster::new(13, 3);
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let member = coordinator.join(1, b"").await.unwrap();
        for number in 0..12 {
            let path = format!("/long/{number}");
            coordinator.set(&path, &[7; 60_000], dunlin_coord::Condition::Always).await.unwrap();
            coordinator.heartbeat(&member).await.unwrap();
        }
        let views = join_all((0..ANSWERS).map(|_| coordinator.view("/long")));
        let beats = async {
            loop {
                let begun = user.timers.now();
                coordinator.heartbeat(&member).await.unwrap();
                let took = Duration::from_nanos(user.timers.now() - begun);
                assert!(took < Duration::from_millis(5), "{took:?}");
                user.timers.sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(harness::first(views, beats).await.is_some_and(|views| views.iter().any(Result::is_ok)));
    });
    cluster.run(20, 0);
}

/// Each read takes some milliseconds, and there is one place for them.
#[test]
fn members_stay_while_others_fill_the_places_of_reads() {
    const READERS: usize = 60;
    let mut cluster = Cluster::with(14, 3, Setup { reads_max: Some(1), ..Setup::default() });
    cluster.user(|user| async move {
        let (coordinator, others) = (user.coordinator(), [user.coordinator(), user.coordinator()]);
        let member = coordinator.join(1, b"").await.unwrap();
        let readers = others.iter().flat_map(|other| (0..READERS).map(move |_| other));
        let readers = join_all(readers.map(async |other| {
            loop {
                let _ = other.members().await;
            }
        }));
        let attending = attend(&coordinator, &member, BEAT, |_| ());
        let failed = harness::first(attending, user.timers.sleep(8 * FAILURE_TIMEOUT));
        let failed = harness::first(failed, async { drop(readers.await) }).await;
        assert_eq!(failed, Some(None), "a member that sends heartbeats was taken for failed");
    });
    cluster.delay_packets(2);
    cluster.run(20, 0);
}
