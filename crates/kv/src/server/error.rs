//! Why a server did not start, or not end as it should.

use std::path::PathBuf;

use dunlin_net::{Addr, NetError};
use dunlin_rpc::EndpointError;
use dunlin_store::PartitionError;
use dunlin_store::snapshot::{SaveError, SnapshotError};
use thiserror::Error;

use crate::memcached::Listen;
use crate::routing::CORES_MAX;

/// Why a server did not start, or could not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No address to listen at.
    #[error("no address to listen at: give shm:NAME or udp://HOST:PORT")]
    NoAddress,
    /// More addresses than one endpoint can listen at.
    #[error("cannot listen at {first} and {second} at once: give at most one shm: and one udp: address")]
    AddressKinds {
        /// One of them.
        first: Addr,
        /// The other.
        second: Addr,
    },
    /// No cores, or too many.
    #[error("a server of {cores} cores: choose 1 to {CORES_MAX}")]
    Cores {
        /// How many.
        cores: u16,
    },
    /// The processors to pin to are not as many as the cores.
    #[error("{cores} cores and {processors} processors to pin them to: give one for each")]
    Pins {
        /// Cores.
        cores: u16,
        /// Processors.
        processors: usize,
    },
    /// A thread could not be pinned.
    #[error("cannot pin a thread to processor {processor}: {why}")]
    Pin {
        /// The processor.
        processor: usize,
        /// What the system said.
        why: std::io::Error,
    },
    /// An address could not be listened at.
    #[error("cannot listen at {addr}: {why}")]
    Listen {
        /// The address.
        addr: Addr,
        /// Why.
        why: NetError,
    },
    /// The endpoint could not be made.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// An address for memcached clients could not be listened at.
    #[error("cannot listen at {listen}: {why}")]
    Memcached {
        /// The address.
        listen: Listen,
        /// What the system said.
        why: std::io::Error,
    },
    /// The metrics port could not be listened at.
    #[error("cannot serve metrics at {address}: {why}")]
    Metrics {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        why: std::io::Error,
    },
    /// The memory could not be had.
    #[error(transparent)]
    Memory(#[from] PartitionError),
    /// The snapshot could not be loaded.
    #[error("cannot load the snapshot {}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SnapshotError,
    },
    /// The snapshot is another server's, or cannot be kept from others.
    #[error(transparent)]
    Lock(SaveError),
    /// The snapshot could not be saved. The file that was there before is there still.
    #[error("cannot save the snapshot")]
    Save(#[from] SaveError),
    /// The server was started without a snapshot file.
    #[error("the server has no snapshot file")]
    NoSnapshot,
    /// Another snapshot is being saved.
    #[error("a snapshot is being saved already")]
    Saving,
    /// The system gave no thread, no event loop or no random numbers.
    #[error("the system refused {what}: {why}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        why: String,
    },
    /// A core panicked, lost its event loop, or hangs. The server has ended.
    #[error("core {core} has failed: {why}; {saved}")]
    CoreFailed {
        /// The core that failed first.
        core: u16,
        /// Why.
        why: String,
        /// What became of its items and those of the other cores.
        saved: String,
    },
    /// A thread ended that should not have.
    #[error("a thread of the server has ended")]
    Ended,
}
