//! The history of operations on objects: times and answers.

use std::fmt;

use super::object::Object;

/// An operation in the history.
#[derive(Debug, Clone)]
pub struct Entry<O: Object> {
    /// The number of the key.
    pub key: usize,
    /// The number of the client; `None` for the server.
    pub client: Option<usize>,
    /// The operation.
    pub input: O::Input,
    /// When it began, in nanoseconds.
    pub begun: u64,
    /// Its end.
    pub end: End<O::Output>,
    /// Its position among the operations that the store is known to have executed, if known: a hint for the search for
    /// an order.
    pub place: Option<u32>,
}

/// The end of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End<A> {
    /// It has not ended, and may never end: its client may have crashed.
    Pending,
    /// It ended at this time with an answer.
    Answered(u64, A),
    /// It ended at this time for this reason, and may have been executed, or may still be.
    Unknown(u64, String),
    /// It ended at this time for this reason and, according to the client, was not executed.
    NotExecuted(u64, String),
}

/// All operations of a run.
#[derive(Debug)]
pub struct History<O: Object> {
    /// In order of their beginning.
    pub entries: Vec<Entry<O>>,
}

impl<O: Object> Default for History<O> {
    fn default() -> Self {
        History { entries: Vec::new() }
    }
}

impl<O: Object> Entry<O> {
    /// Its answer, if it has one.
    pub fn answer(&self) -> Option<&O::Output> {
        if let End::Answered(_, output) = &self.end { Some(output) } else { None }
    }
}

impl<O: Object> History<O> {
    /// Records the beginning of an operation; returns its number.
    pub fn begin(&mut self, key: usize, client: usize, input: O::Input, now: u64) -> usize {
        self.entries.push(Entry { key, client: Some(client), input, begun: now, end: End::Pending, place: None });
        self.entries.len() - 1
    }

    /// Records the end of an operation.
    pub fn end(&mut self, number: usize, end: End<O::Output>) {
        let entry = &mut self.entries[number];
        assert_eq!(entry.end, End::Pending, "an operation ends once");
        entry.end = end;
    }
}

/// One line: times, client, operation, and end.
impl<O: Object> fmt::Display for Entry<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| format!("{:.3}", nanos as f64 / 1e3);
        let ended = match &self.end {
            End::Pending => "...".to_owned(),
            End::Answered(at, _) | End::Unknown(at, _) | End::NotExecuted(at, _) => micros(*at),
        };
        let who = self.client.map_or("the server".to_owned(), |number| format!("client {number}"));
        write!(f, "{:>14} to {ended:>14} us  {who:<10}  {}", micros(self.begun), self.input)?;
        match &self.end {
            End::Pending => write!(f, ": never ended"),
            End::Unknown(_, why) => write!(f, ": perhaps executed: {why}"),
            End::NotExecuted(_, why) => write!(f, ": not executed: {why}"),
            End::Answered(_, output) => write!(f, ": {output}"),
        }
    }
}
