//! Why an operation on a cluster failed.

use std::fmt;
use std::time::Duration;

use dunlin_store::{KeyError, Refused};
use thiserror::Error;

use super::description::DescriptionError;
use crate::client::{KvError, Outcome};

/// Why one server did not do what it was asked for.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The client could not reach it shortly before, and does not try again yet.
    #[error("it was not reached shortly before: {why}")]
    Down {
        /// Why it was not reached then.
        why: String,
    },
    /// It is of another cluster, or divides keys in another way.
    #[error("it has another description of the cluster: compare the names of servers, partitions and replicas")]
    OtherMap,
    /// Another server answers at its address.
    #[error("the server there is {found}: compare the addresses in the description")]
    OtherServer {
        /// The name of the server that answered.
        found: String,
    },
    /// It is a server, but not a replica.
    #[error("it is no replica: start it with dunlin kv cluster serve")]
    NoReplica,
    /// It may not be read, or takes no writes: it was started and has not been filled, is being filled, or may not serve
    /// in its epoch.
    #[error("it may not serve: dunlin kv cluster status says why")]
    Closed,
    /// It is not open.
    #[error("it is not filled: dunlin kv cluster status shows its state")]
    NotOpen,
    /// It has no item, and may have forgotten a later deletion: too many were made in a short time.
    #[error("too many deletions in a short time: it does not know whether this write is later than them")]
    Forgotten,
    /// It did not answer before the deadline.
    #[error("it did not answer before the deadline")]
    NoAnswer,
    /// Another process answers at its address.
    #[error("another process answers at its address: end that one, or correct the description")]
    OtherProcess,
    /// It is in another epoch.
    #[error("it is in epoch {epoch}")]
    OtherEpoch {
        /// Its epoch.
        epoch: u64,
    },
    /// The cluster manager has not heard it for too long, or other members have not heard of the epoch yet.
    #[error("it may not serve in its epoch now")]
    NotSafe,
    /// The clocks differ too much.
    #[error("the clock of this machine is more than ten minutes ahead of the server's, which is at {seconds}: set it")]
    ClockAhead {
        /// The server's clock, in seconds since 1970.
        seconds: u64,
    },
    /// It refused the operation.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It cannot do this.
    #[error("it does not support this operation")]
    Unsupported,
    /// The operation failed.
    #[error(transparent)]
    Kv(KvError),
}

impl From<KvError> for ServerError {
    fn from(error: KvError) -> ServerError {
        match error {
            KvError::Closed { .. } => ServerError::Closed,
            KvError::ValueTooLarge { len, max } => ServerError::Refused(Refused::TooLarge { len, max }),
            error => ServerError::Kv(error),
        }
    }
}

impl ServerError {
    /// Returns whether the server may have executed the operation.
    pub fn outcome(&self) -> Outcome {
        match self {
            ServerError::Kv(error) => error.outcome(),
            ServerError::NoAnswer => Outcome::MaybeExecuted,
            _ => Outcome::NotExecuted,
        }
    }
}

/// A server, and why it did not do what it was asked for.
#[derive(Debug, Clone)]
pub struct Missed {
    /// The name of the server.
    pub server: String,
    /// The cause.
    pub error: ServerError,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.error)
    }
}

/// Lists servers and causes.
pub(super) fn listed(missed: &[Missed]) -> String {
    missed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why an operation on a cluster failed. [`ClusterError::outcome`] says whether it may have been executed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The key is empty or too long. Nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The description contradicts itself.
    #[error("the description of the cluster: {0}")]
    Description(#[from] DescriptionError),
    /// No replica of a partition answered.
    #[error("no replica of partition {partition} did it: {}", if missed.is_empty() { "none is live".to_owned() } else { listed(missed) })]
    NoReplica {
        /// The partition.
        partition: u32,
        /// Its replicas.
        missed: Vec<Missed>,
    },
    /// Some replicas of a partition have the write, and others may not.
    #[error("{reached} of {} replicas have it; {}", reached + missed.len(), listed(missed))]
    Partial {
        /// Replicas that have it.
        reached: usize,
        /// The others.
        missed: Vec<Missed>,
    },
    /// The write was refused: by the replica that decides about conditions, or since its value is too long.
    #[error(transparent)]
    Refused(Refused),
    /// A write failed, but some replicas have it, or may have it.
    #[error("some replicas may have it: {0}")]
    InDoubt(Box<ClusterError>),
    /// The deadline passed.
    #[error("the deadline passed")]
    Late,
    /// The cluster manager does not say who is live.
    #[error("the cluster manager: {0}")]
    Directory(String),
    /// There is no such server.
    #[error("the cluster has no server {0}")]
    NoServer(String),
    /// A server could not be asked or filled.
    #[error("{0}")]
    Server(Missed),
    /// A server cannot be filled: no replica of one of its partitions may be read.
    #[error(
        "no other replica of partition {partition} is open: {}; if none can be, open the one that has most, with \
         dunlin kv cluster open NAME",
        if missed.is_empty() { "none is live".to_owned() } else { listed(missed) }
    )]
    NoSource {
        /// The partition.
        partition: u32,
        /// Its other replicas.
        missed: Vec<Missed>,
    },
    /// A server that fills itself is not open so far.
    #[error(
        "{server} is not open after {patience:?}, and goes on filling itself: its output says what it waits for, and \
         dunlin kv cluster status shows its state"
    )]
    NotOpenYet {
        /// The server.
        server: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// A server was told something else while it was filled.
    #[error("{server} was told to begin again or to open meanwhile")]
    Superseded {
        /// The server.
        server: String,
    },
    /// A server cannot be opened: it has dropped items to be filled, and was not filled.
    #[error(
        "{server} has dropped items to be filled, and was not filled: fill it with dunlin kv cluster refill; if no other \
         replica is left, restart it and open it empty"
    )]
    HasHoles {
        /// The server.
        server: String,
    },
    /// A server has no room for the items of its partitions.
    #[error("{server} has no room for the items of its partitions: give it more memory")]
    NoRoom {
        /// The server.
        server: String,
    },
    /// More keys were changed while a server was filled than it keeps in mind.
    #[error(
        "more than {} keys of a core of {server} were changed while it was filled: try again with fewer writes, or more cores",
        crate::service::CHANGED_KEYS_MAX
    )]
    TooManyChanges {
        /// The server.
        server: String,
    },
}

impl ClusterError {
    /// Returns whether the failed operation may have been executed by any replica.
    pub fn outcome(&self) -> Outcome {
        let maybe = |missed: &[Missed]| missed.iter().any(|missed| missed.error.outcome() == Outcome::MaybeExecuted);
        match self {
            ClusterError::NoReplica { missed, .. } if maybe(missed) => Outcome::MaybeExecuted,
            ClusterError::Partial { .. } | ClusterError::InDoubt(_) | ClusterError::Late => Outcome::MaybeExecuted,
            _ => Outcome::NotExecuted,
        }
    }
}
