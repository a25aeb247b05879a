//! Requests to logs: records to append, ended transactions, and recovery.

use bytes::{Buf, BufMut};

use super::{WireError, take};
use crate::ids::TransactionId;

/// Ended transactions that one message can report.
pub const ENDED_MAX: usize = 255;

/// The body of [`super::Kind::Log`]. The count in the header is the number of writes in the record; zero means no
/// record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append<'a> {
    /// Transactions of the same coordinator and epoch that are committed at all copies: their records are dropped.
    pub ended: Vec<u64>,
    /// The lowest transaction of the coordinator that may be undecided.
    pub open: u64,
    /// The writes, encoded.
    pub record: &'a [u8],
}

impl<'a> Append<'a> {
    /// Writes everything before the record.
    ///
    /// # Panics
    /// If more than [`ENDED_MAX`] have ended.
    pub fn encode_ended(ended: &[u64], open: u64, out: &mut Vec<u8>) {
        out.put_u8(ended.len().try_into().expect("at most 255 transactions end with one message"));
        out.put_u64_le(open);
        ended.iter().for_each(|sequence| out.put_u64_le(*sequence));
    }

    /// Parses it.
    ///
    /// # Errors
    /// If it is truncated.
    pub fn parse(mut from: &'a [u8]) -> Result<Append<'a>, WireError> {
        let count = usize::from(from.try_get_u8()?);
        let open = from.try_get_u64_le()?;
        let mut numbers = take(&mut from, count * 8)?;
        let ended = (0..count).map(|_| numbers.get_u64_le()).collect();
        Ok(Append { ended, open, record: from })
    }
}

/// A record, as recovery transfers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// Its transaction.
    pub transaction: TransactionId,
    /// Writes in it.
    pub count: u16,
    /// The writes, encoded.
    pub record: &'a [u8],
}

impl<'a> Recorded<'a> {
    /// Encoded bytes besides those of the record.
    pub const BYTES: usize = 30;

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_transaction(out, self.transaction);
        out.put_u16_le(self.count);
        out.put_u32_le(self.record.len() as u32);
        out.put_slice(self.record);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated.
    pub fn take(from: &mut &'a [u8]) -> Result<Recorded<'a>, WireError> {
        let transaction = take_transaction(from)?;
        let count = from.try_get_u16_le()?;
        let len = from.try_get_u32_le()? as usize;
        Ok(Recorded { transaction, count, record: take(from, len)? })
    }
}

/// Writes a transaction id.
pub fn put_transaction(out: &mut Vec<u8>, transaction: TransactionId) {
    out.put_u64_le(transaction.epoch);
    out.put_u64_le(transaction.coordinator);
    out.put_u64_le(transaction.sequence);
}

/// Takes a transaction id from the front.
///
/// # Errors
/// If it is truncated.
pub fn take_transaction(from: &mut &[u8]) -> Result<TransactionId, WireError> {
    let (epoch, coordinator) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
    Ok(TransactionId { epoch, coordinator, sequence: from.try_get_u64_le()? })
}
