//! The header of every request: 44 bytes. The header of the paper's commit records has 36.

use bytes::{Buf, BufMut, Bytes};

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
        out.put_u8(VERSION);
        out.put_u8(self.kind.req_type());
        out.put_u16_le(self.count);
        out.put_u64_le(self.cluster);
        out.put_u64_le(self.transaction.epoch);
        out.put_u64_le(self.transaction.coordinator);
        out.put_u64_le(self.transaction.sequence);
        out.put_u64_le(self.incarnation);
    }

    /// Takes the header of a request of a kind from the front.
    ///
    /// # Errors
    /// If it is truncated, of another version, or of another kind.
    pub fn take(kind: Kind, from: &mut &[u8]) -> Result<Header, WireError> {
        let version = from.try_get_u8()?;
        if version != VERSION {
            return Err(WireError::Version { theirs: version });
        }
        let said = from.try_get_u8()?;
        if said != kind.req_type() {
            return Err(WireError::Unknown { field: "kind", value: said.into() });
        }
        let count = from.try_get_u16_le()?;
        let cluster = from.try_get_u64_le()?;
        let epoch = from.try_get_u64_le()?;
        let coordinator = from.try_get_u64_le()?;
        let sequence = from.try_get_u64_le()?;
        let transaction = TransactionId { epoch, coordinator, sequence };
        Ok(Header { kind, count, cluster, transaction, incarnation: from.try_get_u64_le()? })
    }

    /// A copy of a message for another process.
    pub(crate) fn addressed(message: &[u8], incarnation: u64) -> Bytes {
        let mut message = message.to_vec();
        message[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&incarnation.to_le_bytes());
        message.into()
    }

    /// Sets the count of a finished message.
    pub(crate) fn set_count(message: &mut [u8], count: u16) {
        message[2..4].copy_from_slice(&count.to_le_bytes());
    }
}
