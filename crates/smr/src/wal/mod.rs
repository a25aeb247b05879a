//! The log of a node on its disk: entries in order, the hard state, and snapshots that replace old entries. It knows
//! nothing else of Raft. `docs/log-format.md` describes the format.
//!
//! **Guarantees.** When [`Wal::durable`] reports a batch, the batch and all earlier ones survive any crash of the
//! process or the machine. Batches not reported may survive or not, but whole and in order. A corrupt log is not
//! opened; the error says where the damage is, and what to do.
//!
//! **A failed flush ends the log.** After it, the contents of the disk are unknown: the system marks pages clean that
//! it could not write, and a second, successful flush proves nothing ([Rebello et al., ATC
//! 2020](https://www.usenix.org/conference/atc20/presentation/rebello)). So the first failure is permanent
//! ([`Wal::failure`]), and the node ends. When it opens the log again, it rewrites the batches whose flush is unproven
//! before anything depends on them.
//!
//! **Group commit.** A thread writes and flushes ([`open`]). Batches submitted during a flush wait in memory, at most
//! [`WalConfig::unflushed_bytes_max`], and are written with the next: one flush for many batches. In virtual time the
//! same code runs without a thread ([`open_stepped`]).
//!
//! **Groups.** Several groups share one log: each has its handle ([`Wal::of_group`]), its entries and its snapshots;
//! they share the directory, the writer and the flushes.
//!
//! **Snapshots** are written by the same thread ([`Wal::write_snapshot`]), in pieces that alternate with these flushes.
//! The log refers to a snapshot only when it is durable ([`Wal::take_written_snapshot`], then [`Wal::compact`]).
//!
//! **Assumptions about disks**: a sector of 512 bytes is written entirely or not at all, and a successful flush keeps
//! its promise.
//!
//! | File | What it holds |
//! |---|---|
//! | `disk`, `directory`, `sim` | the interface of a disk; a real one; one in memory with injected crashes and faults |
//! | `format`, `record` | the layout of a segment; the changes of a log as bytes |
//! | `state` | the state that the changes result in |
//! | `part` | one group's part of a shared log |
//! | `log`, `progress`, `read` | the interface for the owner; the writer's progress; entries from the disk |
//! | `work`, `writer`, `commit`, `pacing` | what waits for the disk; writing it; when; how snapshots share the disk |
//! | `segment`, `segments`, `window`, `recover`, `open` | from files to a log |
//! | `snapshot`, `job` | snapshots as files; writing one in pieces |

mod commit;
mod config;
mod directory;
mod disk;
mod error;
pub(crate) mod format;
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
