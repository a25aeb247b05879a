//! A service that fails over, whose requests say in which epoch they were sent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{CoordError, Coordinator, Health, Standing, join_after_leases};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig, Turning};
use dunlin_serve::epoch::{EpochClient, Found, Refused, admit, stamp};
use dunlin_sim::{Datacenter, SimTransport};

use crate::BEAT;
use crate::harness::{Cluster, FAILURE_TIMEOUT, User};

const ADD: u8 = 7;
/// The servers are on the first hosts after the replicas.
const REPLICAS: u32 = 3;
const CALLS: u32 = 300;

/// What both servers have executed, as nobody but a test can see it.
#[derive(Default)]
struct Executed {
    epoch: Cell<u64>,
    by: RefCell<BTreeMap<u64, u32>>,
    refused: Cell<u32>,
}

impl Executed {
    fn note(&self, server: u64, epoch: u64) {
        let before = self.epoch.replace(epoch);
        assert!(epoch >= before, "server {server} executes something in epoch {epoch}, after another did in {before}");
        *self.by.borrow_mut().entry(server).or_default() += 1;
    }
}

/// Serves as a member, which joins again when it was taken for failed.
async fn serve(user: User, id: u64, executed: Rc<Executed>) {
    let (coordinator, current) = (user.coordinator(), Rc::new(RefCell::new(None::<Standing>)));
    let (standing, timers) = (current.clone(), user.timers.clone());
    // A member that joins before anybody watches is not safe before its first heartbeat.
    user.timers.sleep(BEAT).await;
    let handler = move |request: dunlin_rpc::Request<'_>| {
        let epoch = standing.borrow().as_ref().and_then(|standing| standing.check(timers.boot_now()).ok());
        // One that may not work as a member is in no epoch.
        let admitted = epoch.ok_or(Refused { asked: 0, epoch: 0 }).and_then(|epoch| admit(epoch, request.payload()));
        match admitted {
            Ok(_) => {
                executed.note(id, epoch.unwrap_or(0));
                request.respond(&id.to_le_bytes());
            }
            Err(refused) => {
                executed.refused.set(executed.refused.get() + 1);
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
                standing.attend(&coordinator, BEAT).await;
            }
            Err(error) => assert!(error.is_of_the_moment(), "{error}"),
        }
    }
}

fn channel(user: &User, server: u64) -> Channel<SimTransport> {
    let config = ChannelConfig { turning: Turning::Always, seed: Some(server), ..ChannelConfig::default() };
    Channel::new(&user.endpoint, vec![Datacenter::addr(REPLICAS + server as u32 - 1, 0)], config)
}

/// The live member with the lowest id serves: in one epoch that is one.
async fn look_up(user: &User) -> Result<Found<SimTransport>, CoordError> {
    let members = user.coordinator().members().await?;
    let serves = members.members.iter().find(|member| member.health == Health::Live);
    let serves = serves.ok_or_else(|| CoordError::NotFound { what: "server".into() })?;
    Ok(Found { epoch: members.epoch, channel: channel(user, serves.id) })
}

#[test]
fn a_server_that_was_taken_for_failed_executes_nothing_after_its_successor() {
    let executed = Rc::<Executed>::default();
    let mut cluster = Cluster::new(31, REPLICAS as usize);
    for id in [1, 2] {
        let executed = executed.clone();
        cluster.servant(move |user| serve(user, id, executed));
    }
    let policy = CallPolicy::default().within(Duration::from_millis(20));
    // It asks the first server in the first epoch that it knows of, whatever it is told.
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
    let done = Rc::new(Cell::new(0));
    let calls = done.clone();
    cluster.user(move |user| async move {
        let client = EpochClient::new(async || look_up(&user).await);
        while calls.get() < CALLS {
            if client.call(ADD, b"", policy).await.is_ok() {
                calls.set(calls.get() + 1);
            }
            user.timers.sleep(Duration::from_millis(5)).await;
        }
    });
    cluster.mute(REPLICAS, 3 * FAILURE_TIMEOUT.as_millis() as u64);
    cluster.run(60, 0);
    let (by, refused) = (executed.by.borrow(), executed.refused.get());
    println!("{by:?} executed, {refused} refused, last in epoch {}", executed.epoch.get());
    assert!(by.len() == 2 && by.values().all(|calls| *calls > 20), "both have served: {by:?}");
    assert!(refused > 20 && done.get() == CALLS, "{refused} refused");
}
