//! New values: the same bytes in commit records, for backups, and for primaries.

use bytes::{Buf, BufMut};

use super::execute::Target;
use super::{WireError, put_value, take_value};
use crate::ids::Version;
use crate::limits::VALUE_BYTES_MAX;

/// A transaction's write to one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The item.
    pub target: Target<'a>,
    /// The version that it gets, issued by the primary with the lock.
    pub version: Version,
    /// The low-water mark that the primary returned with the lock: all versions of the partition below it are committed
    /// everywhere, or never will be.
    pub low: Version,
    /// The value; `None` deletes the item.
    pub value: Option<&'a [u8]>,
}

impl<'a> Write<'a> {
    /// Encoded bytes besides key and value.
    pub const BYTES: usize = 28;

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.target.encode(out);
        out.put_u64_le(self.version);
        out.put_u64_le(self.low);
        put_value(out, self.value);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated, or a length or version is out of range.
    pub fn take(from: &mut &'a [u8]) -> Result<Write<'a>, WireError> {
        let target = Target::take(from)?;
        let (version, low) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
        if version == 0 || low > version {
            return Err(WireError::Unknown { field: "version", value: version });
        }
        let value = take_value(from)?;
        if let Some(value) = value.filter(|value| value.len() > VALUE_BYTES_MAX) {
            return Err(WireError::Unknown { field: "value length", value: value.len() as u64 });
        }
        Ok(Write { target, version, low, value })
    }

    /// Takes `count` writes.
    ///
    /// # Errors
    /// As [`Write::take`].
    pub fn take_all(count: usize, from: &mut &'a [u8]) -> Result<Vec<Write<'a>>, WireError> {
        // Reserve no more than the bytes can hold: the count is unchecked.
        let mut writes = Vec::with_capacity(count.min(from.len() / Write::BYTES));
        for _ in 0..count {
            writes.push(Write::take(from)?);
        }
        Ok(writes)
    }
}
