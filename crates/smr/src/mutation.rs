//! Bugs on purpose, to see that the fault hunt finds them; as those of [`dunlin_rpc::mutation`]. They exist only with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A command that is sent again is executed again.
    CommandRunsAgain,
    /// A snapshot forgets the sessions of clients.
    SessionsNotInSnapshot,
    /// A replica says that it has what would not survive its crash.
    SaidBeforeDurable,
    /// A vote is given and not written down, and a replica that was restarted believes that it gave none.
    VoteForgotten,
    /// A frame of the log that a crash tore is taken for whole.
    TornFrameAccepted,
    /// A change of members begins while another is under way.
    TwoChangesAtOnce,
    /// Entries are forgotten when their snapshot is handed over, and not when it is durable.
    ForgottenBeforeDurable,
    /// A lease lasts longer than those who granted it keep to it.
    LeaseTooLong,
    /// A follower answers reads with what it has executed, and asks nobody.
    FollowerReadsAtOnce,
    /// Messages of other clusters are taken for those of the own one.
    ForeignBelieved,
}
