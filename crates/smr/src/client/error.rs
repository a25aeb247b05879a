//! What clients are told.

use crate::cluster_id::ClusterId;

/// Why an operation has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Time is over.
    #[error("no leader answered in time{}: look at the replicas, or allow more time", if *.may_have_run { "; the command may have been executed, or may be yet" } else { "" })]
    TimedOut {
        /// Whether it may have been executed, or may be yet.
        may_have_run: bool,
    },
    /// The cluster has ended the session, while nobody knows whether the command was executed in it.
    #[error(
        "the cluster has ended this client's session; the command may have been executed: look, then decide whether to repeat it"
    )]
    SessionLost,
    /// The command is longer than the cluster allows.
    #[error("the command is longer than the cluster allows; nothing was done")]
    TooLarge,
    /// The leader refuses it, and why.
    #[error("refused: {0}")]
    Refused(String),
    /// All who were asked are of another cluster, or nobody else has answered in time.
    #[error(
        "a replica of cluster {found} has answered, and not one of the cluster that was asked: look at the addresses, and at the number of the cluster (--cluster)"
    )]
    OtherCluster {
        /// Of which.
        found: ClusterId,
    },
    /// The replicas that it was told of are of several clusters, and none of these has more than half of them. Nothing was done.
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
        /// One of another, and that.
        other: (u64, ClusterId),
    },
    /// Of the replicas that it was told of, no majority is known to be of one cluster: some did not answer in time, and are no members of the cluster of those that
    /// did, at these addresses. Nothing was done.
    #[error(
        "{answered} of {asked} replicas of the list have named their cluster, replica {} cluster {}, and that has not more than half of the list as its members: correct \
         the addresses, start the others, or say which cluster is meant (--cluster)",
        one.0,
        one.1
    )]
    NoMajority {
        /// One that has answered, and its cluster.
        one: (u64, ClusterId),
        /// So many have answered.
        answered: usize,
        /// Of so many that were asked.
        asked: usize,
    },
    /// The replicas have no such group. Nothing was done.
    #[error(
        "the replicas have {groups} groups, numbered from 0, and none with the number {group}: give each replica and each client the same number of groups"
    )]
    NoGroup {
        /// Which group was asked.
        group: u16,
        /// How many there are.
        groups: u32,
    },
    /// Nothing is known of this replica.
    #[error("replica {0} is not known here")]
    Unknown(u64),
    /// The answer is none.
    #[error("the answer is not one of this protocol: is that a replica?")]
    Protocol,
    /// There is no buffer for the request.
    #[error(transparent)]
    Alloc(#[from] dunlin_rpc::msgbuf::AllocError),
    /// This, after an attempt of which nobody knows what became.
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

    /// This error, after attempts of which one may be in doubt. A change that is refused stays so: it may be refused because it was made.
    pub(super) fn after(self, is_in_doubt: bool) -> ClientError {
        let says_enough = self.may_have_run() || matches!(self, ClientError::Refused(_));
        if is_in_doubt && !says_enough { ClientError::InDoubt(self.into()) } else { self }
    }

    /// This error, of something that left no trace.
    pub(super) fn without_doubt(self) -> ClientError {
        match self {
            ClientError::TimedOut { .. } => ClientError::TimedOut { may_have_run: false },
            ClientError::InDoubt(error) => *error,
            error => error,
        }
    }
}
