//! Why something was not done.

use crate::types::{Incarnation, MemberId, Revision, Token};

/// Why an operation of a [`Coordinator`](crate::Coordinator) was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordError {
    /// The member is not in the cluster as this incarnation: it was not heard for too long, left, or joined anew.
    #[error(
        "member {member} is not live as incarnation {incarnation}: it was taken for failed, has left, or joined anew; join again"
    )]
    NotLive {
        /// The member.
        member: MemberId,
        /// The incarnation that asked.
        incarnation: Incarnation,
    },
    /// The member cannot join yet: a lease of an earlier incarnation of it has not ended.
    #[error("member {member} held lease {name} when it was here before: it may join when that has ended")]
    LeasesRun {
        /// The member.
        member: MemberId,
        /// A lease that it held.
        name: String,
    },
    /// A member that lives cannot be forgotten.
    #[error("member {member} is live: only one that has failed can be forgotten")]
    Live {
        /// The member.
        member: MemberId,
    },
    /// Another holds the lease.
    #[error("lease {name} is held by member {holder} with token {token}: wait for its end")]
    Held {
        /// The lease.
        name: String,
        /// Who holds it.
        holder: MemberId,
        /// With which token.
        token: Token,
    },
    /// The lease is no longer held with this token.
    #[error("lease {name} is not held with token {token} any more: stop what rests on it, and acquire it again")]
    LeaseLost {
        /// The lease.
        name: String,
        /// The token.
        token: Token,
    },
    /// A lease was asked for a time that none can have.
    #[error("a lease of {millis} ms cannot be had: choose 10 ms to 1 h")]
    BadTtl {
        /// The time.
        millis: u64,
    },
    /// There is no such entry, though the condition wants one; or no such member.
    #[error("there is no {what}")]
    NotFound {
        /// What is not there.
        what: String,
    },
    /// There is such an entry, though the condition wants none.
    #[error("{path} is there already, with version {version}")]
    Exists {
        /// Its path.
        path: String,
        /// Its version.
        version: Revision,
    },
    /// The entry has another version than the condition wants.
    #[error("{path} has version {version} by now: read it, and decide again")]
    Changed {
        /// Its path.
        path: String,
        /// Its version.
        version: Revision,
    },
    /// The epoch is another than a transaction wants.
    #[error("the epoch is {epoch} by now: look who is a member, and decide again")]
    EpochChanged {
        /// The epoch.
        epoch: u64,
    },
    /// Who came and went in those epochs is not known any more.
    #[error("the epochs up to {epoch} are cut: who was away since before must be given all anew")]
    EpochsCut {
        /// The last epoch that is known no more.
        epoch: u64,
    },
    /// A transaction that none can be.
    #[error("this is no transaction: {why}")]
    BadTransaction {
        /// What is wrong with it.
        why: String,
    },
    /// What happened since that revision is not known any more.
    #[error("events up to revision {compacted} are gone: read what is there now, and watch from its revision")]
    Compacted {
        /// The last revision of which the events are gone.
        compacted: Revision,
    },
    /// A path or a name that none can have.
    #[error("{path:?} is no path: {why}")]
    BadPath {
        /// The path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something has more bytes than it may.
    #[error("{what} may have {max} bytes at most")]
    TooLarge {
        /// What.
        what: String,
        /// Its limit.
        max: u64,
    },
    /// The cluster manager holds as much as it may.
    #[error("there may be {max} {what} at most: remove some first")]
    Full {
        /// Of what.
        what: String,
        /// The limit.
        max: u64,
    },
    /// Another watchman has taken over since: see [`crate::model`].
    #[error("reign {reign} is over")]
    ReignOver {
        /// Which.
        reign: u64,
    },
    /// No answer came in time.
    #[error("the cluster manager did not answer in time{}", if *.may_have_run { "; what was asked may have been done, or may be yet" } else { "; nothing was done" })]
    TimedOut {
        /// Whether it may have been done, or may be yet.
        may_have_run: bool,
    },
    /// The back end failed, or is none.
    #[error("the cluster manager cannot be used: {why}")]
    Backend {
        /// What it says.
        why: String,
        /// Whether what was asked may have been done, or may be yet.
        may_have_run: bool,
    },
}

impl CoordError {
    /// Whether the same may succeed when it is asked again, since no answer came.
    pub fn is_of_the_moment(&self) -> bool {
        matches!(self, CoordError::TimedOut { .. } | CoordError::Backend { .. })
    }

    /// Whether what was asked may have been done, or may be yet.
    pub fn may_have_run(&self) -> bool {
        matches!(self, CoordError::TimedOut { may_have_run: true } | CoordError::Backend { may_have_run: true, .. })
    }
}
