//! The log of a node on its disk: entries in order, the hard state, and snapshots in place of old entries. It knows nothing of Raft but these
//! words. The bytes are described in `docs/log-format.md`.
//!
//! **What is promised.** When [`Wal::durable`] says that a batch is on the disk, it is there after any crash, of the process or the machine, and so
//! are all before it. What was not said to be durable may be there or not, but in order, and in whole batches. A log that is not as it was
//! written is not opened; the error says where, and what to do.
//!
//! **A failed flush ends the log.** After it nobody knows what is on the disk: the system takes for clean what it could not write, and a second flush
//! that succeeds proves nothing ([Rebello et al., ATC 2020](https://www.usenix.org/conference/atc20/presentation/rebello)). So the first failure stays
//! ([`Wal::failure`]), and the node ends. When it opens the log again, the batches whose flush is not proven are written again before
//! anything rests on them.
//!
//! **Group commit.** A thread writes and flushes ([`open`]). What is submitted while a flush is under way waits in memory, at most
//! [`WalConfig::unflushed_bytes_max`], and goes to the disk with the next: one flush for many batches. In virtual time the same code runs without a
//! thread ([`open_stepped`]).
//!
//! **Groups.** Several groups share one log: each has its handle ([`Wal::of_group`]), its entries and its snapshots; directory, writer and flushes are those of all.
//!
//! **Snapshots** are written by the same thread ([`Wal::write_snapshot`]), in pieces that take turns with these flushes. The log refers to one only when it is on the
//! disk ([`Wal::take_written_snapshot`], then [`Wal::compact`]).
//!
//! **Assumed of disks**: a sector of 512 bytes is written whole or not at all, and a flush that succeeds keeps its promise.
//!
//! | File | What it holds |
//! |---|---|
//! | `disk`, `directory`, `sim` | what is asked of a disk; a real one; one in memory that crashes and fails as it is told |
//! | `format`, `record` | what stands where in a segment; the changes of a log as bytes |
//! | `state` | what the changes make |
//! | `part` | what one group has of a log that several share |
//! | `log`, `progress`, `read` | the log as its owner uses it; how far the writer is; entries from the disk |
//! | `work`, `writer`, `commit`, `pacing` | what waits for the disk; writing it; when; how snapshots give way |
//! | `segment`, `segments`, `window`, `recover`, `open` | from files to a log |
//! | `snapshot`, `job` | snapshots as files; one on its way to the disk |

mod commit;
mod config;
mod directory;
mod disk;
mod error;
mod format;
mod job;
mod log;
mod open;
mod pacing;
mod part;
mod progress;
mod read;
mod record;
mod recover;
mod segment;
mod segments;
pub mod sim;
mod snapshot;
mod state;
mod window;
mod work;
mod writer;

pub use commit::Stepper;
pub use config::{SEGMENT_BYTES_MIN, WalConfig};
pub use directory::{Directory, DirectoryError, DirectoryFile, LOCK_NAME};
pub use disk::{Disk, DiskFile};
pub use error::{AppendError, Failure, Misplaced, WalError};
pub use format::{ENTRY_BYTES_MAX, FRAME_BYTES_MAX, SEGMENT_BYTES_MAX, VERSION};
pub use log::{Ticket, Wal};
pub use open::{Opening, open, open_stepped};
pub use part::Part;
pub use record::{Compaction, Entry, HardState, Position};
pub use recover::Torn;
pub use snapshot::{SNAPSHOT_ABOUT_BYTES_MAX, SNAPSHOT_BLOCK_BYTES, SnapshotReader, SnapshotWriter};
