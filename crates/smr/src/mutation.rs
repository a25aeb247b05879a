//! Deliberate bugs, to check that the fault hunt finds them; like those of [`dunlin_rpc::mutation`]. They exist only
//! with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A retried command is executed again.
    CommandRunsAgain,
    /// A snapshot forgets the sessions of clients.
    SessionsNotInSnapshot,
    /// A replica acknowledges entries that would not survive its crash.
    SaidBeforeDurable,
    /// A vote is given but not written down, so a restarted replica believes that it gave none.
    VoteForgotten,
    /// A log frame torn by a crash is taken for whole.
    TornFrameAccepted,
    /// A membership change begins while another is under way.
    TwoChangesAtOnce,
    /// Entries are forgotten when their snapshot is handed over, not when it is durable.
    ForgottenBeforeDurable,
    /// A lease outlasts the promise of the replicas that granted it.
    LeaseTooLong,
    /// A follower answers reads from its executed state without asking the leader.
    FollowerReadsAtOnce,
    /// Messages of other clusters are accepted.
    ForeignBelieved,
    /// A leader whose disk hangs keeps the lead.
    HungLeaderStays,
}
