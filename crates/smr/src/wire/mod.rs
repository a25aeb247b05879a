//! The wire format: fixed layouts, little-endian; the parsers accept any bytes and never panic.
//!
//! | File | What it holds |
//! |---|---|
//! | `bytes` | reading and writing numbers and lengths |
//! | `message` | Raft messages between replicas, several in an envelope |
//! | `chunk` | pieces of snapshots between replicas |
//! | `piece` | pieces of the state for backups |
//! | `command` | the content of log entries |
//! | `request`, `response` | requests of clients, and the responses |
//! | `members` | the replicas and their addresses |

pub(crate) mod bytes;
pub(crate) mod chunk;
pub mod command;
pub(crate) mod members;
pub(crate) mod message;
pub(crate) mod piece;
pub mod request;
pub mod response;

use std::ops::Range;

/// Request type of Raft messages.
pub const PEER: u8 = 0x40;
/// Request type of pieces of snapshots.
pub const CHUNK: u8 = 0x41;
/// Request type of clients.
pub const CLIENT: u8 = 0x42;
/// The version of all layouts here.
pub const VERSION: u8 = 3;

/// Returns the cluster that a message between replicas belongs to: 0 for none.
///
/// # Errors
/// If it is not a message of this version.
pub(crate) fn cluster_of(message: &[u8]) -> Result<u64, WireError> {
    let mut reader = bytes::Reader::new(message);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(WireError::Unknown { field: "version", value: version.into() });
    }
    reader.take(7)?;
    reader.u64()
}

/// The field with the group, in requests of clients and in pieces of snapshots.
const GROUP: Range<usize> = 2..4;

/// Returns the group that a request is for.
pub(crate) fn group_of(request: &[u8]) -> Option<u16> {
    request.get(GROUP)?.try_into().ok().map(u16::from_le_bytes)
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the message does.
    #[error("the message is cut off")]
    Short,
    /// Bytes follow after the message.
    #[error("bytes follow the message")]
    Long,
    /// A field has an invalid value.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The message is of another cluster.
    #[error("the message is of cluster {theirs:016x}, and this replica of cluster {ours:016x}")]
    OtherCluster {
        /// The sender's cluster.
        theirs: u64,
        /// This replica's cluster.
        ours: u64,
    },
}
