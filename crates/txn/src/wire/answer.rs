//! Answers of participants: a status, then the result.

use bytes::{Buf, BufMut};

use super::{VERSION, WireError, put_value, take_value};
use crate::ids::{Epoch, PartitionId, TableId, Version};

/// Why a transaction conflicts with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Another transaction holds the lock.
    Locked,
    /// Another transaction has changed the item since it was read.
    Changed,
}

/// A resource of which a participant has no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Resource {
    /// Bytes of a partition.
    #[error("the memory of the partition is full: delete items, or raise partition_bytes_max")]
    Memory,
    /// Locks of a partition.
    #[error("too many keys of the partition are locked: retry later, or raise locks_max")]
    Locks,
    /// Versions of deleted keys.
    #[error("too many keys were deleted while others are locked: retry later, or raise tombstones_max")]
    Tombstones,
    /// Bytes of a log.
    #[error("the log has no room for another record of this coordinator: raise log_bytes_max")]
    Log,
    /// Coordinators of a log.
    #[error("the log serves as many coordinators as it allows: raise coordinators_max")]
    Coordinators,
    /// Bytes of one answer.
    #[error("the values that were asked for at once exceed 4 MiB: read fewer keys at a time")]
    Answer,
    /// Copies that are filled from one core at a time.
    #[error("the core fills as many copies of its partitions as it may at a time: retry later")]
    Donations,
}

/// Why a participant refused a request. It changed nothing, and locked nothing of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The transaction conflicts with another one.
    #[error("entry {index} of the request is {}", if *cause == Cause::Locked { "locked" } else { "changed" })]
    Conflict {
        /// The entry of the request.
        index: u16,
        /// Why.
        cause: Cause,
    },
    /// A resource is exhausted.
    #[error("{0}")]
    Full(Resource),
    /// The participant is in another epoch.
    #[error("the request is of another epoch than {ours}, which the participant is in")]
    OtherEpoch {
        /// The participant's epoch.
        ours: Epoch,
    },
    /// The participant is of another cluster.
    #[error("the participant is of cluster {ours:016x}: connect to the nodes of your own")]
    OtherCluster {
        /// The participant's cluster.
        ours: u64,
    },
    /// The participant has no copy of the partition in the role that the request needs.
    #[error("the participant does not serve partition {}", .0.0)]
    NotHere(PartitionId),
    /// The partition is being recovered.
    #[error("partition {} is being recovered: retry later", .0.0)]
    Recovering(PartitionId),
    /// There is no such table.
    #[error("there is no table {}", .0.0)]
    NoTable(TableId),
    /// The transaction does not hold the lock that the request needs, or not with enough room.
    #[error("the transaction does not hold the lock of entry {0} of its commit")]
    NotLocked(u16),
    /// The participant is not the process that the configuration names: it started later, and has no data.
    #[error("the participant was started again as {ours:016x}, and has lost what it had: remove its node, and recover")]
    OtherIncarnation {
        /// The participant's incarnation.
        ours: u64,
    },
    /// The transaction held locks for so long that a participant fenced it.
    #[error("the transaction held its locks for too long: run it again, and commit sooner")]
    Fenced,
    /// The request cannot be parsed: another version, or a bug.
    #[error("the participant cannot read the request: run the same version everywhere")]
    Malformed,
    /// The request has another version of the layouts than the participant. Version 2 reads it as
    /// [`Refusal::Malformed`].
    #[error("the participant has version {ours} of the messages, and not {VERSION}: run the same version everywhere")]
    OtherVersion {
        /// The participant's version.
        ours: u8,
    },
    /// The table has no range reads.
    #[error("table {} is not ordered: only ordered tables have range reads", .0.0)]
    NotOrdered(TableId),
    /// The cluster manager has not heard the node of the participant for too long, and may have replaced it.
    #[error("the cluster manager has not heard the node for too long: retry later, at the node that replaces it")]
    NotSafe,
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Refusal {
        match error {
            WireError::Version { .. } => Refusal::OtherVersion { ours: VERSION },
            _ => Refusal::Malformed,
        }
    }
}

const RESOURCES: [Resource; 7] = [
    Resource::Memory,
    Resource::Locks,
    Resource::Tombstones,
    Resource::Log,
    Resource::Coordinators,
    Resource::Answer,
    Resource::Donations,
];

impl Refusal {
    /// Encodes it as two numbers: a status, and a value.
    fn numbers(self) -> (u8, u64) {
        match self {
            Refusal::Conflict { index, cause: Cause::Locked } => (1, index.into()),
            Refusal::Conflict { index, cause: Cause::Changed } => (2, index.into()),
            Refusal::Full(what) => (3, RESOURCES.iter().position(|it| *it == what).unwrap_or(0) as u64),
            Refusal::OtherEpoch { ours } => (4, ours),
            Refusal::OtherCluster { ours } => (5, ours),
            Refusal::NotHere(partition) => (6, partition.0.into()),
            Refusal::Recovering(partition) => (7, partition.0.into()),
            Refusal::NoTable(table) => (8, table.0.into()),
            Refusal::NotLocked(index) => (9, index.into()),
            Refusal::Malformed => (10, 0),
            Refusal::OtherVersion { ours } => (10, ours.into()),
            Refusal::OtherIncarnation { ours } => (11, ours),
            Refusal::Fenced => (12, 0),
            Refusal::NotOrdered(table) => (13, table.0.into()),
            Refusal::NotSafe => (14, 0),
        }
    }

    /// Writes it as the whole answer.
    pub fn encode(self, out: &mut Vec<u8>) {
        let (status, value) = self.numbers();
        out.clear();
        out.put_u8(status);
        out.put_u64_le(value);
    }
}

/// Takes the status from the front of an answer: `Ok(Ok)` if the participant executed the request.
///
/// # Errors
/// If it is not an answer.
pub fn take_status(from: &mut &[u8]) -> Result<Result<(), Refusal>, WireError> {
    let status = from.try_get_u8()?;
    if status == 0 {
        return Ok(Ok(()));
    }
    let value = from.try_get_u64_le()?;
    let unknown = WireError::Unknown { field: "status", value: status.into() };
    Ok(Err(match status {
        1 => Refusal::Conflict { index: value as u16, cause: Cause::Locked },
        2 => Refusal::Conflict { index: value as u16, cause: Cause::Changed },
        3 => Refusal::Full(*RESOURCES.get(value as usize).ok_or(unknown)?),
        4 => Refusal::OtherEpoch { ours: value },
        5 => Refusal::OtherCluster { ours: value },
        6 => Refusal::NotHere(PartitionId(value as u32)),
        7 => Refusal::Recovering(PartitionId(value as u32)),
        8 => Refusal::NoTable(TableId(value as u16)),
        9 => Refusal::NotLocked(value as u16),
        10 => match u8::try_from(value).map_err(|_| unknown)? {
            0 => Refusal::Malformed,
            ours => Refusal::OtherVersion { ours },
        },
        11 => Refusal::OtherIncarnation { ours: value },
        12 => Refusal::Fenced,
        13 => Refusal::NotOrdered(TableId(value as u16)),
        14 => Refusal::NotSafe,
        _ => return Err(unknown),
    }))
}

/// Writes the status of an executed request.
pub fn put_done(out: &mut Vec<u8>) {
    out.put_u8(0);
}

/// The result for one entry of an `Execute` request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The version of the item, or of its absence.
    pub version: Version,
    /// If it was locked: the grant.
    pub grant: Option<Grant>,
    /// The value, if it was requested and the item exists.
    pub value: Option<&'a [u8]>,
    /// Whether the item exists.
    pub presence: Presence,
}

/// Whether an item exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It does not exist.
    Absent,
    /// It exists.
    Present,
}

/// The result of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The version that the transaction's write gets.
    pub version: Version,
    /// All versions of the partition below this one are committed everywhere, or never will be.
    pub low: Version,
}

const IS_PRESENT: u8 = 1;
const HAS_GRANT: u8 = 2;

impl<'a> Found<'a> {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let present = if self.presence == Presence::Present { IS_PRESENT } else { 0 };
        let granted = if self.grant.is_some() { HAS_GRANT } else { 0 };
        out.put_u8(present | granted);
        out.put_u64_le(self.version);
        if let Some(grant) = self.grant {
            out.put_u64_le(grant.version);
            out.put_u64_le(grant.low);
        }
        put_value(out, self.value);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated.
    pub fn take(from: &mut &'a [u8]) -> Result<Found<'a>, WireError> {
        let flags = from.try_get_u8()?;
        let version = from.try_get_u64_le()?;
        let grant = match flags & HAS_GRANT {
            0 => None,
            _ => Some(Grant { version: from.try_get_u64_le()?, low: from.try_get_u64_le()? }),
        };
        let presence = if flags & IS_PRESENT == 0 { Presence::Absent } else { Presence::Present };
        Ok(Found { version, grant, value: take_value(from)?, presence })
    }
}

/// What a log knows of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    /// It has no record of it, and has forgotten none that this could be. Other logs may have one.
    Nothing,
    /// It has a record of it, and does not know whether it is committed.
    Recorded,
    /// It is committed.
    Committed,
    /// It may be among the transactions that the log has forgotten.
    Forgotten,
    /// It never had a record here, although this log gets all records of its coordinator and epoch: it did not commit,
    /// unless its epoch lasts.
    Absent,
}

impl Known {
    /// Parses it.
    ///
    /// # Errors
    /// If the code is unknown.
    pub fn parse(mut from: &[u8]) -> Result<Known, WireError> {
        match from.try_get_u8()? {
            0 => Ok(Known::Nothing),
            1 => Ok(Known::Recorded),
            2 => Ok(Known::Committed),
            3 => Ok(Known::Forgotten),
            4 => Ok(Known::Absent),
            value => Err(WireError::Unknown { field: "outcome", value: value.into() }),
        }
    }
}
