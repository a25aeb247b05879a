//! Operations on an ordered map, as their clients recorded them.

use std::fmt;
use std::ops::Bound;

use crate::micros::Micros;

/// Items of a scan shown in a line.
const SHOWN_MAX: usize = 12;

/// The record that a client keeps of an operation; times are nanoseconds of one clock for all clients, below 2^63.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number of its client, for explanations only.
    pub client: usize,
    /// When the client began it.
    pub begun: u64,
    /// The request.
    pub operation: Operation,
    /// How it ended.
    pub end: End,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Stores a value, whether or not the key had one.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Removes the item, if there is one.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Reads the value, or whether it exists.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Reads the items of a range in order.
    Scan(Scan),
}

/// The arguments of a scan. Inverted bounds make an empty range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The lower bound, whatever the direction.
    pub from: Bound<Vec<u8>>,
    /// The upper bound.
    pub to: Bound<Vec<u8>>,
    /// In which order items come.
    pub direction: Direction,
    /// The scan ends after this many items. A scan that was cut short is recorded with a limit of the items shown by
    /// then.
    pub limit: Option<usize>,
}

/// The order in which a scan shows items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Least key first.
    Forward,
    /// Greatest key first.
    Backward,
}

/// The end of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It ended at this time with this answer.
    Answered(u64, Answer),
    /// It may have been executed, or may still be: there was an error to that effect, its client crashed, or the
    /// history ends before the operation does.
    Unknown,
    /// It was not executed and never will be.
    NotExecuted,
}

/// What an operation reveals of the map before it, as far as the map under test does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: for puts and deletes.
    Done,
    /// Whether the key had a value.
    Existed(bool),
    /// The value that the key had.
    Value(Option<Vec<u8>>),
    /// Keys and values: for scans.
    Items(Vec<(Vec<u8>, Vec<u8>)>),
}

/// A history that cannot be judged, because its recorder broke a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// An operation ends before it began: its times are not of one clock.
    #[error("operation {entry} ended before it began: record both times by one clock")]
    EndsBeforeItBegan {
        /// Its index in the history.
        entry: usize,
    },
    /// Scans answer with items, gets with a value or its existence, puts and deletes with either or nothing.
    #[error("operation {entry} has an answer of another kind of operation: record what was answered to this one")]
    WrongAnswer {
        /// Its index in the history.
        entry: usize,
    },
}

impl Entry {
    /// Checks everything that does not depend on other operations.
    pub(super) fn check(&self, entry: usize) -> Result<(), HistoryError> {
        let End::Answered(at, answer) = &self.end else { return Ok(()) };
        if *at < self.begun {
            return Err(HistoryError::EndsBeforeItBegan { entry });
        }
        let fits = match self.operation {
            Operation::Put { .. } | Operation::Delete { .. } => !matches!(answer, Answer::Items(_)),
            Operation::Get { .. } => matches!(answer, Answer::Existed(_) | Answer::Value(_)),
            Operation::Scan(_) => matches!(answer, Answer::Items(_)),
        };
        if fits { Ok(()) } else { Err(HistoryError::WrongAnswer { entry }) }
    }
}

/// One line: client, times, operation, and end.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} at {}", self.client, Micros(self.begun))?;
        match &self.end {
            End::Answered(at, answer) => write!(f, " to {}: {}: {answer}", Micros(*at), self.operation),
            End::Unknown => write!(f, ": {}: perhaps executed", self.operation),
            End::NotExecuted => write!(f, ": {}: not executed", self.operation),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Put { key, value } => write!(f, "put {} = {}", Text(key), Text(value)),
            Operation::Delete { key } => write!(f, "delete {}", Text(key)),
            Operation::Get { key } => write!(f, "get {}", Text(key)),
            Operation::Scan(scan) => write!(f, "{scan}"),
        }
    }
}

impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.direction == Direction::Forward { "scan" } else { "scan backward" };
        match &self.from {
            Bound::Included(key) => write!(f, "{direction} [{}, ", Text(key))?,
            Bound::Excluded(key) => write!(f, "{direction} ({}, ", Text(key))?,
            Bound::Unbounded => write!(f, "{direction} (.., ")?,
        }
        match &self.to {
            Bound::Included(key) => write!(f, "{}]", Text(key))?,
            Bound::Excluded(key) => write!(f, "{})", Text(key))?,
            Bound::Unbounded => write!(f, "..)")?,
        }
        self.limit.map_or(Ok(()), |limit| write!(f, " limit {limit}"))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Existed(true) => write!(f, "there was a value"),
            Answer::Existed(false) | Answer::Value(None) => write!(f, "there was no value"),
            Answer::Value(Some(value)) => write!(f, "{}", Text(value)),
            Answer::Items(items) => {
                let shown = items.iter().take(SHOWN_MAX).map(|(key, value)| format!("{} = {}", Text(key), Text(value)));
                write!(f, "[{}]", shown.collect::<Vec<_>>().join(", "))?;
                if items.len() > SHOWN_MAX { write!(f, " and {} more", items.len() - SHOWN_MAX) } else { Ok(()) }
            }
        }
    }
}

/// Bytes, quoted.
pub(super) struct Text<'a>(pub &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
