//! Errors of transactions.

use std::fmt;

use crate::ids::{PartitionId, Place, TransactionId};
use crate::limits::KEY_BYTES_MAX;
use crate::wire::answer::{Cause, Refusal, Resource};

/// A key in an error message: as text if it is UTF-8.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Why a transaction did not commit. After all errors except [`TxnError::InDoubt`] it did not, and never will: its
/// writes are not visible to any other transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// A conflict with another transaction. It is aborted; run it again.
    #[error("the transaction conflicts: key {} {}; run it again", Shown(.key), match .cause {
        Cause::Locked => "is locked by another transaction",
        Cause::Changed => "was changed since it was read",
    })]
    Conflict {
        /// The key.
        key: Box<[u8]>,
        /// Why.
        cause: Cause,
    },
    /// A range that the transaction read conflicts with another transaction. It is aborted; run it again.
    #[error("the transaction conflicts: the range that it read from key {} on {}; run it again", Shown(.from), match .cause {
        Cause::Locked => "has a key that is locked by another transaction",
        Cause::Changed => "was changed since it was read",
    })]
    RangeConflict {
        /// Where the page begins that conflicts.
        from: Box<[u8]>,
        /// Why.
        cause: Cause,
    },
    /// A key to be inserted exists already. It is aborted.
    #[error("key {} exists already", Shown(.key))]
    Exists {
        /// The key.
        key: Box<[u8]>,
    },
    /// There is no such table.
    #[error("there is no table {table}: create it first, or check its name")]
    NoTable {
        /// The requested name.
        table: String,
    },
    /// All copies of a partition are lost.
    #[error("partition {} is lost: all of its copies failed together, and its items are gone", .partition.0)]
    PartitionLost {
        /// The partition.
        partition: PartitionId,
    },
    /// The table has no range reads.
    #[error("table {table:?} is not ordered: make it with Table::ordered, or read it by keys")]
    NotOrdered {
        /// Its name.
        table: String,
    },
    /// The lower bound of a range read is above its upper bound.
    #[error("the lower bound of the range is above its upper bound: swap them")]
    Reversed,
    /// A key is empty or too long, or a bound of a range is too long.
    #[error("a key has {len} bytes: choose 1 to {KEY_BYTES_MAX}")]
    KeyLength {
        /// Its length in bytes.
        len: usize,
    },
    /// The transaction exceeds a limit.
    #[error("the transaction has too many {what}: {max} are allowed; divide it")]
    TooLarge {
        /// Which limit.
        what: &'static str,
        /// Its value.
        max: usize,
    },
    /// The transaction has ended: it was committed, aborted, or failed.
    #[error("the transaction has ended: begin another one")]
    Ended,
    /// This coordinator has too much in progress. It is aborted; run it again later.
    #[error("too much is under way at this coordinator ({what}): await some transactions, then run it again")]
    Busy {
        /// Which limit was reached.
        what: &'static str,
    },
    /// A participant refused. It is aborted.
    #[error("{place} refused the transaction: {refusal}")]
    Refused {
        /// The participant.
        place: Place,
        /// Why.
        refusal: Refusal,
    },
    /// A participant is unreachable. It is aborted.
    #[error("{place} cannot be reached: {why}; run it again after the cluster has replaced the node")]
    Unreachable {
        /// The participant.
        place: Place,
        /// Why.
        why: String,
    },
    /// The transaction may have committed, or may still: a log replica was lost while it logged. Ask
    /// [`crate::Client::outcome`] once the cluster has entered its next epoch.
    #[error("transaction {transaction} may have committed: ask for its outcome in the next epoch of the cluster")]
    InDoubt {
        /// Its id.
        transaction: TransactionId,
    },
}

impl TxnError {
    /// Whether the transaction may have committed, or may still commit.
    pub fn may_have_committed(&self) -> bool {
        matches!(self, TxnError::InDoubt { .. })
    }

    /// Whether the same transaction may succeed if it is run again.
    pub fn may_be_repeated(&self) -> bool {
        match self {
            TxnError::Conflict { .. }
            | TxnError::RangeConflict { .. }
            | TxnError::Busy { .. }
            | TxnError::Unreachable { .. } => true,
            TxnError::Refused { refusal: Refusal::Full(what), .. } => *what != Resource::Answer,
            TxnError::Refused { refusal, .. } => {
                matches!(
                    refusal,
                    Refusal::Fenced
                        | Refusal::OtherEpoch { .. }
                        | Refusal::OtherIncarnation { .. }
                        | Refusal::NotHere(_)
                        | Refusal::Recovering(_)
                        | Refusal::NotSafe
                )
            }
            TxnError::Exists { .. }
            | TxnError::NoTable { .. }
            | TxnError::PartitionLost { .. }
            | TxnError::NotOrdered { .. }
            | TxnError::Reversed
            | TxnError::KeyLength { .. }
            | TxnError::TooLarge { .. }
            | TxnError::Ended
            | TxnError::InDoubt { .. } => false,
        }
    }
}
