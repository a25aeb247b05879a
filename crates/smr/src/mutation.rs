//! Bugs on purpose, to see that the fault hunt finds them; as those of [`dunlin_rpc::mutation`]. They exist only with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A command that is sent again is executed again.
    CommandRunsAgain,
    /// A snapshot forgets the sessions of clients.
    SessionsNotInSnapshot,
    /// A replica says that it has what would not survive its crash.
    SaidBeforeDurable,
}
