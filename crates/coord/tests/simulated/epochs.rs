//! A service that fails over; its requests name the epoch in which they were sent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{CoordError, Coordinator, Health, Standing, join_after_leases};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig, Turning};
use dunlin_serve::epoch::{EpochClient, Found, Refused, admit, stamp};
use dunlin_sim::{Datacenter, SimTransport};
use futures::future::join_all;

use crate::BEAT;
use crate::harness::{self, Cluster, FAILURE_TIMEOUT, Setup, User};

const ADD: u8 = 7;
/// The servers are on the first hosts after the replicas.
const REPLICAS: u32 = 3;
const CALLS: u32 = 300;

/// What both servers have executed, visible only to the test.
#[derive(Default)]
struct Executed {
    epoch: Cell<u64>,
    by: RefCell<BTreeMap<u64, u32>>,
    refused: Cell<u32>,
    /// Recorded here, because a panic in a handler ends only its request.
    wrong: RefCell<Vec<String>>,
}

impl Executed {
    fn note(&self, server: u64, epoch: u64) {
        let before = self.epoch.replace(epoch);
        if epoch < before {
            self.wrong.borrow_mut().push(format!("server {server} in epoch {epoch}, after another did in {before}"));
        }
        *self.by.borrow_mut().entry(server).or_default() += 1;
    }
}

/// Serves as a member that joins again after it was marked as failed, with this heartbeat interval.
async fn serve(user: User, id: u64, every: Duration, executed: Rc<Executed>) {
    let (coordinator, current) = (user.coordinator(), Rc::new(RefCell::new(None::<Standing>)));
    let (standing, timers) = (current.clone(), user.timers.clone());
    // A member that joins before any watchman reigns is not safe before its first heartbeat.
    user.timers.sleep(every).await;
    let handler = move |request: dunlin_rpc::Request<'_>| {
        let epoch = standing.borrow().as_ref().and_then(|standing| standing.check(timers.boot_now()).ok());
        // A server that may not work as a member has no epoch.
        let admitted = epoch.ok_or(Refused { asked: 0, epoch: 0 }).and_then(|epoch| admit(epoch, request.payload()));
        match admitted {
            Ok(_) => {
                executed.note(id, epoch.unwrap_or(0));
                request.respond(&id.to_le_bytes());
            }
            Err(refused) => {
                executed.refused.set(executed.refused.get() + 1);
                standing.borrow().iter().for_each(|standing| standing.heard_of(refused.asked));
                refused.answer(request);
            }
        }
    };
    user.endpoint.register(ADD, handler).unwrap();
    loop {
        match join_after_leases(&coordinator, id, b"", BEAT).await {
            Ok(membership) => {
                let standing = Standing::new(&membership);
                current.replace(Some(standing.clone()));
                standing.attend(&coordinator, every).await;
            }
            Err(error) => assert!(error.is_of_the_moment(), "{error}"),
        }
    }
}

fn channel(user: &User, server: u64) -> Channel<SimTransport> {
    let config = ChannelConfig { turning: Turning::Always, seed: Some(server), ..ChannelConfig::default() };
    Channel::new(&user.endpoint, vec![Datacenter::addr(REPLICAS + server as u32 - 1, 0)], config)
}

/// The live member with the lowest id serves: there is one in each epoch.
async fn look_up(user: &User) -> Result<Found<SimTransport>, CoordError> {
    let members = user.coordinator().members().await?;
    let serves = members.members.iter().find(|member| member.health == Health::Live);
    let serves = serves.ok_or_else(|| CoordError::NotFound { what: "server".into() })?;
    Ok(Found { epoch: members.epoch, channel: channel(user, serves.id) })
}

fn client(user: &User) -> EpochClient<SimTransport, CoordError> {
    let looking = user.clone();
    EpochClient::new(&user.endpoint, async move || look_up(&looking).await)
}

#[test]
fn a_server_that_was_taken_for_failed_executes_nothing_after_its_successor() {
    let executed = Rc::<Executed>::default();
    let mut cluster = Cluster::new(31, REPLICAS as usize);
    for id in [1, 2] {
        let executed = executed.clone();
        cluster.servant(move |user| serve(user, id, BEAT, executed));
    }
    let policy = CallPolicy::default().within(Duration::from_millis(20));
    // This client asks the first server in the first epoch that it knows of, whatever the answers are.
    cluster.servant(move |user| async move {
        let first = loop {
            match look_up(&user).await {
                Ok(found) => break found,
                Err(_) => user.timers.sleep(BEAT).await,
            }
        };
        loop {
            let _ = first.channel.call_with(ADD, stamp(first.epoch, b"").unwrap(), policy).await;
            user.timers.sleep(Duration::from_millis(1)).await;
        }
    });
    // Another looks up before each call, so it learns of a new epoch before the other server does.
    cluster.servant(move |user| async move {
        loop {
            let client = client(&user);
            let _ = client.call(ADD, b"", policy).await;
            user.timers.sleep(Duration::from_millis(1)).await;
        }
    });
    let done = Rc::new(Cell::new(0));
    let calls = done.clone();
    cluster.user(move |user| async move {
        let client = client(&user);
        while calls.get() < CALLS {
            if client.call(ADD, b"", policy).await.is_ok() {
                calls.set(calls.get() + 1);
            }
            user.timers.sleep(Duration::from_millis(5)).await;
        }
    });
    cluster.mute(REPLICAS, 3 * FAILURE_TIMEOUT.as_millis() as u64);
    cluster.run(60, 0);
    assert!(executed.wrong.borrow().is_empty(), "something was executed by {:?}", executed.wrong);
    let (by, refused) = (executed.by.borrow(), executed.refused.get());
    println!("{by:?} executed, {refused} refused, last in epoch {}", executed.epoch.get());
    assert!(by.len() == 2 && by.values().all(|calls| *calls > 20), "both have served: {by:?}");
    assert!(refused > 20 && done.get() == CALLS, "{refused} refused");
}

/// A server sends its next heartbeat when a request names a later epoch, however far off the regular one is. So the
/// epoch is settled soon if all servers get requests.
#[test]
fn a_server_learns_of_a_later_epoch_from_who_asks_it() {
    const EVERY: Duration = Duration::from_secs(1);
    const JOINS: u64 = 10;
    let executed = Rc::<Executed>::default();
    let mut cluster = Cluster::with(32, 3, Setup { failure_timeout: Some(5 * EVERY), ..Setup::default() });
    for id in [1, 2] {
        let executed = executed.clone();
        cluster.servant(move |user| serve(user, id, EVERY, executed));
    }
    cluster.user(move |user| async move {
        let client = client(&user);
        user.timers.sleep(3 * EVERY).await;
        client.call(ADD, b"", CallPolicy::default().within(EVERY)).await.unwrap();
        let other = channel(&user, 2);
        for id in 3..3 + JOINS {
            let joined = user.coordinator().join(id, b"").await.unwrap();
            user.coordinator().leave(&joined).await.unwrap();
            let begun = user.timers.now();
            let policy = CallPolicy::default().within(EVERY);
            let _ = other.call_with(ADD, stamp(joined.epoch + 1, b"").unwrap(), policy).await;
            while client.call(ADD, b"", policy).await.is_err() {}
            let took = Duration::from_nanos(user.timers.now() - begun);
            assert!(took < EVERY / 2, "{took:?} after member {id} came and went");
            user.timers.sleep(EVERY / 4).await;
        }
    });
    cluster.run(60, 0);
}

/// What a look-up waits for when its call is over, others wait for too: who the cluster is, or a session with its
/// leader.
#[test]
fn a_call_that_ends_during_its_look_up_leaves_the_coordinator_to_others() {
    let mut cluster = Cluster::new(36, REPLICAS as usize);
    cluster.user(|user| async move {
        for micros in [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000] {
            let (coordinator, channel) = (Rc::new(user.coordinator()), channel(&user, 1));
            let looking = coordinator.clone();
            let client = EpochClient::new(&user.endpoint, async move || {
                let epoch = looking.members().await?.epoch;
                Ok::<_, CoordError>(Found { epoch, channel: channel.clone() })
            });
            let policy = CallPolicy::default().within(Duration::from_micros(micros));
            client.call(ADD, b"", policy).await.unwrap_err();
            coordinator.members().await.unwrap();
        }
    });
    cluster.run(60, 0);
}

/// A sender may claim any epoch.
#[test]
fn epochs_that_nobody_has_begun_cause_a_bounded_number_of_heartbeats() {
    const EVERY: Duration = Duration::from_secs(1);
    const SPELL: Duration = Duration::from_secs(5);
    let mut cluster = Cluster::with(33, 1, Setup { failure_timeout: Some(5 * EVERY), ..Setup::default() });
    cluster.user(|user| async move {
        user.timers.sleep(EVERY).await;
        let coordinator = user.coordinator();
        let standing = Standing::new(&coordinator.join(1, b"").await.unwrap());
        let reads = || user.shared.counters[0].get().reads;
        let before = reads();
        harness::first(standing.attend(&coordinator, EVERY), user.timers.sleep(SPELL)).await;
        let (calm, before) = (reads() - before, reads());
        let invents = async {
            let end = user.timers.now() + SPELL.as_nanos() as u64;
            for epoch in 1 << 40.. {
                if user.timers.now() > end {
                    return;
                }
                standing.heard_of(epoch);
                user.timers.sleep(Duration::from_millis(1)).await;
            }
        };
        harness::first(standing.attend(&coordinator, EVERY), invents).await;
        let early = reads() - before - calm;
        // The watchman asks, too, slightly more or less often.
        assert!((40..=60).contains(&early), "{early} heartbeats in {SPELL:?}, when {calm} questions are usual");
    });
    cluster.run(60, 0);
}

/// Both do as every server does: join, attend, and join again.
#[test]
fn two_processes_of_one_id_let_all_members_work() {
    const EVERY: Duration = Duration::from_secs(1);
    const SPELL: Duration = Duration::from_secs(4);
    let mut cluster = Cluster::with(34, 3, Setup { failure_timeout: Some(5 * EVERY), ..Setup::default() });
    for _ in 0..2 {
        cluster.servant(|user| async move {
            let coordinator = user.coordinator();
            loop {
                let membership = join_after_leases(&coordinator, 7, b"", EVERY).await.unwrap();
                Standing::new(&membership).attend(&coordinator, EVERY).await;
            }
        });
    }
    cluster.user(|user| async move {
        let coordinator = user.coordinator();
        user.timers.sleep(EVERY).await;
        let standing = Standing::new(&coordinator.join(1, b"").await.unwrap());
        let worked = Cell::new(0);
        let works = async {
            for _ in 0..SPELL.as_millis() {
                worked.set(worked.get() + u32::from(standing.check(coordinator.now()).is_ok()));
                user.timers.sleep(Duration::from_millis(1)).await;
            }
        };
        assert_eq!(harness::first(standing.attend(&coordinator, EVERY), works).await, None);
        let epochs = coordinator.members().await.unwrap().epoch - standing.membership().epoch;
        println!("{epochs} epochs, {} checks", worked.get());
        assert!(epochs <= 2 && worked.get() > 1000, "{epochs} epochs, {} checks of {SPELL:?}", worked.get());
    });
    cluster.run(60, 0);
}

/// It holds up an epoch until it has failed. The others ask less and less often whether that is settled.
#[test]
fn a_silent_member_causes_few_heartbeats_of_others() {
    const EVERY: Duration = Duration::from_secs(1);
    const SPELL: Duration = Duration::from_millis(4500);
    const MEMBERS: u64 = 20;
    let mut cluster = Cluster::with(35, 1, Setup { failure_timeout: Some(5 * EVERY), ..Setup::default() });
    cluster.user(|user| async move {
        user.timers.sleep(EVERY).await;
        let coordinator = user.coordinator();
        let attend = async |id: u64| {
            let standing = Standing::new(&coordinator.join(id, b"").await.unwrap());
            standing.attend(&coordinator, EVERY).await
        };
        let reads = || user.shared.counters[0].get().reads;
        let measured = async {
            user.timers.sleep(3 * EVERY).await;
            let before = reads();
            user.timers.sleep(SPELL).await;
            let (calm, before) = (reads() - before, reads());
            coordinator.join(100, b"").await.unwrap();
            harness::first(attend(101), user.timers.sleep(SPELL)).await;
            let early = reads() - before - calm;
            assert!((MEMBERS..5 * MEMBERS).contains(&early), "{early} heartbeats of {MEMBERS} members in {SPELL:?}");
        };
        assert!(harness::first(join_all((1..=MEMBERS).map(attend)), measured).await.is_none());
    });
    cluster.run(60, 0);
}
