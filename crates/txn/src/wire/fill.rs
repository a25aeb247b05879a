//! Pages of a copy that is being filled.

use bytes::{Buf, BufMut};

use super::write::Write;
use super::{WireError, end};
use crate::ids::{NodeId, PartitionId};

/// The place from which a primary begins anew, whatever it has noted before.
pub const BEGINNING: u64 = 0;

/// A request for a page: the entry of a [`super::Kind::Fill`] request, which has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillRequest {
    /// The partition.
    pub partition: PartitionId,
    /// The node of the new copy.
    pub node: NodeId,
    /// Where the page begins: [`BEGINNING`], or where the page before it ended.
    pub from: u64,
}

impl FillRequest {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.partition.0);
        out.put_u32_le(self.node);
        out.put_u64_le(self.from);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated.
    pub fn take(from: &mut &[u8]) -> Result<FillRequest, WireError> {
        let (partition, node) = (PartitionId(from.try_get_u32_le()?), from.try_get_u32_le()?);
        Ok(FillRequest { partition, node, from: from.try_get_u64_le()? })
    }
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FillPage<'a> {
    /// Where the next page begins; [`FillPage::keys`] if this is the last.
    pub next: u64,
    /// Keys that the primary noted.
    pub keys: u64,
    /// The items, as writes.
    pub items: Vec<Write<'a>>,
}

impl<'a> FillPage<'a> {
    /// Bytes before the items.
    pub const BYTES: usize = 20;

    /// Writes what is before the items, in place of as many bytes.
    pub fn encode_head(next: u64, keys: u64, items: u32, mut out: &mut [u8]) {
        out.put_u64_le(next);
        out.put_u64_le(keys);
        out.put_u32_le(items);
    }

    /// Parses an answer behind its status.
    ///
    /// # Errors
    /// If it is malformed, or does not go on.
    pub fn parse(mut from: &'a [u8]) -> Result<FillPage<'a>, WireError> {
        let (next, keys) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
        let count = from.try_get_u32_le()?;
        let items = Write::take_all(count as usize, &mut from)?;
        end(from)?;
        if next > keys {
            return Err(WireError::Unknown { field: "place behind a page", value: next });
        }
        Ok(FillPage { next, keys, items })
    }
}
