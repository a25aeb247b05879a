//! Why a server did not start, or did not end normally.

use std::error::Error;
use std::fmt;
use std::io;

use dunlin_net::{Addr, NetError};
use dunlin_rpc::{EndpointError, RegisterError};
use thiserror::Error;

use crate::config::ServeConfig;

/// Why a server did not start, or did not end normally.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no address to listen at.
    #[error("no address to listen at: give shm:NAME or udp://HOST:PORT")]
    NoAddress,
    /// There are more addresses than one endpoint can listen at.
    #[error("cannot listen at {first} and {second} at once: give at most one shm: and one udp: address")]
    AddressKinds {
        /// One of them.
        first: Addr,
        /// The other.
        second: Addr,
    },
    /// There are no cores, or too many.
    #[error("a server of {cores} cores: choose 1 to {}", ServeConfig::CORES_MAX)]
    Cores {
        /// How many.
        cores: u16,
    },
    /// The number of processors to pin to is not the number of cores.
    #[error("{cores} cores and {processors} processors to pin them to: give one for each")]
    Pins {
        /// Cores.
        cores: u16,
        /// Processors.
        processors: usize,
    },
    /// A thread could not be pinned.
    #[error("cannot pin a thread to processor {processor}: {why}; choose one that `taskset -p $$` allows")]
    Pin {
        /// The processor.
        processor: usize,
        /// The system's error.
        why: io::Error,
    },
    /// An address could not be listened at.
    #[error("cannot listen at {addr}: {why}")]
    Listen {
        /// The address.
        addr: Addr,
        /// Why.
        why: NetError,
    },
    /// The endpoint could not be opened.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A handler could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The port for metrics and health could not be listened at.
    #[error("cannot serve metrics at {address}: {why}")]
    Port {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        why: io::Error,
    },
    /// The system did not provide a thread, an event loop or a signal handler.
    #[error("the system refused {what}: {why}")]
    System {
        /// What was requested.
        what: &'static str,
        /// The system's error.
        why: String,
    },
    /// A core failed. The server has ended.
    #[error("core {core} has failed: {why}{}", told(saved.as_deref()))]
    CoreFailed {
        /// The core that failed first.
        core: u16,
        /// Why.
        why: String,
        /// What was saved ([`crate::Service::rescue`]).
        saved: Option<String>,
    },
    /// A thread beside the cores failed ([`crate::Companion`]).
    #[error("the thread {name} has failed: {why}; start the server again")]
    CompanionFailed {
        /// The name of the thread.
        name: String,
        /// Why.
        why: String,
    },
    /// A thread ended that should not have.
    #[error("a thread of the server has ended")]
    Ended,
}

fn told(saved: Option<&str>) -> String {
    saved.map(|saved| format!("; {saved}")).unwrap_or_default()
}

/// Why a server did not start.
#[derive(Debug)]
pub struct StartError<E> {
    /// The core that failed to start, if the server has several.
    pub core: Option<u16>,
    /// Why.
    pub error: E,
}

impl<E: From<ServeError>> From<ServeError> for StartError<E> {
    fn from(error: ServeError) -> Self {
        StartError { core: None, error: error.into() }
    }
}

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.core {
            Some(core) => write!(f, "core {core} cannot start: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl<E: Error> Error for StartError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}
