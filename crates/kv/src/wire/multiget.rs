//! Many keys in one request.

use super::bytes::{Reader, Writer};
use super::{MULTI_GET_KEYS_MAX, MULTI_GET_VALUE_BYTES_MAX, Status};

/// Bytes of one key's answer besides its value: status, flags, length.
const ANSWER_BYTES_MAX: usize = 9;

/// A request for the values of up to [`MULTI_GET_KEYS_MAX`] keys: an iterator over them.
#[derive(Debug, Clone)]
pub struct MultiGet<'a> {
    rest: Reader<'a>,
    left: usize,
}

/// Where to go on in a request: how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    bytes: usize,
    keys: usize,
}

impl<'a> MultiGet<'a> {
    /// Parses a request; `None` if it is malformed, or has no keys or too many.
    pub fn parse(request: &'a [u8]) -> Option<MultiGet<'a>> {
        let mut rest = Reader(request);
        let mut left = 0;
        while !rest.0.is_empty() {
            let len = rest.u8()?;
            rest.bytes(usize::from(len))?;
            left += 1;
        }
        (1..=MULTI_GET_KEYS_MAX).contains(&left).then_some(MultiGet { rest: Reader(request), left })
    }

    /// Returns what is left of the keys.
    pub(crate) fn mark(&self) -> Mark {
        Mark { bytes: self.rest.0.len(), keys: self.left }
    }

    /// Returns the keys of a request from a mark on. It must be of this very request.
    pub(crate) fn resume(request: &'a [u8], mark: Mark) -> MultiGet<'a> {
        MultiGet { rest: Reader(&request[request.len() - mark.bytes..]), left: mark.keys }
    }

    /// Returns the length of a request for `keys`.
    pub fn encoded_len<'k>(keys: impl Iterator<Item = &'k [u8]>) -> usize {
        keys.map(|key| 1 + key.len()).sum()
    }

    /// Writes a request for `keys`, each of at most 250 bytes; returns its bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`MultiGet::encoded_len`].
    pub fn encode<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut [u8]) -> usize {
        let room = out.len();
        let mut out = Writer(out);
        keys.for_each(|key| {
            out.u8(key.len() as u8).bytes(key);
        });
        room - out.0.len()
    }
}

impl<'a> Iterator for MultiGet<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let len = self.rest.u8()?;
        self.left -= 1;
        self.rest.bytes(usize::from(len))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for MultiGet<'_> {}

impl Mark {
    /// Returns the number of keys that are left.
    pub fn keys(self) -> usize {
        self.keys
    }
}

/// Writes the response to a [`MultiGet`], key by key, into a buffer that the caller extends as needed.
#[derive(Debug, Default)]
pub struct MultiGetAnswerWriter {
    values: usize,
}

impl MultiGetAnswerWriter {
    /// Whether another value of `len` bytes may be written; the first one always may.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.values == 0 || self.values + len <= MULTI_GET_VALUE_BYTES_MAX
    }

    /// Returns the most bytes that [`MultiGetAnswerWriter::found`] writes for a value of `len` bytes.
    #[inline]
    pub fn bytes_max(len: usize) -> usize {
        ANSWER_BYTES_MAX + len
    }

    /// Writes a key's flags and value to the front of `out`, and returns the number of bytes written.
    ///
    /// # Panics
    /// If `out` is shorter than [`MultiGetAnswerWriter::bytes_max`].
    #[inline]
    pub fn found(&mut self, flags: u32, value: &[u8], out: &mut [u8]) -> usize {
        self.values += value.len();
        let before = out.len();
        let mut out = Writer(out);
        // No value is longer than a message.
        let len = value.len() as u32;
        match flags {
            0 => out.u8(Status::Done as u8),
            flags => out.u8(Status::Flagged as u8).u32(flags),
        };
        out.u32(len).bytes(value);
        before - out.0.len()
    }
}

/// One key's part of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The item.
    Item {
        /// The item's flags.
        flags: u32,
        /// The range of its value in the response.
        value: std::ops::Range<usize>,
    },
    /// No item: there is none, the key is another core's or malformed, or it must be requested again.
    None(Status),
}

/// The parsed response to a [`MultiGet`]: an iterator over its keys' parts, in order. Ends early if the response is
/// malformed.
#[derive(Debug, Clone)]
pub struct MultiGetAnswer<'a> {
    response: &'a [u8],
    rest: Reader<'a>,
}

impl<'a> MultiGetAnswer<'a> {
    /// Begins to parse a response.
    pub fn new(response: &'a [u8]) -> MultiGetAnswer<'a> {
        MultiGetAnswer { response, rest: Reader(response) }
    }
}

impl Iterator for MultiGetAnswer<'_> {
    type Item = Found;

    #[inline]
    fn next(&mut self) -> Option<Found> {
        let status = Status::of(self.rest.bytes(1)?)?;
        let flags = match status {
            Status::Done => 0,
            Status::Flagged => self.rest.u32()?,
            _ => return Some(Found::None(status)),
        };
        let len = self.rest.u32()? as usize;
        let start = self.response.len() - self.rest.0.len();
        self.rest.bytes(len)?;
        Some(Found::Item { flags, value: start..start + len })
    }
}
