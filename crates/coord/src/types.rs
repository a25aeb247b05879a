//! The types of the interface.

use std::fmt;

use crate::error::CoordError;
use crate::path::is_below;

/// The name of a member. The operator chooses it; one process uses it at a time.
pub type MemberId = u64;
/// Counts events: an event has a higher revision than those before it. Events of one step share a revision: the writes
/// of a transaction, the decisions of a watchman, the end of a lease and its next grant. Revisions may have gaps.
pub type Revision = u64;
/// The revision at which a member joined: tells this process from the one before its restart.
pub type Incarnation = u64;
/// The revision at which a lease was granted: higher than that of every earlier grant.
pub type Token = u64;

/// Whether a member is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is heard, or was recently enough.
    Live,
    /// It was silent for the failure timeout. It stays in the list until it joins again or is forgotten.
    Failed,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub id: MemberId,
    /// The revision of its last join.
    pub incarnation: Incarnation,
    /// Whether it is heard.
    pub health: Health,
    /// The epoch in which it joined, if it is live; else the epoch in which it failed.
    pub epoch: u64,
    /// What it said about itself when it joined: its address, what it stores.
    pub about: Vec<u8>,
}

/// All members, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// Rises whenever the set of live members changes.
    pub epoch: u64,
    /// The revision of that moment; watch from here on.
    pub revision: Revision,
    /// By id.
    pub members: Vec<Member>,
}

/// The members that came and went in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochChange {
    /// The epoch.
    pub epoch: u64,
    /// The revision at which it began.
    pub revision: Revision,
    /// The members that joined, failed or left in the step that began it.
    pub changes: Vec<Happening>,
}

/// A page of epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    /// In order, without gaps.
    pub epochs: Vec<EpochChange>,
    /// Whether there are more after the last of these.
    pub has_more: bool,
}

/// What a member gets when it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// Its name.
    pub member: MemberId,
    /// The incarnation of this process.
    pub incarnation: Incarnation,
    /// The epoch that began when it joined. A heartbeat acknowledges it: [`attend`](crate::attend) sends the last one
    /// that the member was told.
    pub epoch: u64,
    /// How long this incarnation may be silent before it is marked as failed, in milliseconds. It stays the same when
    /// the cluster manager's setting changes. 0 if none was set yet: the first heartbeat's answer brings it.
    pub failure_timeout_ms: u64,
    /// As [`Heartbeat::safe_until`].
    pub safe_until: u64,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The current epoch.
    pub epoch: u64,
    /// Whether every live member is known to have acknowledged this epoch: then no member works in an earlier one any
    /// more.
    pub is_settled: bool,
    /// How long the member may be silent, in milliseconds: as in [`Membership`], or, if that is 0, the value it was
    /// told since.
    pub failure_timeout_ms: u64,
    /// Until when the member may work as one, in nanoseconds of the sender's
    /// [`Coordinator::now`](crate::Coordinator::now): three quarters of the failure timeout, from *before* the
    /// heartbeat was sent. The member is not marked as failed sooner, as long as no clock runs a quarter faster than
    /// another.
    pub safe_until: u64,
}

impl Membership {
    /// The membership that was requested at `sent_at`.
    pub(crate) fn joined(member: MemberId, joined: Joined, sent_at: u64) -> Membership {
        let Joined { incarnation, epoch, failure_timeout_ms } = joined;
        Membership {
            member,
            incarnation,
            epoch,
            failure_timeout_ms,
            safe_until: safe_until(sent_at, failure_timeout_ms),
        }
    }
}

impl Heartbeat {
    /// The answer to a heartbeat that was sent at `sent_at`.
    pub(crate) fn heard(epoch: u64, is_settled: bool, failure_timeout_ms: u64, sent_at: u64) -> Heartbeat {
        Heartbeat { epoch, is_settled, failure_timeout_ms, safe_until: safe_until(sent_at, failure_timeout_ms) }
    }
}

/// The cluster manager's answer to a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// The incarnation of this process.
    pub incarnation: Incarnation,
    /// The epoch that began.
    pub epoch: u64,
    /// As in [`Membership`].
    pub failure_timeout_ms: u64,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: String,
    /// Accompanies everything that is done under the lease: the guard of the resource refuses tokens below the highest
    /// it has seen.
    pub token: Token,
    /// How long the lease lasts after each renewal, in milliseconds: as requested, or longer if an earlier grant to the
    /// same member was longer.
    pub ttl_ms: u64,
    /// Until when the holder may rely on the lease without a fencing token, in nanoseconds of its own
    /// [`Coordinator::now`](crate::Coordinator::now): three quarters of the requested time, from *before* the request
    /// was sent. Valid as long as no clock runs a quarter faster than another.
    pub safe_until: u64,
}

impl Lease {
    /// The lease that was requested at `sent_at`.
    pub(crate) fn granted(name: &str, token: Token, ttl_ms: u64, sent_at: u64) -> Lease {
        Lease { name: name.to_owned(), token, ttl_ms, safe_until: safe_until(sent_at, ttl_ms) }
    }

    /// Applies a renewal that was sent at `sent_at`, with the time that the cluster manager keeps for the lease.
    /// Concurrent renewals may end in any order.
    pub(crate) fn renewed(&mut self, sent_at: u64, ttl_ms: u64) {
        self.ttl_ms = ttl_ms;
        self.safe_until = self.safe_until.max(safe_until(sent_at, ttl_ms));
    }
}

/// Until when a holder may rely on a lease, or a member on its membership: see [`crate::model`].
fn safe_until(sent_at: u64, ttl_ms: u64) -> u64 {
    sent_at.saturating_add(ttl_ms.saturating_mul(1_000_000) / 4 * 3)
}

/// The holder of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The member.
    pub member: MemberId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The token.
    pub token: Token,
}

/// A lease, as other members see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Its name.
    pub name: String,
    /// Its holder.
    pub holder: Holder,
    /// Its requested time, in milliseconds.
    pub ttl_ms: u64,
}

/// A page of leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// The revision of the page's moment.
    pub revision: Revision,
    /// In the order of names.
    pub leases: Vec<HeldLease>,
    /// The next page begins after this name. `None` if this is the last page. Pages are of different moments.
    pub more_after: Option<String>,
}

/// An entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: String,
    /// The revision at which it was set last.
    pub version: Revision,
    /// Its value.
    pub value: Vec<u8>,
}

/// A page of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision of the page's moment.
    pub revision: Revision,
    /// In the order of paths.
    pub entries: Vec<Entry>,
    /// The next page begins after this path. `None` if this is the last page. Pages are of different moments.
    pub more_after: Option<String>,
}

/// Bytes of a [`View`].
pub const VIEW_BYTES_MAX: usize = 4 << 20;
/// Bytes that a member, a lease or an entry counts in a view, beyond its name and value.
pub(crate) const VIEW_ITEM_BYTES: usize = 40;

/// Members, leases and a subtree as of one moment: that of [`Members::revision`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// All members, the epoch, and the revision; watch from there.
    pub members: Members,
    /// Leases whose names are the root or below it, in order.
    pub leases: Vec<HeldLease>,
    /// The entry of the root and those below it, in order.
    pub entries: Vec<Entry>,
}

impl View {
    /// The error for a root whose view is too large.
    pub(crate) fn too_large(root: &str) -> CoordError {
        let what = format!("a view of {root} (choose a path below it, or read it in pages)");
        CoordError::TooLarge { what, max: VIEW_BYTES_MAX as u64 }
    }

    /// Checks the size of the view.
    pub(crate) fn check_bytes(self, root: &str) -> Result<View, CoordError> {
        let of_members = self.members.members.iter().map(|member| member.about.len());
        let of_leases = self.leases.iter().map(|lease| lease.name.len());
        let of_entries = self.entries.iter().map(|entry| entry.path.len() + entry.value.len());
        let bytes: usize = of_members.chain(of_leases).chain(of_entries).map(|bytes| bytes + VIEW_ITEM_BYTES).sum();
        if bytes > VIEW_BYTES_MAX { Err(View::too_large(root)) } else { Ok(self) }
    }
}

/// A condition on an entry that is set or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Always. (Deleting a missing entry is refused nevertheless.)
    #[default]
    Always,
    /// The entry does not exist.
    Absent,
    /// The entry has this version.
    Version {
        /// The version.
        version: Revision,
    },
}

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Everything.
    All,
    /// Members, and with them the epoch.
    Members,
    /// Leases.
    Leases,
    /// Entries of the tree.
    Tree {
        /// Those below this path, and the path itself; `/` is the whole tree.
        root: String,
    },
}

#[cfg(test)]
thread_local! {
    /// How often an event was checked against a scope.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Scope {
    /// Whether an event is in the scope.
    pub fn holds(&self, happening: &Happening) -> bool {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        match (happening, self) {
            (_, Scope::All) => true,
            (Happening::Set { path, .. } | Happening::Deleted { path }, Scope::Tree { root }) => {
                path == root || is_below(path, root)
            }
            (Happening::Granted { .. } | Happening::Ended { .. }, Scope::Leases) => true,
            (
                Happening::Joined { .. }
                | Happening::Failed { .. }
                | Happening::Left { .. }
                | Happening::Forgotten { .. },
                Scope::Members,
            ) => true,
            _ => false,
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its revision. Events of one step share it, so a watch after it skips all of them.
    pub revision: Revision,
    /// What.
    pub happening: Happening,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happening {
    /// A member joined, for the first time or again; its incarnation is the revision.
    Joined {
        /// The member.
        member: MemberId,
        /// The epoch that began.
        epoch: u64,
    },
    /// A member was silent for too long.
    Failed {
        /// The member.
        member: MemberId,
        /// The epoch that began.
        epoch: u64,
    },
    /// A member left.
    Left {
        /// The member.
        member: MemberId,
        /// The epoch that began.
        epoch: u64,
    },
    /// A failed member was forgotten; the epoch is unchanged.
    Forgotten {
        /// The member.
        member: MemberId,
    },
    /// A lease was granted; the token is the revision. If the same member held it before, the old token is no longer
    /// valid, whether or not an [`Happening::Ended`] said so.
    Granted {
        /// The lease.
        name: String,
        /// Its new holder.
        member: MemberId,
    },
    /// A lease was released, or its time ran out.
    Ended {
        /// The lease.
        name: String,
        /// The token that it was held with.
        token: Token,
    },
    /// An entry was set; its version is the revision.
    Set {
        /// Its path.
        path: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// An entry was deleted.
    Deleted {
        /// Its path.
        path: String,
    },
}

impl Happening {
    /// The epoch that the event began.
    pub fn epoch(&self) -> Option<u64> {
        match self {
            Happening::Joined { epoch, .. } | Happening::Failed { epoch, .. } | Happening::Left { epoch, .. } => {
                Some(*epoch)
            }
            _ => None,
        }
    }
}

/// The events in a scope after a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// In order.
    pub events: Vec<Event>,
    /// All events in the scope up to this revision are included, or came before: continue the watch from it.
    pub up_to: Revision,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.revision)?;
        match &self.happening {
            Happening::Joined { member, epoch } => write!(f, "member {member} joined: epoch {epoch}"),
            Happening::Failed { member, epoch } => write!(f, "member {member} failed: epoch {epoch}"),
            Happening::Left { member, epoch } => write!(f, "member {member} left: epoch {epoch}"),
            Happening::Forgotten { member } => write!(f, "member {member} was forgotten"),
            Happening::Granted { name, member } => write!(f, "lease {name} granted to member {member}"),
            Happening::Ended { name, token } => write!(f, "lease {name} with token {token} ended"),
            Happening::Set { path, value } => write!(f, "{path} set to {} bytes", value.len()),
            Happening::Deleted { path } => write!(f, "{path} deleted"),
        }
    }
}
