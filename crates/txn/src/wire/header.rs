//! The header of every request: 44 bytes. The header of the paper's commit records has 36.

use bytes::{Buf, BufMut};

use super::{Kind, VERSION, WireError};
use crate::ids::TransactionId;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 44;

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of request; equal to the request type, so that a request under a wrong type is detected.
    pub kind: Kind,
    /// Entries that follow.
    pub count: u16,
    /// The cluster.
    pub cluster: u64,
    /// The transaction, with its epoch. Requests of recovery carry the epoch, and zeros.
    pub transaction: TransactionId,
    /// The incarnation of the receiver, as the sender's configuration names it.
    pub incarnation: u64,
}

impl Header {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (VERSION, self.kind.req_type());
        bytes[2..4].copy_from_slice(&self.count.to_le_bytes());
        let TransactionId { epoch, coordinator, sequence } = self.transaction;
        for (at, number) in [self.cluster, epoch, coordinator, sequence, self.incarnation].into_iter().enumerate() {
            bytes[4 + 8 * at..12 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        out.put_slice(&bytes);
    }

    /// Takes the header of a request of a kind from the front.
    ///
    /// # Errors
    /// If it is truncated, of another version, or of another kind.
    pub fn take(kind: Kind, from: &mut &[u8]) -> Result<Header, WireError> {
        // The version comes first: another one may have another length.
        let version = *from.first().ok_or(WireError::Short)?;
        if version != VERSION {
            return Err(WireError::Version { theirs: version });
        }
        let (bytes, rest) = from.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Short)?;
        if bytes[1] != kind.req_type() {
            return Err(WireError::Unknown { field: "kind", value: bytes[1].into() });
        }
        *from = rest;
        let mut numbers = &bytes[2..];
        let count = numbers.get_u16_le();
        let cluster = numbers.get_u64_le();
        let transaction = TransactionId {
            epoch: numbers.get_u64_le(),
            coordinator: numbers.get_u64_le(),
            sequence: numbers.get_u64_le(),
        };
        Ok(Header { kind, count, cluster, transaction, incarnation: numbers.get_u64_le() })
    }

    /// A copy of a message for another process.
    pub(crate) fn addressed(message: &[u8], incarnation: u64) -> Vec<u8> {
        let mut message = message.to_vec();
        message[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&incarnation.to_le_bytes());
        message
    }

    /// Sets the count of a finished message.
    pub(crate) fn set_count(message: &mut [u8], count: u16) {
        message[2..4].copy_from_slice(&count.to_le_bytes());
    }
}
