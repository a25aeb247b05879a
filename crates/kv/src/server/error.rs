//! Errors of starting and stopping a server.

use std::path::PathBuf;

use dunlin_serve::{ServeError, StartError};
use dunlin_store::PartitionError;
use dunlin_store::snapshot::{SaveError, SnapshotError};
use thiserror::Error;

use crate::memcached::Listen;
use crate::routing::CORES_MAX;
use crate::tier::TierError;

/// Why a server did not start, or could not do what was requested.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No cores, or too many.
    #[error("a server of {cores} cores: choose 1 to {CORES_MAX}")]
    Cores {
        /// The number of cores.
        cores: u16,
    },
    /// A replica of a cluster has a snapshot, or memcached clients of its own.
    #[error("a replica of a cluster has no {what}: items come and go by the cluster's protocol only; leave it out")]
    Replica {
        /// What it cannot have.
        what: &'static str,
    },
    /// Threads, endpoints or the metrics port are unavailable.
    #[error(transparent)]
    Serve(ServeError),
    /// One of several cores could not start.
    #[error("core {core} cannot start")]
    Core {
        /// The core.
        core: u16,
        /// The cause.
        source: Box<ServerError>,
    },
    /// Listening at an address for memcached clients failed.
    #[error("cannot listen at {listen}: {why}")]
    Memcached {
        /// The address.
        listen: Listen,
        /// The system's error.
        why: std::io::Error,
    },
    /// The memory is unavailable.
    #[error(transparent)]
    Memory(#[from] PartitionError),
    /// The snapshot could not be loaded.
    #[error("cannot load the snapshot {}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: SnapshotError,
    },
    /// The snapshot is in use by another server, or cannot be locked.
    #[error(transparent)]
    Lock(SaveError),
    /// The snapshot could not be saved. The previous file is still there.
    #[error("cannot save the snapshot")]
    Save(#[from] SaveError),
    /// The tier cannot be used.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The server was started without a snapshot file.
    #[error("the server has no snapshot file")]
    NoSnapshot,
    /// Another snapshot is being saved.
    #[error("a snapshot is being saved already")]
    Saving,
    /// A core panicked, lost its event loop, or hangs. The server has ended.
    #[error("core {core} has failed: {why}; {saved}")]
    CoreFailed {
        /// The core that failed first.
        core: u16,
        /// The cause.
        why: String,
        /// What was saved of its items and those of the other cores.
        saved: String,
    },
}

impl From<ServeError> for ServerError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::CoreFailed { core, why, saved } => {
                ServerError::CoreFailed { core, why, saved: saved.unwrap_or_else(|| "nothing was saved".into()) }
            }
            other => ServerError::Serve(other),
        }
    }
}

impl From<StartError<ServerError>> for ServerError {
    fn from(StartError { core, error }: StartError<ServerError>) -> Self {
        match core {
            Some(core) => ServerError::Core { core, source: Box::new(error) },
            None => error,
        }
    }
}
