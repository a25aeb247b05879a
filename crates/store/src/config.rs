//! Settings of a partition, and why one could not be created.

use thiserror::Error;

use crate::log;

/// Minimum memory of a partition: sixteen of the smallest segments.
pub const MEMORY_BYTES_MIN: usize = 1 << 20;
/// Maximum memory of a partition. An index entry can address far more; this keeps sums of sizes from overflowing.
pub const MEMORY_BYTES_MAX: usize = 1 << 44;

/// Smallest segment that [`PartitionConfig::segment`] may name: a page.
pub const SEGMENT_BYTES_MIN: usize = 4096;
/// Minimum number of segments.
const SEGMENTS_OF_MEMORY_MIN: usize = 16;

/// What happens when memory runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Older items are evicted for newer ones (MICA's cache).
    #[default]
    Cache,
    /// Nothing is lost; further items are rejected with [`crate::Refused::Full`] (MICA's store).
    Store,
}

/// Where items are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// An item that fits into a cache line with its metadata is stored in the index line that its hash selects; others
    /// are stored in the log. One dependent miss for small items, two for others.
    #[default]
    Inline,
    /// Every item is stored in the log, as in MICA: two dependent misses. For comparison.
    Log,
}

/// The hash function of keys, with a random secret of 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyFunction {
    /// Multilinear hashing: strongly universal, so keys chosen without seeing hashes collide no more often than random
    /// ones.
    #[default]
    Multilinear,
    /// SipHash-1-3: a pseudorandom function, if that is not enough. Reads of small items in bursts take a fifth longer.
    SipHash,
}

/// When the pages of a partition's memory are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefault {
    /// On first use. A page then costs about 2 us, a huge page 0.4 to 2.7 ms.
    #[default]
    AsNeeded,
    /// All at the start, so that nothing waits for one later.
    AtStart,
}

/// The configuration of a [`crate::Partition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionConfig {
    /// What happens when memory runs out.
    pub mode: Mode,
    /// Bytes of memory for index and items together, [`MEMORY_BYTES_MIN`] to [`MEMORY_BYTES_MAX`]. Reserved at the
    /// start, never exceeded; rounded down to whole segments.
    pub memory: usize,
    /// Bytes of a segment, the unit in which index and log share the memory: a power of two from [`SEGMENT_BYTES_MIN`]
    /// to a sixteenth of the memory. `None` for a sixteenth, 64 KiB to 8 MiB. A smaller segment takes less time to
    /// clean; no value can be longer than one.
    pub segment: Option<usize>,
    /// Where items are stored.
    pub layout: Layout,
    /// The hash function of keys.
    pub key_function: KeyFunction,
    /// When pages are allocated.
    pub prefault: Prefault,
}

impl PartitionConfig {
    /// Returns a configuration with this mode and memory; everything else has its default.
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
    /// Returns the size of a segment, after checking all limits.
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

/// Why a partition cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The memory is less than [`MEMORY_BYTES_MIN`].
    #[error("a partition of {bytes} bytes is too small: give it {MEMORY_BYTES_MIN} or more")]
    TooSmall {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The memory is more than [`MEMORY_BYTES_MAX`].
    #[error("a partition of {bytes} bytes is too large: give it {MEMORY_BYTES_MAX} or less")]
    TooLarge {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The segment size is not a power of two, or is too small or too large for the memory.
    #[error(
        "segments of {bytes} bytes do not fit a partition of {memory} bytes: choose a power of two from {SEGMENT_BYTES_MIN} to a sixteenth of the memory"
    )]
    Segment {
        /// The bytes asked for.
        bytes: usize,
        /// The bytes of the partition.
        memory: usize,
    },
    /// The system cannot provide the memory.
    #[error(
        "the system gives no {bytes} bytes of memory for a partition ({cause}): give it less, or raise the limit of the process or container"
    )]
    NoMemory {
        /// The bytes asked for.
        bytes: usize,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The system cannot provide random numbers for the hash secret and the first token.
    #[error("the system gives no random numbers for the secret of a partition: {cause}")]
    NoSecret {
        /// The system's error.
        cause: getrandom::Error,
    },
}
