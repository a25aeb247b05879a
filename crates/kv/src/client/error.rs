//! Why an operation gave no answer, and whether it may have been done all the same.

use dunlin_net::Addr;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, ConnectError};
use dunlin_store::{KeyError, Refused};
use thiserror::Error;

use crate::metrics::StatsError;

/// Whether the server may have done an operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It changed nothing, and will not.
    NotExecuted,
    /// Nobody knows: it may have been done, may be done yet, or never.
    MaybeExecuted,
}

/// Why an operation failed. [`KvError::outcome`] says what is known of it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum KvError {
    /// The key is empty or too long. Nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is longer than the server takes. Nothing was sent.
    #[error("the value has {len} bytes, more than the {max} that the server takes")]
    ValueTooLarge {
        /// Its length.
        len: usize,
        /// The longest allowed.
        max: usize,
    },
    /// The server did the operation and changed nothing: its condition did not hold, or there was no place.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No session to the server. Nothing was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server gave no map. Nothing was sent.
    #[error("no map of the server at {server}: {error}")]
    NoMap {
        /// Where it was asked.
        server: Addr,
        /// Why.
        error: CallError,
    },
    /// What answers there is no key-value service, or of another version. Nothing was sent.
    #[error(
        "{server} is no key-value service of version {}: check the address and the versions of both",
        crate::wire::VERSION
    )]
    NoService {
        /// Where it was asked.
        server: Addr,
    },
    /// The map names no address of a core that can be reached the way the server was. Nothing was sent.
    #[error("core {core} of the server at {server} has no address of the same kind")]
    NoAddress {
        /// Where the map came from.
        server: Addr,
        /// Which core.
        core: u16,
    },
    /// The server's division of keys changed again and again. Nothing was done.
    #[error("the server at {server} moved its keys while it was asked for them; try again")]
    Moved {
        /// Which server.
        server: Addr,
    },
    /// The deadline passed before the request was sent.
    #[error("the deadline passed before the request was sent")]
    Late,
    /// There is no buffer for the request here. Nothing was sent.
    #[error(transparent)]
    NoBuffer(#[from] AllocError),
    /// The call failed.
    #[error("{error}")]
    Call {
        /// Why. Not the source of this error, which displays the same.
        error: CallError,
    },
    /// The server answered, and the answer cannot be understood.
    #[error("the server's answer cannot be understood: check the versions of both")]
    BadAnswer,
    /// The server's statistics cannot be understood.
    #[error(transparent)]
    BadStats(#[from] StatsError),
    /// The server does not do this.
    #[error("the server does not do this: look at the options it was started with")]
    Unsupported,
    /// The server tried and failed; its own output says why.
    #[error("the server failed to do it; look at its output")]
    ServerFailed,
}

impl KvError {
    /// Whether the operation may have been done although it failed.
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
        // Its handler had begun.
        assert_eq!(outcome(CallError::Overloaded), Outcome::MaybeExecuted);
        assert_eq!(outcome(CallError::DeadlineExceeded), Outcome::MaybeExecuted);
    }
}
