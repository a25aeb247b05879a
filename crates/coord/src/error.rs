//! Errors of the cluster manager.

use crate::types::{Incarnation, MemberId, Revision, Token};

/// Why an operation of a [`Coordinator`](crate::Coordinator) failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordError {
    /// The member is not live as this incarnation: it was silent for too long, has left, or has joined anew.
    #[error(
        "member {member} is not live as incarnation {incarnation}: it was taken for failed, has left, or joined anew; join again"
    )]
    NotLive {
        /// The member.
        member: MemberId,
        /// The incarnation that asked.
        incarnation: Incarnation,
    },
    /// The member cannot join yet: a lease of its earlier incarnation has not ended.
    #[error("member {member} held lease {name} when it was here before: it may join when that has ended")]
    LeasesRun {
        /// The member.
        member: MemberId,
        /// A lease that the earlier incarnation held.
        name: String,
    },
    /// A member that is live cannot be forgotten, and no other process can join in its place.
    #[error("member {member} is live: it must leave or fail first")]
    Live {
        /// The member.
        member: MemberId,
    },
    /// Another member holds the lease.
    #[error("lease {name} is held by member {holder} with token {token}: wait for its end")]
    Held {
        /// The lease.
        name: String,
        /// Its holder.
        holder: MemberId,
        /// The holder's token.
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
    /// The requested lease time is out of range, or the lease was no longer safe when the answer came, several times in
    /// a row.
    #[error(
        "a lease of {millis} ms cannot be had: choose 10 ms to 1 h, and several times as long as the cluster manager takes to answer"
    )]
    BadTtl {
        /// The requested time.
        millis: u64,
    },
    /// The entry that the condition requires, or the member, does not exist.
    #[error("there is no {what}")]
    NotFound {
        /// What does not exist.
        what: String,
    },
    /// The entry exists, though the condition requires that it does not.
    #[error("{path} is there already, with version {version}")]
    Exists {
        /// Its path.
        path: String,
        /// Its version.
        version: Revision,
    },
    /// The entry does not have the version that the condition requires.
    #[error("{path} has version {version} by now: read it, and decide again")]
    Changed {
        /// Its path.
        path: String,
        /// Its version.
        version: Revision,
    },
    /// The epoch is not the one that the transaction requires.
    #[error("the epoch is {epoch} by now: look who is a member, and decide again")]
    EpochChanged {
        /// The current epoch.
        epoch: u64,
    },
    /// The operation named an epoch that has not begun.
    #[error("the epoch is {epoch}, and epoch {asked} has not begun: cut epochs up to {epoch} at most")]
    EpochAhead {
        /// The named epoch.
        asked: u64,
        /// The current epoch.
        epoch: u64,
    },
    /// The requested epochs have been discarded.
    #[error(
        "the epochs up to {epoch} are cut: ask for those after it (--after {epoch}); who was away since before must be given all anew"
    )]
    EpochsCut {
        /// The last discarded epoch.
        epoch: u64,
    },
    /// An invalid transaction.
    #[error("this is no transaction: {why}")]
    BadTransaction {
        /// What is wrong with it.
        why: String,
    },
    /// The history no longer goes back to that revision.
    #[error("events up to revision {compacted} are gone: read what is there now, and watch from its revision")]
    Compacted {
        /// The last revision whose events were discarded.
        compacted: Revision,
    },
    /// An invalid path or name.
    #[error("{path:?} is no path: {why}")]
    BadPath {
        /// The path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value exceeds its size limit.
    #[error("{what} may have {max} bytes at most")]
    TooLarge {
        /// Which value.
        what: String,
        /// Its limit.
        max: u64,
    },
    /// The cluster manager is at one of its limits.
    #[error("there may be {max} {what} at most: remove some first")]
    Full {
        /// What it has too many of.
        what: String,
        /// The limit.
        max: u64,
    },
    /// Another watchman has taken over: see [`crate::model`].
    #[error("reign {reign} is over")]
    ReignOver {
        /// The reign that is over.
        reign: u64,
    },
    /// No answer came in time.
    #[error("the cluster manager did not answer in time{}", if *.may_have_run { "; what was asked may have been done, or may be yet" } else { "; nothing was done" })]
    TimedOut {
        /// Whether the operation may have been executed, or may still be.
        may_have_run: bool,
    },
    /// The back end failed, or cannot be used.
    #[error("the cluster manager cannot be used: {why}")]
    Backend {
        /// Its error.
        why: String,
        /// Whether the operation may have been executed, or may still be.
        may_have_run: bool,
    },
}

impl CoordError {
    /// Whether a retry may succeed, since the failure was that no answer came.
    pub fn is_of_the_moment(&self) -> bool {
        matches!(self, CoordError::TimedOut { .. } | CoordError::Backend { .. })
    }

    /// Whether the operation may have been executed, or may still be.
    pub fn may_have_run(&self) -> bool {
        matches!(self, CoordError::TimedOut { may_have_run: true } | CoordError::Backend { may_have_run: true, .. })
    }
}
