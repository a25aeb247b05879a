//! The protocol of one connection to a proxy: what it has read, and its answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::ready;

use super::forward::KEYS_AT_ONCE;
use super::limits::{READ_BYTES, RETRIEVAL_LINE_BYTES_MAX};
use super::number;
use super::parse::Mode;
use super::room::{Kept, Part};
use super::socket::Stream;
use crate::client::Value;

/// As many as the first retrieval of a connection reads at once: how long its values are is not known yet.
const KEYS_AT_FIRST: usize = 16;
/// Bytes of values that one multiget is meant to return: the number of its keys follows the values before.
const BYTES_AT_ONCE: usize = 1 << 20;

/// A part of the answer to a retrieval.
#[derive(Debug)]
pub(super) enum Piece {
    Value { key: Vec<u8>, cas: Option<u64>, value: Value },
    Text(Vec<u8>),
}

impl Piece {
    /// Returns the length of its value.
    pub fn value_bytes(&self) -> usize {
        match self {
            Piece::Value { value, .. } => value.len(),
            Piece::Text(_) => 0,
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Value { key, cas, value } => {
                out.extend_from_slice(b"VALUE ");
                out.extend_from_slice(key);
                out.push(b' ');
                number::write(out, u64::from(value.flags()));
                out.push(b' ');
                number::write(out, value.len() as u64);
                if let Some(cas) = cas {
                    out.push(b' ');
                    number::write(out, *cas);
                }
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// What a connection keeps while it waits for its client.
#[derive(Debug)]
pub(super) struct Memory {
    /// The host's parts of the memory for long commands and for values.
    pub of_commands: Rc<Part>,
    pub of_values: Rc<Part>,
    /// Of the long command that is not done.
    pub command: Option<Kept>,
    /// Of what is found, until the last of it is in the output.
    pub values: Option<Kept>,
}

impl Memory {
    pub fn new(of_commands: Rc<Part>, of_values: Rc<Part>) -> Memory {
        Memory { of_commands, of_values, command: None, values: None }
    }
}

/// The protocol of one connection: what it has read, and its answers.
#[derive(Debug)]
pub(super) struct Talk {
    pub input: Vec<u8>,
    /// Bytes of the input that are done.
    pub used: usize,
    pub mode: Mode,
    pub scanned: usize,
    /// Bytes that the input must have before it is parsed.
    pub wanted: usize,
    pub output: Vec<u8>,
    /// The keys of a retrieval that were parsed, and not read yet.
    pub keys: Vec<Vec<u8>>,
    /// The number of keys of the retrieval.
    pub all: usize,
    pub with_cas: bool,
    /// All keys of the retrieval were parsed.
    pub is_parsed: bool,
    /// What was retrieved and is to be written: the buffers that it was received in, so that a client which does not
    /// read holds no copy of all of it.
    pub found: VecDeque<Piece>,
    /// A retrieval has failed: its further keys are not read.
    pub has_failed: bool,
    /// Keys that are read at once.
    pub at_once: usize,
}

impl Talk {
    pub fn new() -> Talk {
        Talk {
            input: Vec::new(),
            used: 0,
            mode: Mode::default(),
            scanned: 0,
            wanted: 0,
            output: Vec::new(),
            keys: Vec::new(),
            all: 0,
            with_cas: false,
            is_parsed: false,
            found: VecDeque::new(),
            has_failed: false,
            at_once: KEYS_AT_FIRST,
        }
    }

    /// Returns the bytes that the input may grow to by the command of which more is to be read, if that is long.
    pub fn long_command(&self) -> Option<usize> {
        // The length of a line is not known before its end.
        let is_line = self.wanted > 1 && self.wanted == self.scanned + 1;
        let bytes = if is_line && self.wanted >= READ_BYTES { RETRIEVAL_LINE_BYTES_MAX } else { self.wanted };
        (bytes >= READ_BYTES).then_some(bytes)
    }

    /// Forgets the input that is done, and the memory that it had.
    pub fn forget_used(&mut self) {
        self.input.drain(..std::mem::take(&mut self.used));
        self.input.shrink_to(READ_BYTES);
    }

    /// Whether keys are to be read before more is parsed.
    pub fn is_due(&self) -> bool {
        !self.keys.is_empty() && (self.is_parsed || self.keys.len() >= self.at_once)
    }
}

/// Returns how many keys to read at once after so many values had so many bytes: misses do not tell how long values are.
pub(super) fn keys_at_once(at_once: usize, values: usize, bytes: usize) -> usize {
    if values == 0 {
        return at_once;
    }
    let fitting = values * BYTES_AT_ONCE / bytes.max(1);
    fitting.clamp(1, (at_once * 2).min(KEYS_AT_ONCE))
}

/// Returns the number of words of the first line.
pub(super) fn words(input: &[u8]) -> usize {
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count()
}

/// Reads what there is, after the input that is not done.
pub(super) async fn read_some(stream: &mut Stream, talk: &mut Talk) -> io::Result<usize> {
    talk.input.drain(..std::mem::take(&mut talk.used));
    let filled = talk.input.len();
    // Room for all of a command whose length is known.
    let room = talk.wanted.saturating_sub(filled).max(READ_BYTES / 4);
    // An idle connection holds little.
    if filled == 0 {
        talk.input.shrink_to(READ_BYTES);
    }
    let len = poll_fn(|context| {
        // Not before there is something, so that an idle connection holds nothing.
        ready!(stream.poll_read_ready(context))?;
        talk.input.resize(filled + room, 0);
        stream.poll_read(context, &mut talk.input[filled..])
    })
    .await;
    talk.input.truncate(filled + *len.as_ref().unwrap_or(&0));
    len
}
