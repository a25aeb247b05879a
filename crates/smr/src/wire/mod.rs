//! What travels: fixed layouts, little-endian, read by parsers that take any bytes and panic for none.
//!
//! | File | What it holds |
//! |---|---|
//! | `bytes` | reading and writing numbers and lengths |
//! | `message` | Raft's messages between replicas, several in an envelope |
//! | `chunk` | pieces of snapshots |
//! | `command` | what stands in entries of the log |
//! | `request`, `response` | what clients ask and are answered |
//! | `members` | addresses of replicas, and what they are |

pub(crate) mod bytes;
pub(crate) mod chunk;
pub mod command;
pub(crate) mod members;
pub(crate) mod message;
pub mod request;
pub mod response;

use std::ops::Range;

/// Request type of Raft's messages.
pub const PEER: u8 = 0x40;
/// Request type of pieces of snapshots.
pub const CHUNK: u8 = 0x41;
/// Request type of clients.
pub const CLIENT: u8 = 0x42;
/// The version of all layouts here.
pub const VERSION: u8 = 3;

/// The number of the cluster that a message between replicas is of: 0 for none.
///
/// # Errors
/// If it is no message of this version.
pub(crate) fn cluster_of(message: &[u8]) -> Result<u64, WireError> {
    let mut reader = bytes::Reader::new(message);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(WireError::Unknown { field: "version", value: version.into() });
    }
    reader.take(7)?;
    reader.u64()
}

/// Where a request says which group is asked: that of a client, and a piece of a snapshot.
const GROUP: Range<usize> = 2..4;

/// The group that a request is for.
pub(crate) fn group_of(request: &[u8]) -> Option<u16> {
    request.get(GROUP)?.try_into().ok().map(u16::from_le_bytes)
}

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// They end before the message does.
    #[error("the message is cut off")]
    Short,
    /// More bytes follow than belong to it.
    #[error("bytes follow the message")]
    Long,
    /// A field has a value that none has.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// It is of another cluster.
    #[error("the message is of cluster {theirs:016x}, and this replica of cluster {ours:016x}")]
    OtherCluster {
        /// The sender's.
        theirs: u64,
        /// This replica's.
        ours: u64,
    },
}
