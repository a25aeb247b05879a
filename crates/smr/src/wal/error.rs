//! What may be wrong with a log.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// What to do with a node whose log is damaged.
const WAY_OUT: &str = "This node must not go on with it: it may have promised what is lost. If a majority of the other members is well, \
    remove this member from the group, and add another with an id that was never used and a directory of its own; only if no majority is left, restore the \
    directory from a copy, and what came after the copy is lost";

/// Why a log was not opened, or something of it not read. Offsets are bytes from the start of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WalError {
    /// The file system or the disk refuses something.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Bytes that were on the disk are not what was written.
    #[error("{}, at byte {offset}: {what}. {WAY_OUT}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A file that there must be is not there.
    #[error("{} is missing. {WAY_OUT}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another version of the format.
    #[error("{}, at byte {offset}: version {found} of the format, which this program does not read: use the program that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Where it says so.
        offset: u64,
        /// Which version.
        found: u32,
    },
    /// The log of another node.
    #[error("{} is the log of node {found}, not of node {owner}: give each node its own directory", path.display())]
    Owner {
        /// A segment of it.
        path: PathBuf,
        /// Whose log it is.
        found: u64,
        /// Who wants to open it.
        owner: u64,
    },
    /// A setting that makes no sense.
    #[error("{0}")]
    Config(&'static str),
    /// The thread that writes cannot be started.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// What is asked for is not in the log: compacted, truncated or never appended.
    #[error("the log has no entry {index}")]
    NoEntry {
        /// Which entry.
        index: u64,
    },
    /// An entry that is not written yet, and so cannot be read from the disk.
    #[error("entry {index} is not written yet")]
    NotWritten {
        /// Which entry.
        index: u64,
    },
}

/// The write or flush that failed, and with it the log, for good: nobody knows what is on the disk now, so nothing may be reported as
/// durable any more. The node ends, and finds out when it opens the log again.
#[derive(Debug, Clone, Error)]
#[error("cannot {what} {}: the log takes nothing more. End this node, {}, and start it again", path.display(), cure(source))]
pub struct Failure {
    /// What was to be done.
    pub what: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: Arc<io::Error>,
}

/// What to do about a write or flush that failed.
fn cure(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull => "make room on the disk",
        ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => "raise the limit that was reached",
        _ => "look after the disk",
    }
}

/// Why the log took nothing. It is as it was before.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum AppendError {
    /// It failed before.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Too much waits for the disk: come back when more is durable.
    #[error("{bytes} bytes wait for the disk, which is too much to take more")]
    Behind {
        /// How much.
        bytes: usize,
    },
    /// The log is as long as it may be: take a snapshot and compact it.
    #[error("the log has {bytes} bytes, which is all it may have: take a snapshot")]
    Full {
        /// How long it is.
        bytes: u64,
    },
    /// An entry is longer than entries may be.
    #[error("an entry of {bytes} bytes is longer than entries may be")]
    TooLong {
        /// Its payload.
        bytes: usize,
    },
    /// It does not fit what is there.
    #[error("{0}")]
    Misplaced(#[from] Misplaced),
}

/// A record that does not fit the log as it is. It means a mistake in the program, or in one that wrote the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Misplaced(pub(super) &'static str);
