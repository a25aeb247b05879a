//! Snapshots: all items of some partitions as of one instant, written to a file while the partitions keep serving, and
//! loaded back.
//!
//! `docs/snapshot-format.md` describes the file. Damage is detected before the items of the damaged block are used, and
//! reported with its offset in the file.
//!
//! **One instant.** [`save`] creates a [`Part`] for each core and a [`Collector`]. All cores meet between two bursts
//! ([`Part::turn`]), so that at one moment none of them executes anything: everything done before is in the snapshot,
//! everything done later is not. No core waits there longer than [`PAUSE_MAX`]; if a core is late, all go on serving
//! and meet again.
//!
//! **While serving.** Each core then visits its partition ([`crate::Visit`]) in ranges of hashes that hold about a
//! bucket each, at most [`STEP_RANGES`] ranges or about [`STEP_BYTES`] bytes between two bursts. A range that is about
//! to change before the sweep has reached it is copied first ([`crate::Watch`]), so the file has the items as of the
//! meeting. The cost of a change meanwhile: checking a bit if its range was visited, otherwise copying that range's
//! items.
//!
//! **Bounded memory.** Items pass as blocks of about [`BLOCK_BYTES`] through a queue of [`BLOCKS_QUEUED_MAX`] to the
//! collector's thread, which adds checksums and writes. When the disk is slow, the sweep waits ([`Turn::Wait`]); copies
//! that cannot wait are kept, up to [`BLOCKS_KEPT_MAX`] blocks for each core. Beyond that, operations that need copies
//! wait for the disk: from [`STALL_MIN`] to [`STALL_MAX`] between two bursts, longer the more is kept, but not for a
//! disk that [hangs](HANG). At [`kept_bytes_max`] the snapshot is given up.
//!
//! | File | What it holds |
//! |---|---|
//! | `format` | the layout of a file |
//! | `origin` | what a snapshot was taken from |
//! | `record` | items as bytes, and blocks of them |
//! | `writer`, `reader` | a file as a stream |
//! | `file` | a file that replaces another only once it is complete |
//! | `lock` | the exclusive right to save to a name |
//! | `sweep` | copying a partition while it changes |
//! | `meeting` | the instant at which no core executes anything |
//! | `save` | taking a snapshot of several cores |
//! | `load` | loading a file into partitions |

mod error;
mod file;
mod format;
mod load;
mod lock;
mod meeting;
mod origin;
mod reader;
mod record;
mod save;
mod sweep;
mod writer;

pub use error::{NoRoom, SaveError, SnapshotError};
pub use file::{Replacement, beside, sync_directory};
pub use format::{BLOCK_BYTES, BLOCK_BYTES_MAX, Content, VERSION};
pub use load::{Loaded, Misfit, Progress, load, load_file};
pub use lock::SnapshotLock;
pub use meeting::{MEETINGS_MAX, PAUSE_MAX};
pub use origin::{Origin, PARTITIONS_MAX, origin_of};
pub use reader::{Payload, Reader, Records};
pub use record::{Block, Record};
pub use save::{BLOCKS_QUEUED_MAX, Canceller, Collector, Part, Report, Turn, save};
pub use sweep::{
    BLOCKS_KEPT_MAX, HANG, KEPT_BYTES_ALL_MAX, KEPT_BYTES_MAX, KEPT_BYTES_MIN, STALL_MAX, STALL_MIN, STEP_BYTES,
    STEP_RANGES, kept_bytes_max,
};
pub use writer::{Totals, Writer};
