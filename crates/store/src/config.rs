//! What a partition is made of, and why one could not be made.

use thiserror::Error;

use crate::log;

/// Least memory of a partition: sixteen of the smallest segments.
pub const MEMORY_BYTES_MIN: usize = 1 << 20;
/// Most memory of a partition. What an index entry can point to is far more; this keeps sums of sizes from wrapping.
pub const MEMORY_BYTES_MAX: usize = 1 << 44;

/// Smallest segment that [`PartitionConfig::segment`] may name: a page.
pub const SEGMENT_BYTES_MIN: usize = 4096;
/// Least number of segments that a memory has.
const SEGMENTS_OF_MEMORY_MIN: usize = 16;

/// What happens when there is more to keep than memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Older items make place for newer ones (MICA's cache).
    #[default]
    Cache,
    /// Nothing is lost; more is refused with [`crate::Refused::Full`] (MICA's store).
    Store,
}

/// Where items stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// An item that fits into a cache line with what is known of it stands in the line of the index that its hash names; others stand in
    /// the log. One dependent miss for small items, two for others.
    #[default]
    Inline,
    /// Every item stands in the log, as in MICA: two dependent misses. To compare with.
    Log,
}

/// What keys are hashed with, under a random secret of 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyFunction {
    /// Multilinear hashing: strongly universal, so that no keys that were chosen without seeing hashes meet more often than random ones.
    #[default]
    Multilinear,
    /// SipHash-1-3: a pseudorandom function, for whom that is not enough. Reads of small items in bursts take a fifth longer.
    SipHash,
}

/// When the pages of a partition's memory are taken from the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefault {
    /// As they are needed. A page costs about 2 us then, a huge page 0.4 to 2.7 ms.
    #[default]
    AsNeeded,
    /// All at the start, so that nothing waits for one later.
    AtStart,
}

/// How to make a [`crate::Partition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionConfig {
    /// What happens when memory runs out.
    pub mode: Mode,
    /// Bytes of memory for index and items together, [`MEMORY_BYTES_MIN`] to [`MEMORY_BYTES_MAX`]. Reserved at the start, never exceeded;
    /// rounded down to whole segments.
    pub memory: usize,
    /// Bytes of a segment, the unit in which index and log share the memory: a power of two from [`SEGMENT_BYTES_MIN`] to a sixteenth of the
    /// memory. `None` for a sixteenth, 64 KiB to 8 MiB. A smaller segment takes less time to clean; no value is longer than one.
    pub segment: Option<usize>,
    /// Where items stand.
    pub layout: Layout,
    /// What keys are hashed with.
    pub key_function: KeyFunction,
    /// When pages are taken from the system.
    pub prefault: Prefault,
}

impl PartitionConfig {
    /// A partition of this mode and memory; all else as by default.
    pub fn new(mode: Mode, memory: usize) -> PartitionConfig {
        PartitionConfig {
            mode,
            memory,
            segment: None,
            layout: Layout::default(),
            key_function: KeyFunction::default(),
            prefault: Prefault::default(),
        }
    }
}

impl PartitionConfig {
    /// The size of a segment, after all limits are checked.
    pub(crate) fn segment_bytes(&self) -> Result<usize, PartitionError> {
        let memory = self.memory;
        match memory {
            0..MEMORY_BYTES_MIN => return Err(PartitionError::TooSmall { bytes: memory }),
            MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX => {}
            _ => return Err(PartitionError::TooLarge { bytes: memory }),
        }
        let sixteenth = memory / SEGMENTS_OF_MEMORY_MIN;
        match self.segment {
            None => Ok((1 << sixteenth.ilog2()).min(log::SEGMENT_BYTES_MAX)),
            Some(bytes) if bytes.is_power_of_two() && (SEGMENT_BYTES_MIN..=sixteenth).contains(&bytes) => Ok(bytes),
            Some(bytes) => Err(PartitionError::Segment { bytes, memory }),
        }
    }
}

/// Why there is no partition.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Less than [`MEMORY_BYTES_MIN`].
    #[error("a partition of {bytes} bytes is too small: give it {MEMORY_BYTES_MIN} or more")]
    TooSmall {
        /// The bytes asked for.
        bytes: usize,
    },
    /// More than [`MEMORY_BYTES_MAX`].
    #[error("a partition of {bytes} bytes is too large: give it {MEMORY_BYTES_MAX} or less")]
    TooLarge {
        /// The bytes asked for.
        bytes: usize,
    },
    /// A segment that is no power of two, or too small or too large for the memory.
    #[error(
        "segments of {bytes} bytes do not fit a partition of {memory} bytes: choose a power of two from {SEGMENT_BYTES_MIN} to a sixteenth of the memory"
    )]
    Segment {
        /// The bytes asked for.
        bytes: usize,
        /// The bytes of the partition.
        memory: usize,
    },
    /// The system has no such memory.
    #[error(
        "the system gives no {bytes} bytes of memory for a partition ({cause}): give it less, or raise the limit of the process or container"
    )]
    NoMemory {
        /// The bytes asked for.
        bytes: usize,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The system has no random numbers for the secret of the hash and the first token.
    #[error("the system gives no random numbers for the secret of a partition: {cause}")]
    NoSecret {
        /// What the system says.
        cause: getrandom::Error,
    },
}
