//! The embedded back end in the simulated datacenter.

mod epochs;
mod harness;
mod heard;
mod watches;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::conformance;
use dunlin_coord::{
    Condition, CoordError, Coordinator, Happening, Health, Lease, Scope, Watch, attend, campaign, join_after_leases,
};
use dunlin_sim::Datacenter;
use dunlin_trial::Random;

use harness::{Cluster, FAILURE_TIMEOUT, LOOK_EVERY, Setup, Site, User};

/// Seeds from 1 up to this many, or up to `DUNLIN_SEEDS`.
fn seeds(default: u64) -> RangeInclusive<u64> {
    1..=std::env::var("DUNLIN_SEEDS").map_or(default, |seeds| seeds.parse().expect("DUNLIN_SEEDS is a number"))
}

fn conforms(seed: u64, replicas: usize, delay_max: Duration, faults: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, replicas);
    cluster.user(move |user| async move { conformance::check(&Site { user, delay_max }).await });
    cluster.run(1000, faults);
    cluster
}

#[test]
fn three_nodes_conform() {
    for seed in 1..=3 {
        conforms(seed, 3, 4 * LOOK_EVERY, 0);
    }
}

#[test]
fn one_node_conforms() {
    for seed in 1..=3 {
        conforms(seed, 1, 4 * LOOK_EVERY, 0);
    }
}

#[test]
fn the_suite_holds_while_leaders_are_killed_cut_off_and_stopped() {
    let (mut runs, mut reigns) = (0, 0);
    for seed in seeds(5) {
        // Each change of leaders gives everyone the whole timeout again, so failures are noticed later.
        let cluster = conforms(seed, 3, 12 * FAILURE_TIMEOUT, 3);
        let shared = cluster.shared.clone();
        drop(cluster);
        let watched = shared.watched.get();
        println!("{watched:?}");
        (runs, reigns) = (runs + 1, reigns + watched.reigns);
    }
    // Not in each run, since some faults are shorter than an election timeout, or hit other replicas.
    assert!(reigns > 2 * runs, "leaders have changed: {reigns} reigns in {runs} runs");
}

const BEAT: Duration = Duration::from_millis(40);
const LEASE: Duration = Duration::from_millis(60);
const LOCKS: usize = 2;

/// Which leases the holders themselves believe they hold: virtual time totally orders everything.
#[derive(Default)]
struct Locks {
    held: RefCell<HashMap<String, u64>>,
    highest: RefCell<HashMap<String, u64>>,
    grants: Cell<u64>,
    rejoins: Cell<u64>,
}

impl Locks {
    fn take(&self, lease: &Lease, by: u64) {
        let before = self.held.borrow_mut().insert(lease.name.clone(), by);
        assert_eq!(before, None, "{by} was granted {} while another relies on it", lease.name);
        let before = self.highest.borrow_mut().insert(lease.name.clone(), lease.token);
        assert!(before < Some(lease.token), "a token comes after {before:?}: {}", lease.token);
        self.grants.set(self.grants.get() + 1);
    }

    fn give(&self, lease: &Lease, by: u64) {
        assert_eq!(self.held.borrow_mut().remove(&lease.name), Some(by));
    }
}

/// Relies on a lease for some time, but never beyond its safe end.
async fn rely(user: &User, coordinator: &impl Coordinator, lease: &mut Lease, random: &mut Random) {
    for _ in 0..random.between(0, 4) {
        let until = (user.timers.now() + random.between(1, 30_000_000)).min(lease.safe_until);
        user.timers.sleep_until(until).await;
        if until == lease.safe_until {
            return;
        }
        let end = user.timers.sleep_until(lease.safe_until);
        let mut longer = lease.clone();
        match harness::first(coordinator.renew(&mut longer), end).await {
            Some(Ok(())) => *lease = longer,
            Some(Err(_)) | None => return,
        }
    }
}

async fn contend(user: User, id: u64, locks: Rc<Locks>) {
    let coordinator = user.coordinator();
    let mut random = Random::new(id);
    let mut membership = coordinator.join(id, b"").await.unwrap();
    for _ in 0..300 {
        let name = format!("/locks/{}", random.index(LOCKS));
        match coordinator.acquire(&membership, &name, LEASE).await {
            Ok(mut lease) => {
                if user.timers.now() < lease.safe_until {
                    locks.take(&lease, id);
                    rely(&user, &coordinator, &mut lease, &mut random).await;
                    locks.give(&lease, id);
                }
                if random.chance(50) {
                    let _ = coordinator.release(&lease).await;
                }
            }
            Err(CoordError::NotLive { .. }) => {
                locks.rejoins.set(locks.rejoins.get() + 1);
                membership = join_after_leases(&coordinator, id, b"", LEASE / 10).await.unwrap();
            }
            Err(CoordError::Held { .. } | CoordError::TimedOut { .. } | CoordError::Backend { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // Sometimes long enough to be marked as failed.
        let pause =
            if random.chance(2) { 2 * FAILURE_TIMEOUT } else { Duration::from_micros(random.between(0, 20_000)) };
        user.timers.sleep(pause).await;
        let _ = coordinator.heartbeat(&membership).await;
    }
}

#[test]
fn nobody_relies_on_a_lease_that_another_has_while_leaders_fail() {
    for seed in seeds(8) {
        let locks = Rc::new(Locks::default());
        let mut cluster = Cluster::new(seed, 3);
        for id in 11..15 {
            let locks = locks.clone();
            cluster.user(move |user| contend(user, id, locks));
        }
        cluster.run(300, 25);
        let shared = cluster.shared.clone();
        drop(cluster);
        println!("{} grants, {} joined again, {:?}", locks.grants.get(), locks.rejoins.get(), shared.watched.get());
        assert!(locks.grants.get() > 100 && locks.rejoins.get() > 0 && shared.watched.get().lapses > 0);
    }
}

#[test]
fn a_member_that_stops_is_failed_and_watchers_are_told() {
    let mut cluster = Cluster::new(5, 3);
    let epoch = Rc::new(Cell::new(0));
    let heard = epoch.clone();
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        let membership = coordinator.join(1, b"").await.unwrap();
        // For some time; then it is silent.
        let beating = attend(&coordinator, &membership, BEAT, |heartbeat| heard.set(heartbeat.epoch));
        assert_eq!(harness::first(beating, user.timers.sleep(3 * FAILURE_TIMEOUT)).await, None);
        let stopped = user.timers.now();
        let other = user.coordinator();
        let mut watch = Watch::new(&other, Scope::Members, membership.incarnation);
        let event = watch.next().await.unwrap();
        assert_eq!(event.happening, Happening::Failed { member: 1, epoch: 2 });
        let took = Duration::from_nanos(user.timers.now() - stopped);
        assert!(took + BEAT >= FAILURE_TIMEOUT && took < FAILURE_TIMEOUT + 4 * LOOK_EVERY, "{took:?}");
        let why = attend(&coordinator, &membership, BEAT, |_| panic!("it has failed")).await;
        assert!(matches!(why, CoordError::NotLive { member: 1, .. }), "{why}");
    });
    cluster.run(10, 0);
    assert_eq!(epoch.get(), 1);
}

#[test]
fn who_could_not_be_heard_has_not_failed() {
    let mut cluster = Cluster::new(6, 1);
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let membership = coordinator.join(1, b"").await.unwrap();
        let beating = attend(&coordinator, &membership, BEAT, |_| ());
        assert_eq!(harness::first(beating, user.timers.sleep(Duration::from_secs(4))).await, None);
        let members = coordinator.members().await.unwrap();
        assert_eq!((members.epoch, members.members[0].health), (1, Health::Live));
    });
    // The only node stops for five times the failure timeout, and leads before and after.
    cluster.stand_still(0, 1000);
    cluster.run(10, 0);
    let shared = cluster.shared.clone();
    drop(cluster);
    let watched = shared.watched.get();
    assert!(watched.failures == 0 && watched.reigns + watched.late_looks == 2, "{watched:?}");
}

/// The holder of a lease is suspended with its machine, whose clock stops: when it resumes, another member has the
/// lease, and the former holder notices.
#[test]
fn a_lease_runs_out_while_its_holder_is_suspended() {
    let mut cluster = Cluster::new(7, 3);
    let (granted, checks) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (taken, count) = (granted.clone(), checks.clone());
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        let membership = coordinator.join(1, b"").await.unwrap();
        user.timers.sleep_until(180_000_000).await;
        let lease = coordinator.acquire(&membership, "/lease", LEASE).await.unwrap();
        // It checks before each use.
        while coordinator.now() < lease.safe_until {
            assert!(!taken.get(), "another has the lease");
            count.set(count.get() + 1);
            user.timers.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(coordinator.renew(&mut lease.clone()).await.is_ok(), !taken.get());
        let begun = coordinator.now();
        coordinator.sleep_until(begun + 1_000_000).await;
        assert!(coordinator.now() >= begun + 1_000_000);
    });
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        user.timers.sleep_until(190_000_000).await;
        let membership = coordinator.join(2, b"").await.unwrap();
        loop {
            match coordinator.acquire(&membership, "/lease", LEASE).await {
                Ok(_) => return granted.set(true),
                Err(CoordError::Held { .. }) => user.timers.sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
    });
    // The holder's host is the first after the replicas.
    cluster.suspend(3, 200);
    cluster.run(10, 0);
    assert!(checks.get() > 0);
}

/// 200 members stop together: a few looks find them, and all findings of a look are decided together.
#[test]
fn many_failures_at_once_are_decided_in_one_step() {
    const MEMBERS: u64 = 200;
    let mut cluster = Cluster::new(8, 3);
    let epoch = Rc::new(Cell::new(0));
    let last = epoch.clone();
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        let mut revision = 0;
        for member in 1..=MEMBERS {
            let membership = coordinator.join(member, b"").await.unwrap();
            revision = membership.incarnation;
            coordinator.acquire(&membership, &format!("/{member}"), Duration::from_secs(3600)).await.unwrap();
        }
        let mut watch = Watch::new(&coordinator, Scope::Members, revision);
        for member in 1..=MEMBERS {
            let event = watch.next().await.unwrap();
            let Happening::Failed { member: failed, epoch } = event.happening else { panic!("{event}") };
            assert_eq!(failed, member);
            last.set(epoch);
        }
    });
    cluster.run(60, 0);
    let shared = cluster.shared.clone();
    drop(cluster);
    let watched = shared.watched.get();
    assert!(watched.failures == MEMBERS && watched.steps < MEMBERS / 10, "{watched:?}");
    assert_eq!(epoch.get(), MEMBERS + watched.steps, "one epoch for each step");
}

/// A watcher of a quiet scope that polls rarely does not fall behind the history of busy scopes.
#[test]
fn a_quiet_watch_follows() {
    let mut cluster = Cluster::new(9, 3);
    cluster.user(move |user| async move {
        let coordinator = user.coordinator();
        let membership = coordinator.join(1, b"").await.unwrap();
        let mut watch = Watch::new(&coordinator, Scope::Members, membership.incarnation);
        for round in 0..4 * harness::HISTORY {
            coordinator.set("/noise", &round.to_le_bytes(), Condition::Always).await.unwrap();
            coordinator.heartbeat(&membership).await.unwrap();
            if round % 50 == 0 {
                assert_eq!(harness::first(watch.next(), user.timers.sleep(20 * LOOK_EVERY)).await, None);
            }
        }
        coordinator.leave(&membership).await.unwrap();
        let event = watch.next().await.unwrap();
        assert!(matches!(event.happening, Happening::Left { member: 1, .. }), "{event}");
    });
    cluster.run(300, 0);
}

/// The watchman has an outdated command line: two of the three replicas were replaced, and their addresses are unused.
#[test]
fn members_fail_whatever_the_watchman_was_told_of_the_replicas() {
    let gone = [2, 3].map(|id| (id, Datacenter::addr(40 + id as u32, 0)));
    let listed = [(1, Datacenter::addr(0, 0))].into_iter().chain(gone).collect();
    let mut cluster = Cluster::with(1, 3, Setup { listed: Some(listed), ..Setup::default() });
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let membership = coordinator.join(7, b"").await.unwrap();
        user.timers.sleep(8 * FAILURE_TIMEOUT).await;
        let heard = coordinator.heartbeat(&membership).await;
        assert!(matches!(heard, Err(CoordError::NotLive { .. })), "{heard:?}");
    });
    cluster.run(60, 0);
}

/// Heartbeats and renewals are kept outside the state: the log does not grow, and nothing is flushed for them.
#[test]
fn a_thousand_members_are_heard_without_an_entry_of_the_log() {
    const MEMBERS: u64 = 1000;
    let mut cluster = Cluster::new(10, 3);
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        let mut members = Vec::new();
        for id in 1..=MEMBERS {
            // Slow joins must not let the first member fail.
            members.push(coordinator.join(id, b"").await.unwrap());
            let beats = members.iter().filter(|member| member.member % 20 == id % 20);
            futures::future::join_all(beats.map(|member| coordinator.heartbeat(member))).await;
        }
        let mut lease = coordinator.acquire(&members[0], "/lease", Duration::from_secs(1)).await.unwrap();
        let committed = async || coordinator.client().status(1).await.unwrap().committed;
        user.timers.sleep(LOOK_EVERY).await;
        let before = committed().await;
        for _ in 0..5 {
            let beats = futures::future::join_all(members.iter().map(|member| coordinator.heartbeat(member))).await;
            assert!(beats.iter().all(|beat| beat.as_ref().is_ok_and(|beat| beat.epoch == MEMBERS)));
            coordinator.renew(&mut lease).await.unwrap();
        }
        assert_eq!(committed().await, before);
    });
    cluster.run(60, 0);
}

/// The second waits for as long as the first is heard.
#[test]
fn processes_of_one_id_begin_no_epochs() {
    const SPELL: Duration = Duration::from_secs(4);
    let mut cluster = Cluster::new(11, 3);
    let ttl = Duration::from_millis(100);
    cluster.servant(move |user| async move {
        let coordinator = user.coordinator();
        let mut leadership = campaign(&coordinator, 1, "/leader", ttl).await.unwrap();
        let lost = leadership.lost().await;
        panic!("it leads all the time: {lost:?}");
    });
    for _ in 0..2 {
        cluster.servant(move |user| async move {
            user.timers.sleep(FAILURE_TIMEOUT).await;
            let coordinator = user.coordinator();
            let ended = campaign(&coordinator, 7, "/leader", ttl).await.map(|leadership| leadership.token());
            panic!("another leads: {ended:?}");
        });
    }
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        user.timers.sleep(2 * FAILURE_TIMEOUT).await;
        let before = coordinator.members().await.unwrap().epoch;
        user.timers.sleep(SPELL).await;
        assert_eq!(coordinator.members().await.unwrap().epoch, before);
    });
    cluster.run(60, 0);
}

/// Handlers may hold the standing of the first time.
#[test]
fn a_member_that_leads_again_works_in_no_earlier_epoch() {
    const TTL: Duration = Duration::from_millis(80);
    let failure_timeout = Some(Duration::from_secs(2));
    let mut cluster = Cluster::with(12, 3, Setup { failure_timeout, ..Setup::default() });
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        // Until a watchman reigns.
        user.timers.sleep(FAILURE_TIMEOUT).await;
        let mut leadership = campaign(&coordinator, 7, "/leader", TTL).await.unwrap();
        let old = leadership.standing().clone();
        assert_eq!(leadership.lost().await, None);
        assert!(old.check(coordinator.now()).is_ok(), "the lease has ended before the membership");
        drop(leadership);
        let again = campaign(&coordinator, 7, "/leader", TTL).await.unwrap();
        assert!(again.membership().epoch > old.epoch());
        let old = old.check(coordinator.now());
        assert!(old.is_err(), "{old:?} after epoch {}", again.membership().epoch);
        again.resign().await.unwrap();
        // Who leaves comes back without waiting.
        let begun = user.timers.now();
        campaign(&coordinator, 7, "/leader", TTL).await.unwrap();
        let took = Duration::from_nanos(user.timers.now() - begun);
        assert!(took < TTL, "{took:?}");
    });
    cluster.mute(3, 300);
    cluster.run(60, 0);
}
