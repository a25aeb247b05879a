//! Parses the text protocol, one command at a time, from bytes as they arrive: nothing is copied or allocated, and any
//! bytes have a meaning (often "close the connection").
//!
//! [`step`] parses the front of the input in a [`Mode`], and returns a [`Unit`] of work or the number of bytes that it
//! needs. A retrieval of several keys results in one unit per key, since its keys may belong to different cores.

mod classic;
mod meta;
mod unit;

use arrayvec::ArrayVec;
use memchr::memchr;

use super::limits::{LEADING_SPACES_MAX, LINE_BYTES_MAX, LINE_BYTES_MIN, RETRIEVAL_LINE_BYTES_MAX, TOKENS_MAX};
pub use unit::{Ask, Get, Meta, MetaOptions, MetaVerb, StatsKind, StoreUnit, Unit, Verb};
pub(crate) use unit::{DecodedKey, KeyText, decode_key};

/// The words of a line, the command's name first.
type Tokens<'a> = ArrayVec<&'a [u8], TOKENS_MAX>;

/// How to interpret the next bytes of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A command line.
    #[default]
    Line,
    /// More keys of a retrieval whose whole line is in the input.
    Keys {
        /// Bytes up to the end of the last key or of the spaces after it.
        text: usize,
        /// Bytes after them that end the line.
        tail: usize,
        /// What is requested of each key.
        get: Get,
    },
    /// A data block of this many bytes, to be discarded.
    Swallow(usize),
}

/// The result of parsing the front of the input.
#[derive(Debug)]
pub enum Step<'a> {
    /// Work, the bytes that it took, and how to interpret the bytes after them.
    Unit(Unit<'a>, usize, Mode),
    /// Nothing to do: skip these bytes.
    Skip(usize, Mode),
    /// The input has no line end yet.
    NeedLine,
    /// The input must have this many bytes before another attempt is useful.
    Need(usize),
    /// Invalid input: close the connection.
    Close,
}

fn is_retrieval(line: &[u8]) -> bool {
    let spaces = line.iter().take(LEADING_SPACES_MAX + 1).take_while(|&&byte| byte == b' ').count();
    let name = &line[spaces..];
    spaces <= LEADING_SPACES_MAX
        && [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|verb| name.starts_with(verb))
}

/// Returns the maximum length of this line, including its end.
fn line_bytes_max(line: &[u8]) -> usize {
    if is_retrieval(line) { RETRIEVAL_LINE_BYTES_MAX } else { LINE_BYTES_MAX }
}

/// Returns the next word and the rest, or `None` if only spaces are left.
#[inline]
fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|&byte| byte != b' ')?;
    let text = &text[start..];
    let len = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    Some(text.split_at(len))
}

/// Takes one step in the input; its first `scanned` bytes are known to contain no line end. Rejects values of more than
/// `value_bytes_max` bytes.
#[inline]
pub fn step(mode: Mode, input: &[u8], scanned: usize, value_bytes_max: usize) -> Step<'_> {
    match mode {
        Mode::Line => line(input, scanned, value_bytes_max),
        Mode::Keys { text, tail, get } => keys(input, text, tail, get),
        Mode::Swallow(_) if input.is_empty() => Step::NeedLine,
        Mode::Swallow(len) if len <= input.len() => Step::Skip(len, Mode::Line),
        Mode::Swallow(len) => Step::Skip(input.len(), Mode::Swallow(len - input.len())),
    }
}

/// Parses one key of a retrieval.
#[inline]
fn keys(input: &[u8], text: usize, tail: usize, get: Get) -> Step<'_> {
    let line = &input[..text];
    let Some((key, rest)) = split_word(line) else { return Step::Skip(text + tail, Mode::Line) };
    if rest.iter().all(|&byte| byte == b' ') {
        return Step::Unit(Unit::Get { key, get, is_last: true }, text + tail, Mode::Line);
    }
    let used = text - rest.len();
    Step::Unit(Unit::Get { key, get, is_last: false }, used, Mode::Keys { text: rest.len(), tail, get })
}

#[inline]
fn line(input: &[u8], scanned: usize, value_bytes_max: usize) -> Step<'_> {
    let scanned = scanned.min(input.len());
    let Some(end) = memchr(b'\n', &input[scanned..]).map(|at| scanned + at) else {
        return match input.len() {
            0..LINE_BYTES_MAX => Step::NeedLine,
            len if len < line_bytes_max(input) => Step::NeedLine,
            _ => Step::Close,
        };
    };
    let used = end + 1;
    if used > LINE_BYTES_MAX && used > line_bytes_max(&input[..end]) {
        return Step::Close;
    }
    // As in memcached, a line feed alone also ends a line.
    let end = if end > 0 && input[end - 1] == b'\r' { end - 1 } else { end };
    let text = &input[..end];
    if used < LINE_BYTES_MIN {
        return Step::Unit(Unit::Say(BAD_FORMAT), used, Mode::Line);
    }
    let (verb, rest) = text.split_at(memchr(b' ', text).unwrap_or(end));
    match verb {
        b"get" | b"gets" | b"gat" | b"gats" => {
            let tail = used - end;
            classic::retrieval(verb, rest).map_or_else(
                |said| Step::Unit(Unit::Say(said), used, Mode::Line),
                |(rest, get)| match keys(&input[end - rest.len()..used], rest.len(), tail, get) {
                    Step::Unit(unit, taken, mode) => Step::Unit(unit, end - rest.len() + taken, mode),
                    _ => Step::Unit(Unit::Say(BAD_FORMAT), used, Mode::Line),
                },
            )
        }
        _ => command(verb, text, used, input, value_bytes_max),
    }
}

const ERROR: &[u8] = b"ERROR\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";

/// The rest of the input after a line, to continue with.
struct Behind<'a> {
    /// Bytes of the line, including its end.
    used: usize,
    /// The input after it.
    input: &'a [u8],
    /// Longest value accepted.
    value_bytes_max: usize,
}

impl<'a> Behind<'a> {
    /// Returns a unit that consists of the line alone.
    fn unit(&self, unit: Unit<'a>) -> Step<'a> {
        Step::Unit(unit, self.used, Mode::Line)
    }

    fn say(&self, said: &'static [u8]) -> Step<'a> {
        self.unit(Unit::Say(said))
    }

    /// Returns a unit for the line, whose data block of `len` bytes is rejected.
    fn swallow(&self, unit: Unit<'a>, len: usize) -> Step<'a> {
        Step::Unit(unit, self.used, Mode::Swallow(len + 2))
    }

    /// Returns the data block of `len` bytes; `Ok(None)` if it is not terminated correctly, and the number of bytes
    /// that the input must have as the error if it is incomplete.
    fn data(&self, len: usize) -> Result<Option<&'a [u8]>, usize> {
        match self.input.get(..len + 2) {
            None => Err(self.used + len + 2),
            Some(block) => Ok(block.strip_suffix(b"\r\n")),
        }
    }

    /// Returns a unit that consists of the line and its data block of `len` bytes.
    fn with_data(&self, unit: Unit<'a>, len: usize) -> Step<'a> {
        Step::Unit(unit, self.used + len + 2, Mode::Line)
    }
}

fn command<'a>(verb: &[u8], text: &'a [u8], used: usize, input: &'a [u8], value_bytes_max: usize) -> Step<'a> {
    let mut tokens = Tokens::new();
    let mut rest = text;
    while let Some((word, behind)) = split_word(rest) {
        if tokens.try_push(word).is_err() {
            break;
        }
        rest = behind;
    }
    let behind = Behind { used, input: &input[used..], value_bytes_max };
    match verb {
        b"mg" => meta::get(&tokens, text, &behind),
        b"ms" => meta::set(&tokens, text, &behind),
        b"md" => meta::delete(&tokens, text, &behind),
        b"ma" => meta::arithmetic(&tokens, text, &behind),
        b"me" => meta::debug(&tokens, &behind),
        b"mn" => behind.say(b"MN\r\n"),
        _ => classic::command(verb, &tokens, &behind),
    }
}
