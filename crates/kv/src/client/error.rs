//! Why an operation has no answer, and whether it may have been executed.

use dunlin_net::Addr;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, ConnectError};
use dunlin_store::{KeyError, Refused};
use thiserror::Error;

use crate::metrics::StatsError;

/// Whether the server may have executed a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It changed nothing, and never will.
    NotExecuted,
    /// Unknown: it may have been executed, may be yet, or never.
    MaybeExecuted,
}

/// Why an operation failed. [`KvError::outcome`] says whether it may have been executed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum KvError {
    /// The key is empty or too long. Nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is longer than the server accepts. Nothing was sent.
    #[error("the value has {len} bytes, more than the {max} that the server takes")]
    ValueTooLarge {
        /// Its length.
        len: usize,
        /// The maximum allowed.
        max: usize,
    },
    /// The server executed the operation and changed nothing: its condition did not hold, or there was no room.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// There is no session to the server. Nothing was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server returned no map. Nothing was sent.
    #[error("no map of the server at {server}: {error}")]
    NoMap {
        /// The address that was asked.
        server: Addr,
        /// The cause.
        error: CallError,
    },
    /// The peer at this address is not a key-value service, or has another version. Nothing was sent.
    #[error(
        "{server} is no key-value service of version {}: check the address and the versions of both",
        crate::wire::VERSION
    )]
    NoService {
        /// The address that was asked.
        server: Addr,
    },
    /// The map has no address for a core that can be reached the same way as the server. Nothing was sent.
    #[error("core {core} of the server at {server} has no address of the same kind")]
    NoAddress {
        /// The source of the map.
        server: Addr,
        /// The core.
        core: u16,
    },
    /// The server's key division changed again and again. Nothing was done.
    #[error("the server at {server} moved its keys while it was asked for them; try again")]
    Moved {
        /// The server.
        server: Addr,
    },
    /// The server is another one than the client is to ask: it was restarted. Nothing was sent.
    #[error("the server at {server} was restarted")]
    Restarted {
        /// The server.
        server: Addr,
    },
    /// The server is a replica that must not be read yet. Nothing was done.
    #[error("{server} is a replica that is not complete: it must be filled before it is read")]
    Closed {
        /// The server.
        server: Addr,
    },
    /// The deadline passed before the request was sent.
    #[error("the deadline passed before the request was sent")]
    Late,
    /// No buffer could be allocated for the request. Nothing was sent.
    #[error(transparent)]
    NoBuffer(#[from] AllocError),
    /// The call failed.
    #[error("{error}")]
    Call {
        /// The cause. Not the source of this error, which displays the same text.
        error: CallError,
    },
    /// The server's answer is malformed.
    #[error("the server's answer cannot be understood: check the versions of both")]
    BadAnswer,
    /// The server's statistics are malformed.
    #[error(transparent)]
    BadStats(#[from] StatsError),
    /// The server does not support this operation.
    #[error("the server does not do this: look at the options it was started with")]
    Unsupported,
    /// The server tried and failed; its log says why.
    #[error("the server failed to do it; look at its output")]
    ServerFailed,
}

impl KvError {
    /// Returns whether the failed operation may have been executed.
    pub fn outcome(&self) -> Outcome {
        match self {
            KvError::Call { error } if !error.may_have_run() => Outcome::NotExecuted,
            KvError::Call { .. } | KvError::BadAnswer | KvError::ServerFailed => Outcome::MaybeExecuted,
            _ => Outcome::NotExecuted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_was_not_executed_only_if_its_server_says_so() {
        let outcome = |error| KvError::Call { error }.outcome();
        assert_eq!(outcome(CallError::Busy), Outcome::NotExecuted);
        // Its handler had already begun.
        assert_eq!(outcome(CallError::Overloaded), Outcome::MaybeExecuted);
        assert_eq!(outcome(CallError::DeadlineExceeded), Outcome::MaybeExecuted);
    }
}
