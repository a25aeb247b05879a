//! What clients are told.

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
    /// Too many commands of this client are in progress.
    #[error("too many commands of this client are in progress: wait for the first of them, or use another client beside it")]
    TooManyCommands,
    /// The command is longer than the cluster allows.
    #[error("the command is longer than the cluster allows; nothing was done")]
    TooLarge,
    /// The leader refuses it, and why.
    #[error("refused: {0}")]
    Refused(String),
    /// Nothing is known of this replica.
    #[error("replica {0} is not known here")]
    Unknown(u64),
    /// The answer is none.
    #[error("the answer is not one of this protocol: is that a replica?")]
    Protocol,
    /// There is no buffer for the request.
    #[error(transparent)]
    Alloc(#[from] dunlin_rpc::msgbuf::AllocError),
}

impl ClientError {
    /// Whether the command may have been executed, or may be yet.
    pub fn may_have_run(&self) -> bool {
        matches!(self, ClientError::TimedOut { may_have_run: true } | ClientError::SessionLost)
    }
}
