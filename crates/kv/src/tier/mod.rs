//! The tier behind a cache, and the queue of operations that wait for it.
//!
//! `dunlin_store::tier` decides what is written where, and where an item is. Here it gets a device: a file, and threads
//! that read and write it ([`Pool`]), so that a core never waits for a disk. An operation whose item has to be read waits
//! at the desk (`desk.rs`) of its core, in a queue of `dunlin_schedule`: the rank that its request carries, and what its
//! client has had so far, decide which reads the device gets next.
//!
//! | File | What it holds |
//! |---|---|
//! | `file.rs` | the file: its header, its lock, its parts |
//! | `pool.rs` | threads that read and write |
//! | `desk.rs` | the operations of one core that wait, and their reads |
//! | `room.rs` | the memory for what they wait for |
//! | `schedule.rs` | the order in which they are served |

pub(crate) mod desk;
mod file;
mod pool;
mod room;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use desk::{Desk, Hold, Parcel, Refusal, Waiter, fetch};
pub use desk::{DeskStats, DeviceHangs, Holds, Waits};
pub(crate) use file::Opened;
pub use file::{Device, TierError, TierFile};
pub use pool::Pool;
pub(crate) use room::Reserved;
pub use schedule::Schedule;

/// Default number of reads that the device is given at a time.
pub const READS_DEFAULT: usize = 8;
/// Largest number of reads that it can be given at a time: each takes a thread.
pub const READS_MAX: usize = 256;
/// Default length below which values are not kept in the tier.
pub const VALUE_BYTES_MIN_DEFAULT: usize = 128;

/// Settings of a server's tier.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierSettings {
    /// The file. It is created, or taken over if an earlier tier left it; what it held is lost.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of memory, beside that for items, for the index of what is in the file: at most
    /// [`dunlin_store::tier::TIER_ITEM_BYTES`] for each item, or [`dunlin_store::tier::TIER_LABELLED_ITEM_BYTES`] in a
    /// replica of a cluster.
    pub index_bytes: usize,
    /// Values shorter than this are evicted for good.
    pub value_bytes_min: usize,
    /// Reads at a time, of all cores together: 1 to [`READS_MAX`].
    pub reads: usize,
    /// The least time that a read takes: for experiments with devices that are slower than the one at hand.
    pub delay: Duration,
}

impl TierSettings {
    /// Returns settings for a file of this size, beside this much memory for items; everything else has its default.
    pub fn new(path: PathBuf, bytes: u64, memory_bytes: usize) -> TierSettings {
        TierSettings {
            path,
            bytes,
            index_bytes: memory_bytes / 8,
            value_bytes_min: VALUE_BYTES_MIN_DEFAULT,
            reads: READS_DEFAULT,
            delay: Duration::ZERO,
        }
    }
}
