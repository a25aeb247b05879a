//! Bugs on purpose, to see that the fault hunt finds them; as those of `dunlin_rpc::mutation`. They exist only with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A member that is granted its own lease anew keeps the token of before.
    TokenKept,
    /// A lease is renewed by whoever names a token of it that is over.
    FormerHolderRenews,
    /// A member that was taken for failed renews its leases.
    FailedHolderRenews,
    /// A member that joins again begins no epoch.
    EpochKept,
    /// Cutting epochs has the one after them forgotten as well.
    NextEpochCut,
    /// A change on condition of a version is made if the entry is newer.
    OlderVersionAccepted,
    /// A transaction accepts the token of a lease that has ended.
    FormerHolderWrites,
    /// A watcher is not told of the first event that its page has no room for.
    EventLostBetweenPages,
    /// A watchman counts no more time of a lease than its holder does.
    NoMargin,
    /// A watchman waits for its own failure timeout, whatever a member was told by one before.
    PromiseForgotten,
    /// A member that is being taken for failed is answered that it is live, and a lease that is being ended is renewed.
    CondemnedHeard,
    /// A watchman goes on to count from the first look at a member or a lease, though it was heard since.
    RenewalNotCounted,
}
