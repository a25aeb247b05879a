//! Lets the rest of a process check that it may work as a member.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::coordinator::{Coordinator, attend_between};
use crate::either::{either, until};
use crate::error::CoordError;
use crate::types::{Heartbeat, MemberId, Membership};

/// Most early heartbeats within one interval of regular ones. Early ones are sent when a request names a later epoch,
/// and a sender may invent epochs.
const EARLY_HEARTBEATS: u32 = 10;

/// The standing of a member, shared by all threads of its process: clones share one state. The data plane calls
/// [`Standing::check`] before work that only a member may do, and refuses the work on an error. It costs two loads.
///
/// A member that is cut off is told nothing, but its time passes: [`Standing::check`] fails before the member can be
/// marked as failed, as long as no clock runs a quarter faster than another.
#[derive(Debug, Clone)]
pub struct Standing {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    membership: Membership,
    epoch: AtomicU64,
    /// The last epoch that it was told is settled. Never later than `epoch`.
    settled: AtomicU64,
    /// 0 once the membership is over.
    safe_until: AtomicU64,
    /// The latest epoch that a request has named since a heartbeat was sent; 0 for none.
    named: AtomicU64,
    /// The waker of the task that sends heartbeats.
    attending: Mutex<Option<Waker>>,
}

/// Why a member must refuse work: it may have been marked as failed and replaced, or other members may not have stopped
/// yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSafe {
    /// The cluster manager has not answered the member for too long.
    Unheard {
        /// The member.
        member: MemberId,
        /// Nanoseconds since it was last safe.
        since: u64,
    },
    /// It is not known yet whether all other members have left the earlier epochs.
    Unsettled {
        /// The member.
        member: MemberId,
        /// The epoch.
        epoch: u64,
    },
    /// Its membership is over.
    Over {
        /// The member.
        member: MemberId,
    },
}

impl fmt::Display for NotSafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSafe::Unheard { member, since } => write!(
                f,
                "member {member} has not been heard by the cluster manager for too long, and was to stop {:?} ago: ask another",
                Duration::from_nanos(*since)
            ),
            NotSafe::Unsettled { member, epoch } => {
                write!(f, "member {member} waits until all others have heard of epoch {epoch}: ask again")
            }
            NotSafe::Over { member } => write!(f, "member {member} has left, or is not live any more: ask another"),
        }
    }
}

impl std::error::Error for NotSafe {}

impl Standing {
    /// The standing of a member that has just joined.
    pub fn new(membership: &Membership) -> Standing {
        // Not 0, which says that it is over: a clock may begin at 0, and perhaps no timeout was told.
        let safe_until = AtomicU64::new(membership.safe_until.max(1));
        let epoch = AtomicU64::new(membership.epoch);
        let (settled, named, attending) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        Standing { shared: Arc::new(Shared { membership: *membership, epoch, settled, safe_until, named, attending }) }
    }

    /// The membership.
    pub fn membership(&self) -> &Membership {
        &self.shared.membership
    }

    /// The last epoch that the member was told.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Until when the member may work as one, by [`Coordinator::now`]; 0 once it is over.
    pub fn safe_until(&self) -> u64 {
        self.shared.safe_until.load(Ordering::Acquire)
    }

    /// Whether every live member is known to have acknowledged the epoch.
    pub fn is_settled(&self) -> bool {
        // In this order: an epoch that begins in between is later.
        let settled = self.shared.settled.load(Ordering::Acquire);
        settled == self.epoch()
    }

    /// Returns the epoch if the member may work in it `now`, which is [`Coordinator::now`], or
    /// [`dunlin_net::clock::boot_nanos`] on a thread without a coordinator. Long work must check again before it takes
    /// effect.
    ///
    /// Once this has returned an epoch to any member, it returns no earlier epoch to any other member.
    ///
    /// # Errors
    /// [`NotSafe`]: refuse the work.
    pub fn check(&self, now: u64) -> Result<u64, NotSafe> {
        let (member, safe_until) = (self.membership().member, self.safe_until());
        if now >= safe_until {
            let unheard = NotSafe::Unheard { member, since: now - safe_until };
            return Err(if safe_until > 0 { unheard } else { NotSafe::Over { member } });
        }
        let settled = self.shared.settled.load(Ordering::Acquire);
        // Read in this order: an epoch that begins in between is later.
        match self.epoch() {
            epoch if epoch == settled => Ok(epoch),
            epoch => Err(NotSafe::Unsettled { member, epoch }),
        }
    }

    /// Records the answer to a heartbeat. Answers may come in any order.
    pub fn heard(&self, heartbeat: &Heartbeat) {
        self.shared.epoch.fetch_max(heartbeat.epoch, Ordering::AcqRel);
        if heartbeat.is_settled {
            self.shared.settled.fetch_max(heartbeat.epoch, Ordering::AcqRel);
        }
        // Not after the end.
        let later = |safe_until: u64| (safe_until > 0).then_some(safe_until.max(heartbeat.safe_until));
        let _ = self.shared.safe_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Ends the standing for good: before the member leaves or joins again, or when it learns that it is not live.
    pub fn end(&self) {
        self.shared.safe_until.store(0, Ordering::Release);
    }

    /// Tells that a request named an epoch. If the epoch is later, [`Standing::attend`] sends its next heartbeat at
    /// once, and learns whether that epoch has begun. Call it where a request is refused because this member is behind.
    /// It costs a load if the epoch is not later.
    pub fn heard_of(&self, epoch: u64) {
        if epoch > self.epoch() && epoch > self.shared.named.fetch_max(epoch, Ordering::AcqRel) {
            let attending = self.shared.attending.lock().unwrap_or_else(PoisonError::into_inner).take();
            attending.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until a request has named a later epoch, since `named` was cleared.
    async fn falls_behind(&self) {
        let behind = poll_fn(|context| {
            // Before the check, so that a later call of `heard_of` wakes this task.
            *self.shared.attending.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            match self.shared.named.load(Ordering::Acquire) > self.epoch() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        behind.await;
    }

    /// Sends heartbeats as [`attend`](crate::attend) does, notes their answers, and ends when the member is not live
    /// any more. Gives the error that says why. After [`Standing::heard_of`], heartbeats are sent early, up to ten times
    /// as often as otherwise; until the epoch is settled, too, but less and less often.
    pub async fn attend<C: Coordinator>(&self, coordinator: &C, every: Duration) -> CoordError {
        // When the last early one was sent, and how long this member then asks no more whether the epoch is settled.
        let (mut early_at, mut patience, mut epoch) = (0_u64, Duration::ZERO, 0);
        let pause = async |sent_at: u64, every: Duration| {
            let least = every / EARLY_HEARTBEATS;
            if epoch != self.epoch() {
                // Others wait for this member to acknowledge it.
                (epoch, patience) = (self.epoch(), Duration::ZERO);
            }
            let unsettled = async {
                match self.is_settled() {
                    true => pending().await,
                    false => coordinator.sleep_until(early_at.saturating_add(nanos(patience))).await,
                }
            };
            let early = async {
                either(self.falls_behind(), unsettled).await;
                coordinator.sleep_until(early_at.saturating_add(nanos(least))).await;
            };
            let due = coordinator.sleep_until(sent_at.saturating_add(nanos(every)));
            if until(early, due).await.is_some() {
                // A member that is silent holds up all others until it has failed: they must not ask as often as this
                // all that time.
                (early_at, patience) = (coordinator.now(), (2 * patience).clamp(least, every));
            }
            // An epoch that is named from now on may be newer than the answer to this heartbeat.
            self.shared.named.store(0, Ordering::Release);
        };
        let membership = Membership { epoch: self.epoch(), ..*self.membership() };
        let why = attend_between(coordinator, &membership, every, |heartbeat| self.heard(heartbeat), pause).await;
        self.end();
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Joined;

    #[test]
    fn time_is_extended_by_answers_and_ended_for_good() {
        let membership = Membership { member: 7, incarnation: 3, epoch: 2, failure_timeout_ms: 1, safe_until: 100 };
        let standing = Standing::new(&membership);
        assert_eq!(standing.check(99), Err(NotSafe::Unsettled { member: 7, epoch: 2 }));
        standing.heard(&Heartbeat { epoch: 2, is_settled: true, failure_timeout_ms: 1, safe_until: 100 });
        assert_eq!((standing.check(99), standing.check(130)), (Ok(2), Err(NotSafe::Unheard { member: 7, since: 30 })));
        standing.heard(&Heartbeat { epoch: 5, is_settled: false, failure_timeout_ms: 1, safe_until: 200 });
        assert_eq!(standing.check(199), Err(NotSafe::Unsettled { member: 7, epoch: 5 }));
        standing.heard(&Heartbeat { epoch: 5, is_settled: true, failure_timeout_ms: 1, safe_until: 200 });
        standing.clone().heard(&Heartbeat { epoch: 4, is_settled: true, failure_timeout_ms: 1, safe_until: 150 });
        assert_eq!(standing.check(199), Ok(5), "answers may overtake each other");
        standing.end();
        standing.heard(&Heartbeat { epoch: 6, is_settled: true, failure_timeout_ms: 1, safe_until: 300 });
        let over = standing.check(1).unwrap_err();
        assert_eq!(over, NotSafe::Over { member: 7 }, "an answer that comes after the end changes nothing");
        assert_eq!(over.to_string(), "member 7 has left, or is not live any more: ask another");
    }

    /// A clock may begin at 0, as that of a simulated host does, and nobody may have told the failure timeout yet.
    #[test]
    fn a_member_that_joined_at_time_0_without_a_timeout_is_safe_once_it_is_heard() {
        let joined = Joined { incarnation: 3, epoch: 2, failure_timeout_ms: 0 };
        let standing = Standing::new(&Membership::joined(7, joined, 0));
        assert!(matches!(standing.check(5), Err(NotSafe::Unheard { .. })), "it is not over: {:?}", standing.check(5));
        standing.heard(&Heartbeat::heard(2, true, 200, 10));
        assert_eq!(standing.check(5_000_000), Ok(2));
    }
}
