//! Deliberate bugs, which the fault hunt must find; like those of `dunlin_rpc::mutation`. They exist only with the
//! feature `mutations`.

dunlin_rpc::mutations! {
    /// A member that is granted its own lease again keeps the old token.
    TokenKept,
    /// A former holder renews a lease with a token that is over.
    FormerHolderRenews,
    /// A failed member renews its leases.
    FailedHolderRenews,
    /// A member that joins again begins no epoch.
    EpochKept,
    /// Cutting epochs also discards the epoch after them.
    NextEpochCut,
    /// A change on condition of a version succeeds if the entry is newer.
    OlderVersionAccepted,
    /// A transaction accepts the token of a lease that has ended.
    FormerHolderWrites,
    /// A member is told that an epoch is settled before all have acknowledged it.
    SettledTooSoon,
    /// A watcher is not told of the first event that its page has no room for.
    EventLostBetweenPages,
    /// A waiting query that has an answer is not asked again.
    WokenNotTold,
    /// A watchman waits no longer for a lease than its holder does.
    NoMargin,
    /// A watchman waits for its own failure timeout, even if an earlier one promised the member another.
    PromiseForgotten,
    /// A member that is being failed is answered that it is live, and a lease that is being ended is renewed.
    CondemnedHeard,
    /// A watchman keeps counting from its first look at a member or a lease, although it was heard since.
    RenewalNotCounted,
    /// A holder measures its lease with a clock that stands still while its machine is suspended.
    LeaseByMonotonicClock,
}
