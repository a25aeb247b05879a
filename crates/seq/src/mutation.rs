//! Deliberate bugs, which tests must find; like those of [`dunlin_rpc::mutation`]. They exist only with the feature
//! `mutations`.

dunlin_rpc::mutations! {
    /// A counter hands out numbers after its term is over.
    TermNotChecked,
    /// Drawing from a counter is a read and a write, which is not atomic.
    AdditionNotAtomic,
    /// A counter continues beyond the end of its range.
    RangeEndPassed,
    /// A term is counted from the acknowledgement of its renewal, not from the request.
    TermFromAnswer,
    /// A fenced sequencer continues with its term, and extends it by itself.
    FencingIgnored,
    /// A new holder begins at once, without waiting for the previous term to end.
    NoWaitForTerm,
    /// A new holder begins where the previous one was last seen, not above all reserved numbers.
    BeginsBelowReserved,
    /// The replicated counter grants a range to a holder of an earlier term of office.
    FormerHolderReserves,
    /// The replicated counter lets a holder take office although the previous one has renewed since.
    RenewalOverlooked,
    /// A client accepts any answer as the one it waits for.
    TagIgnored,
    /// A client joins the lower half with its current guess, not with that of the attempt.
    GuessNotKept,
    /// A client keeps surplus numbers of a call for the next one.
    NumbersKept,
    /// A server answers with the lower half although the guess is wrong.
    WrongGuessAccepted,
    /// A server draws for requests of any epoch.
    EpochNotChecked,
    /// A client goes back to an earlier epoch if a server is in one.
    EpochForgotten,
    /// A term goes on for the time of a lease after the lease of the cluster manager is no longer safe.
    TermBeyondLease,
    /// A new holder of the lease begins below the end of the reserved numbers.
    BeginsBelowEntry,
}
