//! Lines of bounded length, counted.

use std::io::{self, BufRead, Read};

use crate::error::{Fault, RecordError};

/// Longest record, in bytes of its file: a value of 1 MiB with every byte escaped has 6 MiB.
pub const RECORD_BYTES_MAX: usize = 8 << 20;

/// Some programs write this at the start of a text file.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads one line after another into the same buffer.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Lines { input, line: Vec::new(), number: 0 }
    }

    /// Number of the line that was read last, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, RecordError> {
        self.line.clear();
        self.number += 1;
        let mut bounded = (&mut self.input).take(RECORD_BYTES_MAX as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line);
        let fault = |fault| RecordError { line: self.number, fault };
        if read.map_err(|error: io::Error| fault(Fault::Io(error)))? == 0 {
            return Ok(None);
        }
        if self.line.len() > RECORD_BYTES_MAX {
            return Err(fault(Fault::TooLong));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some(if self.number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }))
    }
}
