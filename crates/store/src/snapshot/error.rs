//! Errors of loading and taking snapshots.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::load::Loaded;
use super::origin::Origin;
use crate::error::Refused;

/// Why a snapshot was not loaded. Offsets are bytes from the start of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be opened.
    #[error("cannot open the snapshot {}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("at byte {offset}: cannot read the snapshot")]
    Read {
        /// The offset.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
    /// The file does not begin like a snapshot.
    #[error("at byte {offset}: this is no snapshot of Dunlin")]
    NotASnapshot {
        /// The offset of the difference.
        offset: u64,
    },
    /// The format has an unsupported version.
    #[error(
        "at byte {offset}: the snapshot has version {found} of the format, this program reads versions {oldest} to {newest}"
    )]
    Version {
        /// The offset of the version.
        offset: u64,
        /// The version.
        found: u32,
        /// The oldest version that this program reads.
        oldest: u32,
        /// The newest one.
        newest: u32,
    },
    /// The file ends too early.
    #[error("at byte {offset}: the snapshot ends inside of {part}: it was truncated")]
    Truncated {
        /// The offset of its end.
        offset: u64,
        /// The part in which it ends.
        part: &'static str,
    },
    /// The file is corrupt.
    #[error("at byte {offset}: {part} is damaged: its checksum is {computed:08x}, not {stored:08x}")]
    Checksum {
        /// The offset of the damaged part.
        offset: u64,
        /// The part.
        part: &'static str,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the file's contents.
        computed: u32,
    },
    /// Bytes that no writer produces.
    #[error("at byte {offset}: {what}")]
    Malformed {
        /// The offset.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Some records do not fit their partitions, which must not lose any.
    #[error(transparent)]
    NoRoom(NoRoom),
    /// A record cannot be stored for another reason than lack of room.
    #[error("at byte {offset}: the item with the key {key:?} cannot be stored")]
    Misfit {
        /// The offset of the record.
        offset: u64,
        /// Its key; invalid UTF-8 is replaced.
        key: String,
        /// The reason.
        source: Refused,
    },
}

/// How much of a snapshot does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{items} of {of} items, {bytes} bytes of keys and values, have no room in partitions with {memory} bytes of memory: {}",
    self.advice()
)]
pub struct NoRoom {
    /// Items that do not fit.
    pub items: u64,
    /// All items that belong to these partitions.
    pub of: u64,
    /// Bytes of keys and values of those that do not fit.
    pub bytes: u64,
    /// Bytes of memory of all these partitions.
    pub memory: u64,
    /// The number of partitions that the snapshot was taken of, and the total bytes of their memory; `None` if it does
    /// not say.
    pub taken_of: Option<(usize, u64)>,
}

impl NoRoom {
    pub(super) fn new(loaded: &Loaded, memory: u64, origin: Option<&Origin>) -> NoRoom {
        NoRoom {
            items: loaded.misfits,
            of: loaded.misfits + loaded.stored,
            bytes: loaded.misfit_bytes,
            memory,
            taken_of: origin.map(|origin| (origin.partitions.len(), origin.memory_bytes())),
        }
    }

    fn advice(&self) -> String {
        match self.taken_of {
            Some((cores, memory)) => format!(
                "the snapshot was taken of {cores} cores with {memory} bytes of memory together; start with the same, or with more memory"
            ),
            None => "start with more memory".into(),
        }
    }
}

impl SnapshotError {
    /// Returns the offset in the file, if the error has one.
    pub fn offset(&self) -> Option<u64> {
        match *self {
            SnapshotError::Open { .. } | SnapshotError::NoRoom(_) => None,
            SnapshotError::Read { offset, .. }
            | SnapshotError::NotASnapshot { offset }
            | SnapshotError::Version { offset, .. }
            | SnapshotError::Truncated { offset, .. }
            | SnapshotError::Checksum { offset, .. }
            | SnapshotError::Malformed { offset, .. }
            | SnapshotError::Misfit { offset, .. } => Some(offset),
        }
    }
}

/// Why no snapshot was taken. An existing file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A file system operation failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process is writing this snapshot.
    #[error("another snapshot is being written to {}", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// Another owner has the right to save to this name.
    #[error("another server uses the snapshot {}: end that one first, or give this one a file of its own", path.display())]
    InUse {
        /// The snapshot.
        path: PathBuf,
    },
    /// All items were deleted meanwhile, including those still to be written.
    #[error("everything was deleted while the snapshot was taken: take it again")]
    Flushed,
    /// An operation had to wait too long for the disk.
    #[error(
        "the disk is too slow for a snapshot under this load: take it when there are fewer changes, or on a faster disk"
    )]
    TooSlow,
    /// The cores failed to pause at the same instant.
    #[error("the cores could not stop at the same time: are there more busy threads than processors?")]
    NoMeeting,
    /// A core ended.
    #[error("a core stopped while the snapshot was taken")]
    Abandoned,
}
