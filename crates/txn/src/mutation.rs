//! Deliberate bugs, which tests must find; like those of [`dunlin_rpc::mutation`]. They exist only with the feature
//! `mutations`.

dunlin_rpc::mutations! {
    /// Validation ignores locks of other transactions on items of the read set.
    LockNotValidated,
    /// Validation ignores changes to items of the read set.
    VersionNotValidated,
    /// A coordinator commits without validating its range reads.
    ScanNotValidated,
    /// Of a range read of several pages, only the last is validated.
    ScanPagesNotValidated,
    /// A range read is validated from its first item to its last, without the gaps before and after them.
    ScanGapNotValidated,
    /// Validation of a range ignores deletions in it.
    ScanDeletionNotValidated,
    /// A range read ignores locks.
    ScanPassesLocks,
    /// A backup does not apply the first write of a commit.
    BackupSkipsWrite,
    /// A coordinator commits without validating its read set.
    ValidationSkipped,
    /// A coordinator commits to primaries, which unlocks, before backups have acknowledged.
    PrimaryBeforeBackup,
    /// A coordinator unlocks its write set before it logs.
    UnlockedBeforeLog,
    /// Locks and records that stay too long are not searched for.
    OldLocksKept,
    /// A lock that is held for too long is broken without fencing its owner.
    LockBrokenWithoutFence,
    /// An aborting transaction leaves its locks.
    LocksKept,
    /// A participant answers messages of earlier epochs.
    EpochIgnored,
    /// A restarted process answers as if it had the data of its predecessor.
    IncarnationIgnored,
    /// A promoted backup serves requests before recovery has replayed the logs.
    ServedBeforeReplay,
    /// A new epoch releases locks before it is known whether their owners have logged.
    LocksReleasedEarly,
    /// A coordinator logs to only one log replica.
    LoggedOnce,
    /// Recovery replays only the first slice of a log before it opens partitions.
    ReplayCutShort,
    /// A repeated record is applied over later writes.
    OldWriteApplied,
    /// A process that was left out is listed again, with the data that it has.
    ListedAgain,
}
