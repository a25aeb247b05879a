//! Traces of multigets, read from CSV.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead};

use thiserror::Error;

use super::KEYS_MAX;

/// Maximum number of keys in a trace, including repetitions: 4 bytes each.
const LENGTH_MAX: usize = 1 << 30;

/// Multigets in order of arrival. A simulation starts over if it needs more. Arrival times follow from
/// [`super::Setting::load`].
#[derive(Clone, PartialEq)]
pub struct Trace {
    /// Numbers of the keys of all requests, in order of first appearance.
    keys: Vec<u32>,
    /// For each request, where its keys end.
    ends: Vec<usize>,
    distinct: u32,
}

/// Why a trace is invalid.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    /// A line is not a request.
    #[error("line {line} of the trace {reason}: give each request a line, with its keys separated by commas")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no request.
    #[error("the trace has no request: give each request a line, with its keys separated by commas")]
    Empty,
}

impl Trace {
    /// Reads one request from each line: its keys, separated by commas. A key is any bytes except commas and quotes.
    /// Empty lines, and those that begin with `#`, are skipped.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(mut lines: impl BufRead) -> Result<Self, TraceError> {
        let mut numbers: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut trace = Trace { keys: Vec::new(), ends: Vec::new(), distinct: 0 };
        let mut buffer = Vec::new();
        for line in 1.. {
            buffer.clear();
            if lines.read_until(b'\n', &mut buffer)? == 0 {
                break;
            }
            let request = buffer.trim_ascii();
            if request.is_empty() || request.starts_with(b"#") {
                continue;
            }
            let refuse = |reason| TraceError::Line { line, reason };
            let first = trace.keys.len();
            for key in request.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if key.is_empty() {
                    return Err(refuse("has an empty key"));
                }
                if key.contains(&b'"') {
                    return Err(refuse("has quotes, which are not understood"));
                }
                if trace.keys.len() - first >= KEYS_MAX as usize || trace.keys.len() >= LENGTH_MAX {
                    return Err(refuse("has too many keys"));
                }
                let next = numbers.len() as u32;
                let number = match numbers.get(key) {
                    Some(number) => *number,
                    None => *numbers.entry(key.to_vec()).or_insert(next),
                };
                trace.keys.push(number);
            }
            trace.ends.push(trace.keys.len());
        }
        trace.distinct = numbers.len() as u32;
        if trace.ends.is_empty() { Err(TraceError::Empty) } else { Ok(trace) }
    }

    /// The keys of a request; after the last one comes the first again.
    pub(super) fn request(&self, number: u32) -> &[u32] {
        let place = number as usize % self.ends.len();
        let first = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.keys[first..self.ends[place]]
    }

    /// Mean number of keys.
    pub(super) fn mean(&self) -> f64 {
        self.keys.len() as f64 / self.ends.len() as f64
    }

    /// Number of different keys.
    pub(super) fn distinct(&self) -> u32 {
        self.distinct
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Trace").field("requests", &self.ends.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_request() {
        let trace = Trace::read("# keys\na, b,a\r\n\n c\n b , \u{e9}".as_bytes()).unwrap();
        let requests: Vec<&[u32]> = (0..4).map(|number| trace.request(number)).collect();
        assert_eq!(requests, [&[0, 1, 0][..], &[2], &[1, 3], &[0, 1, 0]], "and from the start again");
        assert_eq!((trace.mean(), trace.distinct()), (2.0, 4));
    }

    #[test]
    fn lines_that_are_no_requests_are_refused() {
        let refusal = |text: &str| Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert!(refusal("a\na,,b").starts_with("line 2 of the trace has an empty key"));
        assert!(refusal("\"a\",b").starts_with("line 1 of the trace has quotes"));
        assert!(refusal("# nothing\n\n").starts_with("the trace has no request"));
        let many = "k,".repeat(KEYS_MAX as usize) + "k";
        assert!(refusal(&many).starts_with("line 1 of the trace has too many keys"));
        assert!(Trace::read(&b"\xff\xfe,a\n"[..]).is_ok(), "any bytes are a key");
    }
}
