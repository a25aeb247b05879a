//! What the rest of a process asks before it works as a member.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::coordinator::{Coordinator, attend};
use crate::error::CoordError;
use crate::types::{Heartbeat, MemberId, Membership};

/// The standing of a member, shared by all threads of its process: clones are the same one. The data plane calls [`Standing::check`] before work
/// that only a member may do, and refuses it on an error. It costs two loads.
///
/// A member that is cut off is told nothing. Its time passes nevertheless: [`Standing::check`] fails before the others can take the member for
/// failed, as long as no clock runs a quarter faster than another.
#[derive(Debug, Clone)]
pub struct Standing {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    membership: Membership,
    epoch: AtomicU64,
    /// 0 once the membership is over.
    safe_until: AtomicU64,
}

/// Why work of a member is to be refused: others may have taken it for failed, and go on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSafe {
    /// The member.
    pub member: MemberId,
    /// For how many nanoseconds it has not been safe.
    pub since: u64,
}

impl fmt::Display for NotSafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotSafe { member, since } = self;
        let since = Duration::from_nanos(*since);
        write!(
            f,
            "member {member} has not been heard by the cluster manager for too long, and was to stop {since:?} ago: ask another"
        )
    }
}

impl std::error::Error for NotSafe {}

impl Standing {
    /// That of a member that has just joined.
    pub fn new(membership: &Membership) -> Standing {
        let (epoch, safe_until) = (AtomicU64::new(membership.epoch), AtomicU64::new(membership.safe_until));
        Standing { shared: Arc::new(Shared { membership: *membership, epoch, safe_until }) }
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

    /// Returns the epoch if the member may work as one `now`, which is [`Coordinator::now`], or [`dunlin_net::clock::boot_nanos`] on a thread without
    /// a coordinator. What takes long asks again before it has its effect.
    ///
    /// # Errors
    /// [`NotSafe`]: refuse the work.
    pub fn check(&self, now: u64) -> Result<u64, NotSafe> {
        let safe_until = self.safe_until();
        if now < safe_until {
            return Ok(self.epoch());
        }
        Err(NotSafe { member: self.membership().member, since: now - safe_until })
    }

    /// Notes what a heartbeat was answered. Answers may come in any order.
    pub fn heard(&self, heartbeat: &Heartbeat) {
        self.shared.epoch.fetch_max(heartbeat.epoch, Ordering::AcqRel);
        // Not again after the end.
        let later = |safe_until: u64| (safe_until > 0).then_some(safe_until.max(heartbeat.safe_until));
        let _ = self.shared.safe_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Ends it, for good: before the member leaves or joins again, or when it was told that it is not live.
    pub fn end(&self) {
        self.shared.safe_until.store(0, Ordering::Release);
    }

    /// Sends heartbeats as [`attend`] does, notes their answers, and ends when the member is not live any more. Gives the error that says why.
    pub async fn attend<C: Coordinator>(&self, coordinator: &C, every: Duration) -> CoordError {
        let why = attend(coordinator, self.membership(), every, |heartbeat| self.heard(heartbeat)).await;
        self.end();
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_extended_by_answers_and_ended_for_good() {
        let membership = Membership { member: 7, incarnation: 3, epoch: 2, failure_timeout_ms: 1, safe_until: 100 };
        let standing = Standing::new(&membership);
        assert_eq!((standing.check(99), standing.check(130)), (Ok(2), Err(NotSafe { member: 7, since: 30 })));
        standing.heard(&Heartbeat { epoch: 5, safe_until: 200 });
        standing.clone().heard(&Heartbeat { epoch: 4, safe_until: 150 });
        assert_eq!(standing.check(199), Ok(5), "answers may overtake each other");
        standing.end();
        standing.heard(&Heartbeat { epoch: 6, safe_until: 300 });
        assert!(standing.check(1).is_err(), "an answer that comes after the end changes nothing");
    }
}
