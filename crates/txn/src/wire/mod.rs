//! Wire formats: fixed layouts, little-endian. Parsers accept any bytes and never panic. `docs/transactions.md`
//! specifies the formats.
//!
//! | File | What it holds |
//! |---|---|
//! | `header` | the header of every request |
//! | `execute` | read, lock, validate, unlock: lists of keys |
//! | `scan` | range reads |
//! | `write` | new values: log records and commits |
//! | `log` | requests to logs |
//! | `fill` | pages of a copy that is being filled |
//! | `answer` | statuses, and results |

pub mod answer;
pub mod execute;
pub mod fill;
pub mod header;
pub mod log;
pub mod scan;
pub mod write;

use bytes::{Buf, BufMut, TryGetError};

pub use header::{HEADER_BYTES, Header};

/// The version of all layouts here.
pub const VERSION: u8 = 3;

/// The kind of a request. Each kind is a separate request type, so that an endpoint counts and times them separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Reads keys, or reads and locks them (phase 1).
    Execute = 0x50,
    /// Compares the versions of keys that were read (phase 2).
    Validate = 0x51,
    /// Appends a commit record, and drops those of transactions that have ended (phase 3).
    Log = 0x52,
    /// Applies committed writes to backups (phase 4).
    CommitBackup = 0x53,
    /// Applies committed writes to primaries, and unlocks (phase 5).
    CommitPrimary = 0x54,
    /// Unlocks the keys of a transaction that does not commit.
    Abort = 0x55,
    /// Asks a log for the outcome of a transaction.
    Outcome = 0x56,
    /// Recovery: fetches a slice of a log's records of earlier epochs.
    Collect = 0x57,
    /// Recovery: gives a log the records of the other logs.
    Spread = 0x58,
    /// Recovery: applies a slice of the records of earlier epochs to all copies.
    Replay = 0x59,
    /// Recovery: drops a slice of these records, or releases one of the locks of earlier epochs, and opens promoted
    /// partitions.
    Open = 0x5a,
    /// Asks a log for its record of a transaction, and makes it refuse further records of it.
    Fence = 0x5b,
    /// Reports that a fenced transaction is committed at all copies: its record is dropped.
    End = 0x5c,
    /// Reads a page of a range of an ordered table (phase 1).
    Scan = 0x5d,
    /// Fills a new copy of a partition: reads a page of its primary.
    Fill = 0x5e,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 15] = [
        Kind::Execute,
        Kind::Validate,
        Kind::Log,
        Kind::CommitBackup,
        Kind::CommitPrimary,
        Kind::Abort,
        Kind::Outcome,
        Kind::Collect,
        Kind::Spread,
        Kind::Replay,
        Kind::Open,
        Kind::Fence,
        Kind::End,
        Kind::Scan,
        Kind::Fill,
    ];

    /// Its request type.
    pub fn req_type(self) -> u8 {
        self as u8
    }

    /// Its place in [`Kind::ALL`].
    pub fn index(self) -> usize {
        usize::from(self as u8 - Kind::Execute as u8)
    }
}

/// Malformed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the message does.
    #[error("the message is cut off")]
    Short,
    /// Bytes follow the end of the message.
    #[error("bytes follow the message")]
    Long,
    /// The message has another version of the layouts.
    #[error("the message has version {theirs} of the layouts, not {VERSION}: run the same version everywhere")]
    Version {
        /// Its version.
        theirs: u8,
    },
    /// A field has an undefined value.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl From<TryGetError> for WireError {
    fn from(_: TryGetError) -> WireError {
        WireError::Short
    }
}

/// Takes bytes from the front.
pub(crate) fn take<'a>(from: &mut &'a [u8], len: usize) -> Result<&'a [u8], WireError> {
    let (taken, rest) = from.split_at_checked(len).ok_or(WireError::Short)?;
    *from = rest;
    Ok(taken)
}

/// The length that means "no value".
const NO_VALUE: u32 = u32::MAX;

/// Takes a value with its length, which may mean "no value".
pub(crate) fn take_value<'a>(from: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    match from.try_get_u32_le()? {
        NO_VALUE => Ok(None),
        len => take(from, len as usize).map(Some),
    }
}

/// Writes what [`take_value`] reads.
pub(crate) fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => out.put_u32_le(NO_VALUE),
        Some(value) => {
            out.put_u32_le(value.len() as u32);
            out.put_slice(value);
        }
    }
}

/// # Errors
/// [`WireError::Long`] if bytes are left.
pub(crate) fn end(left: &[u8]) -> Result<(), WireError> {
    if left.is_empty() { Ok(()) } else { Err(WireError::Long) }
}
