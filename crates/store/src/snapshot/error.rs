//! What is wrong with a snapshot, and why one was not taken.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::format::{VERSION, VERSION_WITHOUT_ORIGIN};
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
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read here.
    #[error("at byte {offset}: cannot read the snapshot")]
    Read {
        /// Where.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// It does not begin as snapshots do.
    #[error("at byte {offset}: this is no snapshot of Dunlin")]
    NotASnapshot {
        /// Where it differs.
        offset: u64,
    },
    /// Another version of the format.
    #[error(
        "at byte {offset}: the snapshot has version {found} of the format, this program reads versions {VERSION_WITHOUT_ORIGIN} to {VERSION}"
    )]
    Version {
        /// Where it is said.
        offset: u64,
        /// Which.
        found: u32,
    },
    /// The file ends too soon.
    #[error("at byte {offset}: the snapshot ends inside of {part}: it was truncated")]
    Truncated {
        /// Where it ends.
        offset: u64,
        /// Inside of what.
        part: &'static str,
    },
    /// Bytes were changed.
    #[error("at byte {offset}: {part} is damaged: its checksum is {computed:08x}, not {stored:08x}")]
    Checksum {
        /// Where the damaged part begins.
        offset: u64,
        /// Which part.
        part: &'static str,
        /// The checksum in the file.
        stored: u32,
        /// That of what the file holds.
        computed: u32,
    },
    /// Bytes that no writer writes.
    #[error("at byte {offset}: {what}")]
    Malformed {
        /// Where.
        offset: u64,
        /// What is wrong with them.
        what: &'static str,
    },
    /// Some records have no place in their partitions, which must not lose any.
    #[error(transparent)]
    NoRoom(NoRoom),
    /// A record cannot be stored for another reason than room.
    #[error("at byte {offset}: the item with the key {key:?} cannot be stored")]
    Misfit {
        /// Where the record begins.
        offset: u64,
        /// Its key; bytes that are no UTF-8 are replaced.
        key: String,
        /// Why.
        source: Refused,
    },
}

/// How much of a snapshot has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{items} of {of} items, {bytes} bytes of keys and values, have no room in partitions with {memory} bytes of memory: {}",
    self.advice()
)]
pub struct NoRoom {
    /// Items without a place.
    pub items: u64,
    /// All items that belong to these partitions.
    pub of: u64,
    /// Bytes of keys and values of those without a place.
    pub bytes: u64,
    /// Bytes of memory of these partitions together.
    pub memory: u64,
    /// How many partitions the snapshot was taken of, and the bytes of memory that these had together; `None` if it does not say.
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
    /// Where in the file it was noticed, if it is at one place of it.
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

/// Why no snapshot was taken. The file that was there is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The file system refuses something.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process writes this snapshot.
    #[error("another snapshot is being written to {}", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// Somebody else has the right to save to this name.
    #[error("another server uses the snapshot {}: end that one first, or give this one a file of its own", path.display())]
    InUse {
        /// The snapshot.
        path: PathBuf,
    },
    /// Everything was deleted meanwhile, and with it what was still to be written.
    #[error("everything was deleted while the snapshot was taken: take it again")]
    Flushed,
    /// An operation had to wait too long for the disk.
    #[error(
        "the disk is too slow for a snapshot under this load: take it when there are fewer changes, or on a faster disk"
    )]
    TooSlow,
    /// The cores did not manage to stop for an instant at the same time.
    #[error("the cores could not stop at the same time: are there more busy threads than processors?")]
    NoMeeting,
    /// A core went away.
    #[error("a core stopped while the snapshot was taken")]
    Abandoned,
}
