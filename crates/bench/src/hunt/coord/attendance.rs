//! The life of a client as a member: it joins, sends heartbeats, falls silent now and then, leaves or is taken for failed, and joins again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{CoordError, Coordinator, Heartbeat, Incarnation, MemberId, Membership, attend};
use dunlin_trial::Random;

use super::caller::Caller;
use crate::hunt::clients::patience::within;
use crate::hunt::clients::phases::Phase;

/// Time until a client that could not join tries again.
const PAUSE: Duration = Duration::from_millis(3);
/// How many failure timeouts a member attends before it does something else, at most, and how many it is silent.
const ATTENDS_MAX: u64 = 8;
const SILENT_MAX: u64 = 3;

/// Whether a client sends heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attendance {
    /// It does not.
    Away,
    /// It does, as this incarnation, and was heard.
    Attends(Incarnation),
}

/// The name of a client as a member.
pub fn member(number: usize) -> MemberId {
    number as MemberId + 1
}

/// A client that attends, until this is dropped.
struct Attending<'a>(&'a Caller);

impl<'a> Attending<'a> {
    fn begin(caller: &'a Caller, incarnation: Incarnation) -> Attending<'a> {
        caller.shared.service.attendance.borrow_mut()[caller.number] = Attendance::Attends(incarnation);
        Attending(caller)
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.shared.service.attendance.borrow_mut()[self.0.number] = Attendance::Away;
    }
}

/// Lives as a member for as long as the client lives.
pub async fn live(caller: Rc<Caller>, mut random: Random) {
    let failure_timeout = caller.shared.service.settings.watchman.failure_timeout;
    loop {
        let Some(membership) = join(&caller).await else {
            caller.timers().sleep(PAUSE).await;
            continue;
        };
        caller.membership.set(Some(membership));
        loop {
            let is_working = caller.shared.clients.phase() == Phase::Working;
            let time = is_working.then(|| part(failure_timeout, random.between(1, 10 * ATTENDS_MAX)));
            if let Some(why) = within(&caller.timers(), time, attend_as(&caller, membership)).await {
                assert!(matches!(why, CoordError::NotLive { .. }), "a member is told: {why}");
                break;
            }
            if caller.shared.clients.phase() != Phase::Working {
                continue;
            }
            if random.chance(30) {
                // What is acquired while it leaves may be over at any time.
                caller.membership.set(None);
                if leave(&caller, &membership).await {
                    break;
                }
                caller.membership.set(Some(membership));
            }
            caller.timers().sleep(part(failure_timeout, random.between(1, 10 * SILENT_MAX))).await;
        }
        caller.membership.set(None);
        caller.end_standing();
        caller.timers().sleep(part(failure_timeout, random.between(0, 10))).await;
    }
}

/// Has something executed now and then when the work is over, so that there are states to compare: heartbeats are no commands.
pub async fn stir(caller: Rc<Caller>) {
    loop {
        caller.timers().sleep(caller.shared.service.settings.watchman.failure_timeout).await;
        if caller.shared.clients.phase() != Phase::Working {
            // It changes nothing: there was no epoch before the first.
            let _ = caller.coordinator.cut_epochs(0).await;
        }
    }
}

/// So many tenths of a time.
fn part(time: Duration, tenths: u64) -> Duration {
    time * tenths as u32 / 10
}

async fn join(caller: &Caller) -> Option<Membership> {
    let testimony = &caller.shared.service.testimony;
    let floor = testimony.floor();
    match caller.coordinator.join(member(caller.number), b"").await {
        Ok(membership) => {
            testimony.told_revision(floor, membership.incarnation);
            testimony.told_epoch(floor, membership.epoch);
            caller.stand(membership.incarnation, membership.safe_until);
            Some(membership)
        }
        Err(CoordError::TimedOut { .. } | CoordError::Backend { .. } | CoordError::LeasesRun { .. }) => None,
        Err(error) => panic!("who wants to join is told: {error}"),
    }
}

/// Sends heartbeats, and gives the error that says why no longer.
async fn attend_as(caller: &Caller, membership: Membership) -> CoordError {
    // From its first answer: it may have been silent before for as long as it may be.
    let attending = RefCell::new(None);
    let service = &caller.shared.service;
    // One heartbeat is sent after the other: what was known at the end of one was known when the next was sent.
    let floor = Cell::new(service.testimony.floor());
    let sent_at = Cell::new(caller.virtual_now());
    let on_heartbeat = |heartbeat: &Heartbeat| {
        attending.borrow_mut().get_or_insert_with(|| Attending::begin(caller, membership.incarnation));
        // It was sent after the answer to the one before.
        service.testimony.was_heard(membership.incarnation, sent_at.replace(caller.virtual_now()));
        service.testimony.told_epoch(floor.get(), heartbeat.epoch);
        floor.set(service.testimony.floor());
        caller.stand(membership.incarnation, heartbeat.safe_until);
    };
    attend(&caller.coordinator, &membership, service.settings.heartbeat_every, on_heartbeat).await
}

/// Leaves, which ends all leases of the member; says whether it may have.
async fn leave(caller: &Caller, membership: &Membership) -> bool {
    caller.give_up_all();
    caller.end_standing();
    match caller.coordinator.leave(membership).await {
        Ok(()) | Err(CoordError::NotLive { .. }) => true,
        Err(error) => error.may_have_run(),
    }
}
