//! Commands, queries and answers of the [machine](crate::model::Machine) as bytes. Parsers accept any bytes and never
//! panic.

mod codec;

pub use codec::{Wire, WireError};
pub(crate) use codec::{put_len, take_len, wire_enum, wire_struct, wire_vec};

use crate::error::CoordError;
use crate::transaction::{Compare, Transaction, Write};
use crate::types::{
    Changes, Condition, Entry, EpochChange, Epochs, Event, Happening, Health, HeldLease, Holder, Incarnation, Joined,
    Leases, Listing, Member, MemberId, Members, Revision, Scope, Token, View,
};

/// Commands: they change the state. Most are methods of [`Coordinator`](crate::Coordinator); the last two are the
/// watchman's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command {
    /// A member joins, or joins again.
    Join { member: MemberId, about: Vec<u8> },
    /// A member leaves, and gives up its leases.
    Leave { member: MemberId, incarnation: Incarnation },
    /// A failed member will not come back.
    Forget { member: MemberId },
    /// Epochs are not needed any more.
    CutEpochs { up_to: u64 },
    /// Acquires a lease.
    Acquire { name: String, member: MemberId, incarnation: Incarnation, ttl_ms: u64 },
    /// Releases a lease.
    Release { name: String, token: Token },
    /// Sets and deletes entries, all or none.
    Transact { transaction: Transaction },
    /// A watchman begins: only the latest one may decide. Members are told its failure timeout.
    Reign { failure_timeout_ms: u64 },
    /// The findings of a look, in one step: members silent for the failure timeout, and leases whose time is over.
    Decide { reign: u64, members: Vec<Silent>, leases: Vec<Lapsed> },
}

/// Queries: they read the state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Query {
    /// All members.
    Members,
    /// A page of the epochs after one.
    Epochs { after: u64 },
    /// The holder of a lease.
    Holder { name: String },
    /// A page of the leases.
    Leases { after: Option<String> },
    /// An entry.
    Get { path: String },
    /// A page of the entries below a path.
    List { root: String, after: Option<String> },
    /// Members, leases and a subtree at one revision.
    View { root: String },
    /// The events after a revision.
    Changes { scope: Scope, after: Revision },
    /// The same, for a watcher that waits until something happens.
    Watch { scope: Scope, after: Revision },
    /// A member is alive, and knows an epoch. The leader hears it, outside the state: see
    /// [`Hearing`](crate::model::Hearing).
    Heartbeat { member: MemberId, incarnation: Incarnation, epoch: u64 },
    /// Renews a lease; heard in the same way.
    Renew { name: String, token: Token },
    /// The watchman beside the leader reads the counts.
    Pulse { reign: u64 },
}

/// Whether this query must not wait behind others: members and leases depend on a timely answer.
pub(crate) fn is_urgent(query: &[u8]) -> bool {
    let parsed = Query::from_bytes(query);
    matches!(parsed, Ok(Query::Heartbeat { .. } | Query::Renew { .. } | Query::Pulse { .. }))
}

/// The answer to a command or a query.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    /// It was refused, and changed nothing.
    Refused { error: CoordError },
    /// To [`Command::Join`].
    Joined { joined: Joined },
    /// To [`Query::Heartbeat`].
    Heard { epoch: u64, is_settled: bool, failure_timeout_ms: u64 },
    /// To [`Command::Acquire`].
    Granted { token: Token, ttl_ms: u64 },
    /// To other commands: executed; the current revision.
    Done { revision: Revision },
    /// To [`Command::Reign`]; and to [`Query::Pulse`], once the counts are in the replica's hearing.
    Reigns { reign: u64 },
    /// To [`Query::Members`].
    Members { members: Members },
    /// To [`Query::Epochs`].
    Epochs { epochs: Epochs },
    /// To [`Query::Holder`].
    Holder { holder: Option<Holder> },
    /// To [`Query::Leases`].
    Leases { leases: Leases },
    /// To [`Query::Get`].
    Found { entry: Option<Entry> },
    /// To [`Query::List`].
    Listing { listing: Listing },
    /// To [`Query::View`].
    View { view: View },
    /// To [`Query::Changes`] and [`Query::Watch`].
    Changes { changes: Changes },
    /// To [`Query::Renew`].
    Renewed { ttl_ms: u64 },
    /// To [`Query::Heartbeat`] and [`Query::Renew`]: ask again, since no watchman reigns yet, or it is not known yet
    /// whether the member has failed or the lease is over.
    NotYet,
    /// To [`Command::Decide`]: how many members have failed, how many leases are over, and how many of both had ended
    /// or begun anew meanwhile.
    Decided { failures: u64, lapses: u64, refused: u64 },
}

/// A member that was silent for the failure timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silent {
    /// The member.
    pub member: MemberId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// A lease that was not renewed in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lapsed {
    /// Its name.
    pub name: String,
    /// Its token.
    pub token: Token,
}

wire_enum!(Command {
    1 => Join { member, about },
    3 => Leave { member, incarnation },
    4 => Forget { member },
    5 => Acquire { name, member, incarnation, ttl_ms },
    7 => Release { name, token },
    10 => Reign { failure_timeout_ms },
    14 => Transact { transaction },
    15 => Decide { reign, members, leases },
    16 => CutEpochs { up_to },
});

wire_enum!(Query {
    1 => Members {},
    2 => Holder { name },
    3 => Get { path },
    4 => List { root, after },
    5 => Changes { scope, after },
    7 => Leases { after },
    8 => View { root },
    10 => Renew { name, token },
    11 => Pulse { reign },
    12 => Epochs { after },
    13 => Watch { scope, after },
    14 => Heartbeat { member, incarnation, epoch },
});

wire_enum!(Answer {
    0 => Refused { error },
    1 => Joined { joined },
    3 => Granted { token, ttl_ms },
    4 => Done { revision },
    5 => Reigns { reign },
    6 => Members { members },
    7 => Holder { holder },
    8 => Found { entry },
    9 => Listing { listing },
    10 => Changes { changes },
    12 => Leases { leases },
    13 => Decided { failures, lapses, refused },
    14 => View { view },
    15 => Renewed { ttl_ms },
    16 => NotYet {},
    18 => Epochs { epochs },
    19 => Heard { epoch, is_settled, failure_timeout_ms },
});

wire_enum!(CoordError {
    1 => NotLive { member, incarnation },
    2 => Live { member },
    3 => Held { name, holder, token },
    4 => LeaseLost { name, token },
    5 => BadTtl { millis },
    6 => NotFound { what },
    7 => Exists { path, version },
    8 => Changed { path, version },
    9 => Compacted { compacted },
    10 => BadPath { path, why },
    11 => TooLarge { what, max },
    12 => Full { what, max },
    13 => ReignOver { reign },
    14 => TimedOut { may_have_run },
    15 => Backend { why, may_have_run },
    16 => EpochChanged { epoch },
    17 => BadTransaction { why },
    18 => LeasesRun { member, name },
    19 => EpochsCut { epoch },
    20 => EpochAhead { asked, epoch },
});

wire_enum!(Condition { 0 => Always {}, 1 => Absent {}, 2 => Version { version } });
wire_enum!(Compare { 1 => Epoch { epoch }, 2 => Lease { name, token }, 3 => Entry { path, condition } });
wire_enum!(Write { 1 => Set { path, value }, 2 => Delete { path } });
wire_enum!(Scope { 0 => All {}, 1 => Members {}, 2 => Leases {}, 3 => Tree { root } });
wire_enum!(Health { 0 => Live {}, 1 => Failed {} });

wire_enum!(Happening {
    1 => Joined { member, epoch },
    2 => Failed { member, epoch },
    3 => Left { member, epoch },
    4 => Forgotten { member },
    5 => Granted { name, member },
    6 => Ended { name, token },
    7 => Set { path, value },
    8 => Deleted { path },
});

wire_struct!(Event { revision, happening });
wire_struct!(Member { id, incarnation, health, epoch, about });
wire_struct!(EpochChange { epoch, revision, changes });
wire_struct!(Epochs { epochs, has_more });
wire_struct!(Members { epoch, revision, members });
wire_struct!(Joined { incarnation, epoch, failure_timeout_ms });
wire_struct!(Holder { member, incarnation, token });
wire_struct!(Entry { path, version, value });
wire_struct!(Listing { revision, entries, more_after });
wire_struct!(HeldLease { name, holder, ttl_ms });
wire_struct!(Leases { revision, leases, more_after });
wire_struct!(View { members, leases, entries });
wire_struct!(Transaction { compares, writes });
wire_struct!(Changes { events, up_to });
wire_struct!(Silent { member, incarnation });
wire_struct!(Lapsed { name, token });
wire_vec!(Event, Happening, EpochChange, Member, Entry, HeldLease, Silent, Lapsed, Compare, Write);

impl From<CoordError> for Answer {
    fn from(error: CoordError) -> Self {
        Answer::Refused { error }
    }
}
