//! The properties of a partition, besides its items, that decide whether the items fit.

use crate::config::{KeyFunction, Layout, Mode, PartitionConfig, PartitionError};
use crate::memory::LINE_BYTES;

/// The properties that a partition must share with another to have room for all of its items: the secret of its hash,
/// and how index and log share the memory. Under another secret, other keys crowd the index, and a full store may then
/// reject some.
///
/// A snapshot records it for each partition ([`crate::snapshot::Origin`]), and [`crate::Partition::with_shape`] creates
/// a partition from it. An attacker who knows the secret can choose keys that slow the partition down: keep it from
/// clients.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    pub(crate) secret: [u64; 2],
    /// Bytes of memory, as configured.
    pub(crate) memory: u64,
    /// Bytes of a segment.
    pub(crate) segment: u64,
    /// Lines of the index.
    pub(crate) lines: u64,
    /// See [`kind`].
    pub(crate) kind: u8,
}

impl Shape {
    /// Returns whether a partition with this configuration can take this shape. If not, it can still hold the items as
    /// far as it has room.
    ///
    /// # Errors
    /// [`PartitionError`] if no partition can have this configuration.
    pub fn suits(&self, config: &PartitionConfig) -> Result<bool, PartitionError> {
        let is_same_memory = (self.memory, self.segment) == (config.memory as u64, config.segment_bytes()? as u64);
        Ok(is_same_memory && self.kind == kind(config))
    }

    /// Returns the bytes of memory of the partition, including the index.
    pub fn memory_bytes(&self) -> u64 {
        self.memory
    }

    /// Returns the bytes of the lines of its index.
    pub fn index_bytes(&self) -> u64 {
        self.lines * LINE_BYTES as u64
    }
}

impl std::fmt::Debug for Shape {
    /// Omits the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { secret: _, memory, segment, lines, kind } = self;
        f.debug_struct("Shape")
            .field("memory", memory)
            .field("segment", segment)
            .field("lines", lines)
            .field("kind", kind)
            .finish_non_exhaustive()
    }
}

/// Encodes mode, layout and hash function in one byte: bit 0 for a store; bit 1 for all items in the log; bit 2 for
/// SipHash. Never zero.
pub(crate) fn kind(config: &PartitionConfig) -> u8 {
    const KNOWN: u8 = 1 << 7;
    KNOWN
        | u8::from(config.mode == Mode::Store)
        | u8::from(config.layout == Layout::Log) << 1
        | u8::from(config.key_function == KeyFunction::SipHash) << 2
}
