//! Errors of clients.

use crate::cluster_id::ClusterId;

/// Why an operation has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Time is over.
    #[error("no leader answered in time{}: look at the replicas, or allow more time", if *.may_have_run { "; the command may have been executed, or may be yet" } else { "" })]
    TimedOut {
        /// Whether the operation may have been executed, or may be yet.
        may_have_run: bool,
    },
    /// The cluster has ended the session, and it is unknown whether the command was executed in it.
    #[error(
        "the cluster has ended this client's session; the command may have been executed: look, then decide whether to repeat it"
    )]
    SessionLost,
    /// The command is longer than the cluster allows.
    #[error("the command is longer than the cluster allows; nothing was done")]
    TooLarge,
    /// The leader refuses it, for this reason.
    #[error("refused: {0}")]
    Refused(String),
    /// All replicas that were asked belong to another cluster, or no replica of this one answered in time.
    #[error(
        "a replica of cluster {found} has answered, and not one of the cluster that was asked: look at the addresses, and at the number of the cluster (--cluster)"
    )]
    OtherCluster {
        /// The cluster that answered.
        found: ClusterId,
    },
    /// The replicas of the client's list belong to several clusters, none of which has more than half of them. Nothing
    /// was done.
    #[error(
        "replica {} is of cluster {}, and replica {} of cluster {}: the list of replicas mixes clusters; correct the addresses, or say which cluster is meant (--cluster)",
        one.0,
        one.1,
        other.0,
        other.1
    )]
    SeveralClusters {
        /// One of them, and its cluster.
        one: (u64, ClusterId),
        /// A replica of another cluster, and that cluster.
        other: (u64, ClusterId),
    },
    /// No majority of the replicas in the client's list is known to belong to one cluster: some did not answer in time,
    /// and the cluster of those that did has no members at their addresses. Nothing was done.
    #[error(
        "{answered} of {asked} replicas of the list have named their cluster, replica {} cluster {}, and that has not more than half of the list as its members: correct \
         the addresses, start the others, or say which cluster is meant (--cluster)",
        one.0,
        one.1
    )]
    NoMajority {
        /// A replica that answered, and its cluster.
        one: (u64, ClusterId),
        /// The number of replicas that answered.
        answered: usize,
        /// The number of replicas that were asked.
        asked: usize,
    },
    /// The replicas have no such group. Nothing was done.
    #[error(
        "the replicas have {groups} groups, numbered from 0, and none with the number {group}: give each replica and each client the same number of groups"
    )]
    NoGroup {
        /// The group that was asked.
        group: u16,
        /// The number of groups.
        groups: u32,
    },
    /// This replica is unknown to the client.
    #[error("replica {0} is not known here")]
    Unknown(u64),
    /// The answer is malformed.
    #[error("the answer is not one of this protocol: is that a replica?")]
    Protocol,
    /// There is no buffer for the request.
    #[error(transparent)]
    Alloc(#[from] dunlin_rpc::msgbuf::AllocError),
    /// This error, after an attempt that may have been executed.
    #[error("{0}; an attempt before it is in doubt: the command may have been executed, or may be yet")]
    InDoubt(Box<ClientError>),
}

impl ClientError {
    /// Whether the command may have been executed, or may be yet.
    pub fn may_have_run(&self) -> bool {
        match self {
            ClientError::TimedOut { may_have_run } => *may_have_run,
            ClientError::SessionLost | ClientError::InDoubt(_) => true,
            _ => false,
        }
    }

    /// Wraps this error if an earlier attempt is in doubt. A refused change stays refused, even in doubt: it may be
    /// refused because it was already made.
    pub(super) fn after(self, is_in_doubt: bool) -> ClientError {
        let says_enough = self.may_have_run() || matches!(self, ClientError::Refused(_));
        if is_in_doubt && !says_enough { ClientError::InDoubt(self.into()) } else { self }
    }

    /// Unwraps this error, for an operation without side effects.
    pub(super) fn without_doubt(self) -> ClientError {
        match self {
            ClientError::TimedOut { .. } => ClientError::TimedOut { may_have_run: false },
            ClientError::InDoubt(error) => *error,
            error => error,
        }
    }
}
