//! Errors of a log.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// What to do with a node whose log is damaged.
const WAY_OUT: &str = "This node must not go on with it: it may have promised what is lost. If a majority of the other members is well, \
    remove this member from the group, and add another with an id that was never used and a directory of its own; only if no majority is left, restore the \
    directory from a copy, and what came after the copy is lost";

/// Why a log could not be opened, or a part of it not read. Offsets are bytes from the start of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WalError {
    /// An operation of the file system or the disk failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Bytes on the disk are not what was written.
    #[error("{}, at byte {offset}: {what}. {WAY_OUT}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset in it.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// A required file is missing.
    #[error("{} is missing. {WAY_OUT}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The format has an unsupported version.
    #[error("{}, at byte {offset}: version {found} of the format, which this program does not read: use the program that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The offset of the version.
        offset: u64,
        /// The version.
        found: u32,
    },
    /// The log belongs to another node.
    #[error("{} is the log of node {found}, not of node {owner}: give each node its own directory", path.display())]
    Owner {
        /// A segment of it.
        path: PathBuf,
        /// The owner of the log.
        found: u64,
        /// The node that tries to open it.
        owner: u64,
    },
    /// An invalid setting.
    #[error("{0}")]
    Config(&'static str),
    /// The writer thread cannot be started.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// The requested entry is not in the log: compacted, truncated or never appended.
    #[error("the log has no entry {index}")]
    NoEntry {
        /// The entry.
        index: u64,
    },
    /// The entry is not written yet, so it cannot be read from the disk.
    #[error("entry {index} is not written yet")]
    NotWritten {
        /// The entry.
        index: u64,
    },
}

/// The failed write or flush, which ends the log for good: the contents of the disk are now unknown, so nothing more
/// may be reported as durable. The node ends, and finds out when it opens the log again.
#[derive(Debug, Clone, Error)]
#[error("cannot {what} {}: the log takes nothing more. End this node, {}, and start it again", path.display(), cure(source))]
pub struct Failure {
    /// The operation.
    pub what: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: Arc<io::Error>,
}

/// Returns what to do about a failed write or flush.
fn cure(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull => "make room on the disk",
        ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => "raise the limit that was reached",
        _ => "look after the disk",
    }
}

/// Why the log rejected a change. The log is unchanged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The log failed earlier.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Too much waits for the disk: retry when more is durable.
    #[error("{bytes} bytes wait for the disk, which is too much to take more")]
    Behind {
        /// The bytes that wait.
        bytes: usize,
    },
    /// The log is at its length limit: take a snapshot and compact it.
    #[error("the log has {bytes} bytes, which is all it may have: take a snapshot")]
    Full {
        /// Its length.
        bytes: u64,
    },
    /// An entry is too long.
    #[error("an entry of {bytes} bytes is longer than entries may be")]
    TooLong {
        /// The length of its payload.
        bytes: usize,
    },
    /// It does not fit the log.
    #[error("{0}")]
    Misplaced(#[from] Misplaced),
}

/// A record that does not fit the log's state: a bug in this program, or in the one that wrote the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Misplaced(pub(super) &'static str);
