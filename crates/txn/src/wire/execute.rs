//! Lists of keys: to read and lock, to validate, to unlock.

use bytes::{Buf, BufMut};

use super::scan::Span;
use super::{WireError, take};
use crate::ids::{PartitionId, TableId, Version};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The name of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// The partition of the key. The sender computed it, so that the receiver need not hash the key with the seed.
    pub partition: PartitionId,
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: &'a [u8],
}

impl<'a> Target<'a> {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.partition.0);
        out.put_u16_le(self.table.0);
        out.put_u16_le(self.key.len() as u16);
        out.put_slice(self.key);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated, or its key is empty or too long.
    pub fn take(from: &mut &'a [u8]) -> Result<Target<'a>, WireError> {
        let partition = PartitionId(from.try_get_u32_le()?);
        let table = TableId(from.try_get_u16_le()?);
        let len = usize::from(from.try_get_u16_le()?);
        if len == 0 || len > KEY_BYTES_MAX {
            return Err(WireError::Unknown { field: "key length", value: len as u64 });
        }
        Ok(Target { partition, table, key: take(from, len)? })
    }
}

/// The access to an item in the execution phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Reads and locks it in one step, for which one-sided systems need two round trips.
    ReadAndLock(Lock),
    /// Locks it, without returning its value.
    Lock(Lock),
}

/// A lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// Bytes of room to reserve for the value.
    pub room: u32,
    /// The version that the transaction read before; any other is a conflict. [`Version::MAX`] if it read none.
    pub expected: Version,
}

impl Access {
    /// The lock request in it.
    pub fn lock(&self) -> Option<Lock> {
        match self {
            Access::Read => None,
            Access::ReadAndLock(lock) | Access::Lock(lock) => Some(*lock),
        }
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (number, lock) = match self {
            Access::Read => return out.put_u8(0),
            Access::ReadAndLock(lock) => (1, lock),
            Access::Lock(lock) => (2, lock),
        };
        out.put_u8(number);
        out.put_u32_le(lock.room);
        out.put_u64_le(lock.expected);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated or unknown, or asks for more room than a value may have.
    pub fn take(from: &mut &[u8]) -> Result<Access, WireError> {
        let number = from.try_get_u8()?;
        if number == 0 {
            return Ok(Access::Read);
        }
        let lock = Lock { room: from.try_get_u32_le()?, expected: from.try_get_u64_le()? };
        if lock.room as usize > VALUE_BYTES_MAX {
            return Err(WireError::Unknown { field: "room", value: lock.room.into() });
        }
        match number {
            1 => Ok(Access::ReadAndLock(lock)),
            2 => Ok(Access::Lock(lock)),
            _ => Err(WireError::Unknown { field: "access", value: number.into() }),
        }
    }
}

/// A read to validate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check<'a> {
    /// The item, or its absence, must have this version.
    Item {
        /// The item.
        target: Target<'a>,
        /// The version that was read.
        version: Version,
    },
    /// No key of the range may have changed.
    Range(RangeCheck<'a>),
}

/// A range of an ordered table that must not have changed since a page of it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeCheck<'a> {
    /// The partition, which has all keys of the range.
    pub partition: PartitionId,
    /// The table.
    pub table: TableId,
    /// The range that the page covered.
    pub span: Span<'a>,
    /// The highest version that the partition had issued when it was read.
    pub version: Version,
}

impl<'a> Check<'a> {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Check::Item { target, version } => {
                out.put_u8(0);
                target.encode(out);
                out.put_u64_le(*version);
            }
            Check::Range(RangeCheck { partition, table, span, version }) => {
                out.put_u8(1);
                out.put_u32_le(partition.0);
                out.put_u16_le(table.0);
                span.encode(out);
                out.put_u64_le(*version);
            }
        }
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated or unknown.
    pub fn take(from: &mut &'a [u8]) -> Result<Check<'a>, WireError> {
        match from.try_get_u8()? {
            0 => Ok(Check::Item { target: Target::take(from)?, version: from.try_get_u64_le()? }),
            1 => {
                let (partition, table) = (PartitionId(from.try_get_u32_le()?), TableId(from.try_get_u16_le()?));
                let (span, version) = (Span::take(from)?, from.try_get_u64_le()?);
                Ok(Check::Range(RangeCheck { partition, table, span, version }))
            }
            value => Err(WireError::Unknown { field: "check", value: value.into() }),
        }
    }
}
