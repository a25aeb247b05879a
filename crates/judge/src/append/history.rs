//! Transactions of appends and reads, as their clients recorded them.

use std::fmt;

use crate::micros::Micros;

/// Elements of a list, and operations of a transaction, shown in a line.
const SHOWN_MAX: usize = 12;

/// The record that a client keeps of a transaction; times are nanoseconds of one clock for all clients, below 2^63.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The number of its client, for explanations only.
    pub client: usize,
    /// When the client began it.
    pub begun: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Its operations, in order.
    pub ops: Vec<Op>,
}

/// The outcome of a transaction, as reported to its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It committed, and the client knew of it at this time.
    Committed(u64),
    /// It did not commit and never will.
    Aborted,
    /// It may have committed, or may still: there was an error to that effect, its client crashed, or the history ends
    /// before the transaction does.
    Unknown,
}

/// An operation on a key whose value is a list, empty at first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Appends an element, which no other append of the history has for this key.
    Append {
        /// The key.
        key: u64,
        /// The element.
        element: u64,
    },
    /// Reads the list.
    Read {
        /// The key.
        key: u64,
        /// The list that was read, including earlier appends of the transaction itself. `None` if the client never
        /// learned it.
        list: Option<Vec<u64>>,
    },
}

/// A history that cannot be judged, because its recorder or its workload broke a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// An element identifies its append only if it is appended once.
    #[error(
        "T{first} and T{second} append {element} to key {key}: let a workload append an element to a key once only"
    )]
    AppendedTwice {
        /// The key.
        key: u64,
        /// The element.
        element: u64,
        /// The transaction with the first append.
        first: usize,
        /// The transaction with the second append; perhaps the same.
        second: usize,
    },
    /// The list that a committed transaction read is missing.
    #[error("T{transaction} committed, but what it read of key {key} is missing: record the list of each read")]
    ListMissing {
        /// The transaction.
        transaction: usize,
        /// The key.
        key: u64,
    },
    /// A transaction ends before it began: its times are not of one clock.
    #[error("T{transaction} ended before it began: record both times by one clock")]
    EndsBeforeItBegan {
        /// The transaction.
        transaction: usize,
    },
}

impl Transaction {
    /// Returns when its client knew that it had committed.
    pub(super) fn committed_at(&self) -> Option<u64> {
        if let Outcome::Committed(at) = self.outcome { Some(at) } else { None }
    }

    /// Checks everything that does not depend on other transactions.
    pub(super) fn check(&self, transaction: usize) -> Result<(), HistoryError> {
        let Some(end) = self.committed_at() else { return Ok(()) };
        if end < self.begun {
            return Err(HistoryError::EndsBeforeItBegan { transaction });
        }
        match self.ops.iter().find_map(|op| if let Op::Read { key, list: None } = op { Some(*key) } else { None }) {
            Some(key) => Err(HistoryError::ListMissing { transaction, key }),
            None => Ok(()),
        }
    }
}

/// One line: client, times, operations, and outcome. Long lists are shown by their ends.
impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} at {}", self.client, Micros(self.begun))?;
        if let Some(end) = self.committed_at() {
            write!(f, " to {}", Micros(end))?;
        }
        let shown: Vec<String> = self.ops.iter().take(SHOWN_MAX).map(Op::to_string).collect();
        write!(f, ": {}", shown.join(", "))?;
        if self.ops.len() > SHOWN_MAX {
            write!(f, ", and {} more", self.ops.len() - SHOWN_MAX)?;
        }
        match self.outcome {
            Outcome::Committed(_) => write!(f, "; committed"),
            Outcome::Aborted => write!(f, "; aborted"),
            Outcome::Unknown => write!(f, "; perhaps committed"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Append { key, element } => write!(f, "append {element} to key {key}"),
            Op::Read { key, list: Some(list) } => write!(f, "read key {key} as {}", List(list)),
            Op::Read { key, list: None } => write!(f, "read key {key}"),
        }
    }
}

/// A list, shown without its middle if it is long.
pub(super) struct List<'a>(pub &'a [u64]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |part: &[u64]| part.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let List(list) = *self;
        if list.len() <= SHOWN_MAX {
            return write!(f, "[{}]", words(list));
        }
        let end = list.len() - SHOWN_MAX / 2;
        write!(f, "[{} .. {} ({} elements)]", words(&list[..SHOWN_MAX / 2]), words(&list[end..]), list.len())
    }
}
