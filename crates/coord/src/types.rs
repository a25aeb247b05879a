//! The words of the interface.

use std::fmt;

use crate::error::CoordError;
use crate::path::is_below;

/// The name of a member. Chosen by whoever runs it, and used by one process at a time.
pub type MemberId = u64;
/// Counts what happened: an event has a higher revision than those before it. Events of one step share a revision: the writes of a transaction,
/// what a watchman decided at once, the end of a lease and its next grant. Some revisions may be left out.
pub type Revision = u64;
/// The revision at which a member joined: tells the process of now from the one before its restart.
pub type Incarnation = u64;
/// The revision at which a lease was granted: above that of every grant before.
pub type Token = u64;

/// Whether a member is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is, or was not long enough ago.
    Live,
    /// It was not heard for the failure timeout. It stays in the list until it joins again or is forgotten.
    Failed,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub id: MemberId,
    /// When it joined last.
    pub incarnation: Incarnation,
    /// Whether it is heard.
    pub health: Health,
    /// The epoch in which it joined, if it is live, or failed.
    pub epoch: u64,
    /// What it said about itself when it joined: where it is reached, what it stores.
    pub about: Vec<u8>,
}

/// All members, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// Rises whenever the set of live members changes.
    pub epoch: u64,
    /// The moment; watch from here on.
    pub revision: Revision,
    /// By id.
    pub members: Vec<Member>,
}

/// Who came and went in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochChange {
    /// The epoch.
    pub epoch: u64,
    /// At which it began.
    pub revision: Revision,
    /// Who joined, failed or left: the step that began it.
    pub changes: Vec<Happening>,
}

/// A page of epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    /// In order, none left out.
    pub epochs: Vec<EpochChange>,
    /// Whether there are more after the last of these.
    pub has_more: bool,
}

/// What a member has when it has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// Its name.
    pub member: MemberId,
    /// This process of it.
    pub incarnation: Incarnation,
    /// The epoch that began when it joined.
    pub epoch: u64,
    /// How long this incarnation may be silent before it is taken for failed, in milliseconds. It stays the same when the cluster manager
    /// is set to another. 0 if none was set yet: the first heartbeat tells of it.
    pub failure_timeout_ms: u64,
    /// As [`Heartbeat::safe_until`].
    pub safe_until: u64,
}

/// What a heartbeat is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The epoch of now.
    pub epoch: u64,
    /// Until when the member may work as one, in nanoseconds of [`Coordinator::now`](crate::Coordinator::now) where it was sent: three quarters of the
    /// failure timeout, from *before* it was sent. Nobody takes the member for failed sooner, as long as no clock runs a quarter faster than another.
    pub safe_until: u64,
}

impl Membership {
    /// One that was asked for at `sent_at`.
    pub(crate) fn joined(member: MemberId, joined: Joined, sent_at: u64) -> Membership {
        let Joined { incarnation, epoch, failure_timeout_ms } = joined;
        Membership { member, incarnation, epoch, failure_timeout_ms, safe_until: safe_until(sent_at, failure_timeout_ms) }
    }
}

impl Heartbeat {
    /// The answer to one that was sent at `sent_at`.
    pub(crate) fn heard(epoch: u64, failure_timeout_ms: u64, sent_at: u64) -> Heartbeat {
        Heartbeat { epoch, safe_until: safe_until(sent_at, failure_timeout_ms) }
    }
}

/// What the cluster manager says to a member that joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// This process of it.
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
    /// Goes with everything that is done under the lease: whoever guards the resource refuses tokens below the highest it has seen.
    pub token: Token,
    /// How long it is held after each renewal, in milliseconds: as asked for, or longer if its member held it for longer before.
    pub ttl_ms: u64,
    /// Until when the holder may rely on it without a fencing token, in nanoseconds of [`Coordinator::now`](crate::Coordinator::now) where it was asked
    /// for: three quarters of the time asked for, from *before* it was asked for. Right as long as no clock runs a quarter faster than another.
    pub safe_until: u64,
}

impl Lease {
    /// One that was asked for at `sent_at`.
    pub(crate) fn granted(name: &str, token: Token, ttl_ms: u64, sent_at: u64) -> Lease {
        Lease { name: name.to_owned(), token, ttl_ms, safe_until: safe_until(sent_at, ttl_ms) }
    }

    /// Counts a renewal that was asked for at `sent_at`, by the time that the cluster manager keeps for the lease. Those that run side by side may end in any order.
    pub(crate) fn renewed(&mut self, sent_at: u64, ttl_ms: u64) {
        self.ttl_ms = ttl_ms;
        self.safe_until = self.safe_until.max(safe_until(sent_at, ttl_ms));
    }
}

/// Until when a holder may rely on a lease, or a member on its membership: see [`crate::model`].
fn safe_until(sent_at: u64, ttl_ms: u64) -> u64 {
    sent_at.saturating_add(ttl_ms.saturating_mul(1_000_000) / 4 * 3)
}

/// Who holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The member.
    pub member: MemberId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The token.
    pub token: Token,
}

/// A lease, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Its name.
    pub name: String,
    /// Who holds it.
    pub holder: Holder,
    /// How long it was asked for, in milliseconds.
    pub ttl_ms: u64,
}

/// A page of leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// The moment.
    pub revision: Revision,
    /// In the order of names.
    pub leases: Vec<HeldLease>,
    /// With which name the next page begins: after this one. `None` if this is the last. Pages are of different moments.
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
    /// The moment.
    pub revision: Revision,
    /// In the order of paths.
    pub entries: Vec<Entry>,
    /// With which path the next page begins: after this one. `None` if this is the last. Pages are of different moments.
    pub more_after: Option<String>,
}

/// Bytes of a [`View`].
pub const VIEW_BYTES_MAX: usize = 4 << 20;
/// What a member, a lease or an entry counts in a view beyond its name and value.
pub(crate) const VIEW_ITEM_BYTES: usize = 40;

/// Members, leases and a subtree as of one moment: that of [`Members::revision`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// All members, the epoch, and the moment; watch from there.
    pub members: Members,
    /// Leases whose names are the root or below it, in order.
    pub leases: Vec<HeldLease>,
    /// The entry of the root and those below it, in order.
    pub entries: Vec<Entry>,
}

impl View {
    /// Why there is none of this root.
    pub(crate) fn too_large(root: &str) -> CoordError {
        let what = format!("a view of {root} (choose a path below it, or read it in pages)");
        CoordError::TooLarge { what, max: VIEW_BYTES_MAX as u64 }
    }

    /// Checks how much of a root it has.
    pub(crate) fn check_bytes(self, root: &str) -> Result<View, CoordError> {
        let of_members = self.members.members.iter().map(|member| member.about.len());
        let of_leases = self.leases.iter().map(|lease| lease.name.len());
        let of_entries = self.entries.iter().map(|entry| entry.path.len() + entry.value.len());
        let bytes: usize = of_members.chain(of_leases).chain(of_entries).map(|bytes| bytes + VIEW_ITEM_BYTES).sum();
        if bytes > VIEW_BYTES_MAX { Err(View::too_large(root)) } else { Ok(self) }
    }
}

/// When an entry is to be set or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// In any case. (A deletion of what is not there is refused nevertheless.)
    #[default]
    Always,
    /// If it is not there.
    Absent,
    /// If it has this version.
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
        /// Those below this path, and that of the path itself; `/` is the whole tree.
        root: String,
    },
}

impl Scope {
    /// Every scope that something that happened is in.
    pub(crate) fn all_of(happening: &Happening) -> Vec<Scope> {
        let mut scopes = vec![Scope::All];
        match happening {
            Happening::Set { path, .. } | Happening::Deleted { path } => {
                let ends = path.match_indices('/').map(|(end, _)| end.max(1)).chain([path.len()]);
                scopes.extend(ends.map(|end| Scope::Tree { root: path[..end].to_owned() }));
            }
            Happening::Granted { .. } | Happening::Ended { .. } => scopes.push(Scope::Leases),
            _ => scopes.push(Scope::Members),
        }
        scopes
    }

    /// Whether something that happened is in it.
    pub fn holds(&self, happening: &Happening) -> bool {
        match (happening, self) {
            (_, Scope::All) => true,
            (Happening::Set { path, .. } | Happening::Deleted { path }, Scope::Tree { root }) => {
                path == root || is_below(path, root)
            }
            (Happening::Granted { .. } | Happening::Ended { .. }, Scope::Leases) => true,
            (
                Happening::Joined { .. } | Happening::Failed { .. } | Happening::Left { .. } | Happening::Forgotten { .. },
                Scope::Members,
            ) => true,
            _ => false,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When. Events of one step share it, so a watch that begins after it leaves out all of them.
    pub revision: Revision,
    /// What.
    pub happening: Happening,
}

/// What can happen.
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
    /// A member was not heard for too long.
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
    /// A member that had failed was forgotten; the epoch is as before.
    Forgotten {
        /// The member.
        member: MemberId,
    },
    /// A lease was granted; the token is the revision. Who held it already, being the same member, does so no more with the token of before, whether or not an
    /// [`Happening::Ended`] said so.
    Granted {
        /// The lease.
        name: String,
        /// To whom.
        member: MemberId,
    },
    /// A lease was given up, or its time was over.
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
    /// The epoch that it began.
    pub fn epoch(&self) -> Option<u64> {
        match self {
            Happening::Joined { epoch, .. } | Happening::Failed { epoch, .. } | Happening::Left { epoch, .. } => {
                Some(*epoch)
            }
            _ => None,
        }
    }
}

/// What happened in a scope after a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// In order.
    pub events: Vec<Event>,
    /// Everything in the scope up to this revision is in here, or came before: watch on from it.
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
