//! The life of a client as a member: it joins, sends heartbeats, falls silent at times, leaves or is marked as failed,
//! and joins again.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{Condition, CoordError, Coordinator, Heartbeat, Incarnation, MemberId, Membership, Standing};
use dunlin_trial::Random;

use super::caller::Caller;
use super::stamped::Stamped;
use super::testimony::Floor;
use crate::clients::patience::within;
use crate::clients::phases::Phase;

/// Pause of a client before it tries to join again.
const PAUSE: Duration = Duration::from_millis(3);
/// Maximum number of failure timeouts for which a member sends heartbeats before a change, or is silent.
const ATTENDS_MAX: u64 = 8;
const SILENT_MAX: u64 = 3;

/// Set in each round of the end; it is in no history.
const ROUND: &str = "/round";

/// The member id of a client.
pub fn member(number: usize) -> MemberId {
    number as MemberId + 1
}

/// A client that sends heartbeats, until this is dropped.
struct Attending<'a>(&'a Caller);

impl<'a> Attending<'a> {
    fn begin(caller: &'a Caller, incarnation: Incarnation) -> Attending<'a> {
        caller.shared.service.attendance.borrow_mut()[caller.number] = Some(incarnation);
        Attending(caller)
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.shared.service.attendance.borrow_mut()[self.0.number] = None;
    }
}

/// Lives as a member as long as the client lives.
pub async fn live(caller: Rc<Caller>, mut random: Random) {
    let failure_timeout = caller.shared.service.settings.watchman.failure_timeout;
    loop {
        let Some(mut standing) = join(&caller).await else {
            caller.timers().sleep(PAUSE).await;
            continue;
        };
        let membership = *standing.membership();
        caller.membership.set(Some(membership));
        loop {
            let is_working = caller.shared.clients.phase() == Phase::Working;
            let time = is_working.then(|| part(failure_timeout, random.between(1, 10 * ATTENDS_MAX)));
            if let Some(why) = within(&caller.timers(), time, attend_as(&caller, &standing)).await {
                assert!(matches!(why, CoordError::NotLive { .. }), "a member is told: {why}");
                break;
            }
            if caller.shared.clients.phase() != Phase::Working {
                continue;
            }
            if random.chance(30) {
                // A lease acquired while it leaves may end at any time.
                caller.membership.set(None);
                if leave(&caller, &membership).await {
                    break;
                }
                caller.membership.set(Some(membership));
                standing = Standing::new(&membership);
            }
            caller.timers().sleep(part(failure_timeout, random.between(1, 10 * SILENT_MAX))).await;
        }
        caller.membership.set(None);
        caller.end_standing();
        caller.timers().sleep(part(failure_timeout, random.between(0, 10))).await;
    }
}

/// Executes a command from time to time when the work is over, so that there are states to compare: heartbeats are not
/// commands. The command changes nothing, except once in each round of the end.
pub async fn stir(caller: Rc<Caller>) {
    let manager = &caller.shared.service;
    loop {
        caller.timers().sleep(manager.settings.watchman.failure_timeout).await;
        if caller.shared.clients.phase() == Phase::Working {
            continue;
        }
        let wanted = manager.rounds.wanted.get();
        if caller.number != 0 || wanted == manager.rounds.done.get() {
            // It changes nothing: there is no epoch before the first.
            let _ = caller.coordinator.cut_epochs(0).await;
        } else if caller.coordinator.set(ROUND, &wanted.to_le_bytes(), Condition::Always).await.is_ok() {
            manager.rounds.done.set(wanted);
        }
    }
}

/// Some tenths of a time.
fn part(time: Duration, tenths: u64) -> Duration {
    time * tenths as u32 / 10
}

async fn join(caller: &Caller) -> Option<Standing> {
    let testimony = &caller.shared.service.testimony;
    let floor = testimony.floor();
    match caller.coordinator.join(member(caller.number), b"").await {
        Ok(membership) => {
            testimony.told_revision(floor, membership.incarnation);
            testimony.told_epoch(floor, membership.epoch);
            let standing = Standing::new(&membership);
            caller.stand(&standing);
            Some(standing)
        }
        // Of the process before, if this client was restarted.
        Err(CoordError::LeasesRun { .. } | CoordError::Live { .. }) => None,
        Err(CoordError::TimedOut { .. } | CoordError::Backend { .. }) => None,
        Err(error) => panic!("who wants to join is told: {error}"),
    }
}

/// Sends heartbeats, and gives the error that says why no longer.
async fn attend_as(caller: &Caller, standing: &Standing) -> CoordError {
    // From its first answer: it may have been silent before for as long as it may be.
    let attending = RefCell::new(None);
    let (service, incarnation) = (&caller.shared.service, standing.membership().incarnation);
    let on_heartbeat = |heartbeat: &Heartbeat, sent_at: u64, floor: Floor| {
        attending.borrow_mut().get_or_insert_with(|| Attending::begin(caller, incarnation));
        service.testimony.was_heard(incarnation, sent_at);
        service.testimony.told_epoch(floor, heartbeat.epoch);
        // It hears it here already: it is judged by what it was told.
        standing.heard(heartbeat);
        caller.stand(standing);
        service.witness.was_told(heartbeat);
    };
    standing.attend(&Stamped { caller, on_heartbeat }, service.settings.heartbeat_every).await
}

/// Leaves, which ends all leases of the member; returns whether it may have succeeded.
async fn leave(caller: &Caller, membership: &Membership) -> bool {
    caller.give_up_all();
    caller.end_standing();
    match caller.coordinator.leave(membership).await {
        Ok(()) | Err(CoordError::NotLive { .. }) => true,
        Err(error) => error.may_have_run(),
    }
}
