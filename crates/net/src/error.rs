//! The errors of packet I/O, worded so that a user can act on them.

use std::io;

use crate::addr::Addr;

/// An error of packet I/O. Losing a packet is never one: it is counted instead.
///
/// What it displays is complete: it has no [`source`](std::error::Error::source), which a chain of causes would print
/// again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The text of an address cannot be understood.
    #[error("bad address {text:?}: {why}")]
    BadAddress {
        /// The text as given.
        text: String,
        /// What is wrong with it and what to write instead.
        why: String,
    },
    /// Another live endpoint holds this address.
    #[error("address {addr} is in use by a live endpoint: stop it or choose another address")]
    InUse {
        /// The requested address.
        addr: Addr,
    },
    /// No live endpoint listens at this address of this host.
    #[error("no endpoint listens at {addr}: start the server first, or check the address")]
    NotFound {
        /// The requested address.
        addr: Addr,
    },
    /// This transport cannot reach that kind of address.
    #[error("address {addr} cannot be reached over {transport}")]
    WrongKind {
        /// The requested address.
        addr: Addr,
        /// The transport that was asked.
        transport: &'static str,
    },
    /// A table with a limit is full.
    #[error("{what} is full: the limit is {limit}")]
    Full {
        /// The table.
        what: &'static str,
        /// Its limit, in entries.
        limit: usize,
    },
    /// A setting is outside its range.
    #[error("bad setting {name}: {why}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A shared region exists but is not one of ours, or is of another version.
    #[error("region {path} is not usable: {why}")]
    BadRegion {
        /// Its file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system returned an error.
    #[error("{doing}: {cause}")]
    Io {
        /// What was attempted, with its object.
        doing: String,
        /// The system's answer.
        cause: io::Error,
    },
}

impl NetError {
    /// Wraps the last error of the operating system.
    pub(crate) fn last_os(doing: impl Into<String>) -> Self {
        NetError::Io { doing: doing.into(), cause: io::Error::last_os_error() }
    }
}
