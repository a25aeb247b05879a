//! Requests and answers of the index service: little-endian, `docs/index.md` has the same tables.
//!
//! | Message | Bytes |
//! |---|---|
//! | request of [`OPERATE`] | [`Operation`] |
//! | its answer, of a GET | 0; or 1 and the value |
//! | its answer, of a PUT or DELETE | 1 if the key had a value, otherwise 0 |
//! | request of [`SCAN`], [`LONG_SCAN`] | [`ScanRequest`] |
//! | their answer | [`Page`] |
//! | request of [`COUNT`] | [`ScanRequest`] |
//! | its answer | [`Counted`] |
//! | request of [`DELETE_RANGE`] | [`ScanRequest`], ascending |
//! | its answer | [`Counted`]: of the items that were removed |
//! | request of [`STATS`], [`SAVE`] | version (1) |
//! | answer of [`STATS`] | JSON: [`ServerStats`](crate::ServerStats) |
//! | answer of [`SAVE`] | items in the snapshot (8), bytes of its file (8) |
//!
//! A refused request ends with an application error, whose code is a [`Code`]. It changes nothing.

use dunlin_rpc::MsgBuf;

use crate::error::{KEY_BYTES_MAX, Refused, VALUE_BYTES_MAX};
use crate::range::{Gap, Order, Range};
use crate::scan::Scan;

/// Request type: an operation on one key. All operations have one type, because an endpoint hands over consecutive
/// requests of a type together: so they make bursts however they are mixed. 0x70 to 0x72 are not used again: they were
/// types of single operations.
pub const OPERATE: u8 = 0x79;
/// Request type: a short page of a scan, made in the event loop.
pub const SCAN: u8 = 0x73;
/// Request type: a page of a scan, made on a worker thread.
pub const LONG_SCAN: u8 = 0x74;
/// Request type: how many items a part of a range has, counted on a worker thread.
pub const COUNT: u8 = 0x75;
/// Request type: the statistics of a whole server.
pub const STATS: u8 = 0x76;
/// Request type: save a snapshot, and answer when it is on the disk.
pub const SAVE: u8 = 0x77;
/// Request type: the removal of a part of a range, on a worker thread.
pub const DELETE_RANGE: u8 = 0x78;
/// Version of these layouts.
pub const VERSION: u8 = 1;

/// Maximum limits of a page of [`SCAN`]: what the event loop does in a few microseconds, unless the keys are long. It
/// also enters at most [`SHORT_LAYERS_MAX`] layers.
pub const SHORT_PAGE: PageLimits = PageLimits { items: 64, bytes: 16 << 10 };
/// Layers, one for each eight bytes that long keys have in common, that the event loop enters for a page of [`SCAN`].
/// The page ends before the next one; if it has no item then, the request is refused with [`Code::TooDeep`].
pub const SHORT_LAYERS_MAX: usize = 512;
/// Maximum limits of a page of [`LONG_SCAN`].
pub const LONG_PAGE: PageLimits = PageLimits { items: 16 << 10, bytes: 256 << 10 };

/// Maximum limits of one request of [`COUNT`]. It ends after [`COUNT_BYTES_MAX`] at the latest.
pub const COUNT_PAGE: PageLimits = PageLimits { items: 64 << 10, bytes: u32::MAX };
/// Bytes of keys, and 8 more for each, after which a count ends: about a millisecond of a worker.
pub const COUNT_BYTES_MAX: usize = 4 << 20;

/// Maximum limits of one request of [`DELETE_RANGE`]. It ends after [`DELETE_BYTES_MAX`] at the latest.
pub const DELETE_PAGE: PageLimits = PageLimits { items: 4 << 10, bytes: u32::MAX };
/// The same of the removal of a range.
pub const DELETE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a page before its items.
const PAGE_HEADER_BYTES: usize = 16;
/// Bytes of a scan request before its keys.
const SCAN_HEADER_BYTES: usize = 32;
/// Bytes of an operation before the key of a GET or a DELETE, and of a PUT.
const OPERATION_HEADER_BYTES: usize = 2;
const PUT_HEADER_BYTES: usize = 8;
/// Bytes of an item in a page, beside its key and its value.
const ITEM_HEADER_BYTES: usize = 8;

/// The limits of a page. A page ends when either is reached. An item counts 8 bytes more than its key and its value.
/// The first item of a page may exceed the limit of bytes, so that each page makes progress: a page has at most 1.1 MB
/// more than its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageLimits {
    /// Items, at least 1.
    pub items: u32,
    /// Bytes of the items, at least 1.
    pub bytes: u32,
}

impl PageLimits {
    /// Whether both are within `most`, and neither is zero.
    pub fn are_within(self, most: PageLimits) -> bool {
        (1..=most.items).contains(&self.items) && (1..=most.bytes).contains(&self.bytes)
    }

    /// Whether a page with `items` items has room for another one, with which it has `bytes` bytes.
    fn have_room(self, items: u32, bytes: usize) -> bool {
        items < self.items && (items == 0 || bytes <= self.bytes as usize)
    }
}

/// The bytes that an item counts in a page.
fn item_bytes(key: &[u8], value: &[u8]) -> usize {
    ITEM_HEADER_BYTES + key.len() + value.len()
}

/// Codes of application errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    /// The request is truncated or too long.
    Malformed = 1,
    /// The request has a version, a flag or a kind of bound that this server does not know.
    Unknown = 2,
    /// A key is too long.
    KeyTooLong = 3,
    /// The value is too long.
    ValueTooLong = 4,
    /// The memory budget of the index is used up.
    Full = 5,
    /// The lower bound of the scan is above the upper one.
    Reversed = 6,
    /// A limit of the page is zero, or more than the request type allows.
    PageLimits = 7,
    /// The cursor is from another server, or from an earlier run of this one.
    OtherServer = 8,
    /// The cursor is not within the bounds of the scan.
    CursorOutside = 9,
    /// The server has no file for snapshots.
    NoSnapshot = 10,
    /// A snapshot is being saved already.
    Saving = 11,
    /// The snapshot could not be saved: the message says why.
    NotSaved = 12,
    /// A short page would enter more than [`SHORT_LAYERS_MAX`] layers before its first item.
    TooDeep = 13,
    /// The server is shutting down, and removes no more.
    Ending = 14,
}

impl Code {
    /// All of them.
    pub const ALL: [Code; 14] = [
        Code::Malformed,
        Code::Unknown,
        Code::KeyTooLong,
        Code::ValueTooLong,
        Code::Full,
        Code::Reversed,
        Code::PageLimits,
        Code::OtherServer,
        Code::CursorOutside,
        Code::NoSnapshot,
        Code::Saving,
        Code::NotSaved,
        Code::TooDeep,
        Code::Ending,
    ];

    /// The code with this number.
    pub fn of(code: u32) -> Option<Code> {
        Code::ALL.into_iter().find(|known| *known as u32 == code)
    }

    /// The error message.
    pub fn message(self) -> &'static str {
        match self {
            Code::Malformed => "the length of the request does not match its fields: is that a client of an index?",
            Code::Unknown => "the request is of another version than 1, or has a field with an unknown value",
            Code::KeyTooLong => "the key is too long: a key has at most 65536 bytes",
            Code::ValueTooLong => "the value is too long: a value has at most 1048576 bytes",
            Code::Full => {
                "the memory budget of the index is used up, the item was not stored: delete items, or give the server \
                 more memory; `dunlin index stats` shows how much of it free nodes have, which other sizes cannot use"
            }
            Code::Reversed => "the lower bound of the scan is above its upper bound: swap them",
            Code::PageLimits => {
                "a page has 1 to 64 items and bytes up to 16384 (type 0x73), or 1 to 16384 items and bytes up to \
                 262144 (type 0x74); a count is of 1 to 65536 items and at least 1 byte (type 0x75), and so is the \
                 removal of a range, of 1 to 4096 items (type 0x78)"
            }
            Code::OtherServer => {
                "the cursor is from another server, or this one was restarted: begin the scan again, or a new one \
                 after the last key"
            }
            Code::CursorOutside => {
                "the cursor is not within the bounds of the scan: send the bounds that it began with"
            }
            Code::NoSnapshot => "the server has no file for snapshots: start it with --snapshot FILE",
            Code::Saving => "a snapshot is being saved already: try again when it is done",
            Code::NotSaved => "the snapshot was not saved: the log of the server says why",
            Code::TooDeep => {
                "the keys have so much in common that the page is too much work for the event loop: ask for it from a \
                 worker (type 0x74)"
            }
            Code::Ending => "the server is shutting down, and removed nothing: ask again when it is back",
        }
    }
}

impl From<Refused> for Code {
    fn from(refused: Refused) -> Code {
        match refused {
            Refused::KeyTooLong { .. } => Code::KeyTooLong,
            Refused::ValueTooLong { .. } => Code::ValueTooLong,
            Refused::Full { .. } => Code::Full,
        }
    }
}

fn check_key(key: &[u8]) -> Result<&[u8], Code> {
    if key.len() > KEY_BYTES_MAX { Err(Code::KeyTooLong) } else { Ok(key) }
}

fn check_version(version: u8) -> Result<(), Code> {
    if version == VERSION { Ok(()) } else { Err(Code::Unknown) }
}

/// A request of [`OPERATE`].
///
/// | Bytes | Field |
/// |---|---|
/// | 1 | version |
/// | 1 | 0 GET, 1 PUT, 2 DELETE |
/// | 2, 4 | of a PUT: zeros; length of the key |
/// | | the key, and the value of a PUT |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Asks for the value of a key.
    Get(&'a [u8]),
    /// Stores a value for a key.
    Put(&'a [u8], &'a [u8]),
    /// Removes a key.
    Delete(&'a [u8]),
}

const GET: u8 = 0;
const PUT: u8 = 1;
const DELETE: u8 = 2;

impl<'a> Operation<'a> {
    /// Encodes it.
    pub fn encode(self) -> Vec<u8> {
        let (operation, key, value) = match self {
            Operation::Get(key) => (GET, key, &[][..]),
            Operation::Put(key, value) => (PUT, key, value),
            Operation::Delete(key) => (DELETE, key, &[][..]),
        };
        let mut request = Vec::with_capacity(PUT_HEADER_BYTES + key.len() + value.len());
        request.extend_from_slice(&[VERSION, operation]);
        if operation == PUT {
            request.extend_from_slice(&[0; 2]);
            request.extend_from_slice(&(key.len() as u32).to_le_bytes());
        }
        request.extend_from_slice(key);
        request.extend_from_slice(value);
        request
    }

    /// Parses a request.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Result<Operation<'a>, Code> {
        let (header, rest) = request.split_at_checked(OPERATION_HEADER_BYTES).ok_or(Code::Malformed)?;
        check_version(header[0])?;
        match header[1] {
            GET => check_key(rest).map(Operation::Get),
            PUT => parse_put(rest),
            DELETE => check_key(rest).map(Operation::Delete),
            _ => Err(Code::Unknown),
        }
    }

    /// The key.
    #[inline]
    pub fn key(self) -> &'a [u8] {
        let (Operation::Get(key) | Operation::Put(key, _) | Operation::Delete(key)) = self;
        key
    }

    /// Whether it changes anything.
    #[inline]
    pub(crate) fn is_write(self) -> bool {
        !matches!(self, Operation::Get(_))
    }
}

fn parse_put(rest: &[u8]) -> Result<Operation<'_>, Code> {
    let header_bytes = PUT_HEADER_BYTES - OPERATION_HEADER_BYTES;
    let (header, rest) = rest.split_at_checked(header_bytes).ok_or(Code::Malformed)?;
    if header[..2] != [0; 2] {
        return Err(Code::Unknown);
    }
    let (key, value) = rest.split_at_checked(number(&header[2..]) as usize).ok_or(Code::Malformed)?;
    check_key(key)?;
    if value.len() > VALUE_BYTES_MAX { Err(Code::ValueTooLong) } else { Ok(Operation::Put(key, value)) }
}

/// The last key of the page before, and the [incarnation](Page::incarnation) of the server that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct After<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The incarnation, which is not zero.
    pub incarnation: u64,
}

/// A request for a page of a scan.
///
/// | Bytes | Field |
/// |---|---|
/// | 1 | version |
/// | 1 | order: 0 ascending, 1 descending |
/// | 1, 1 | kinds of the lower and of the upper bound: 0 before, 1 after the key, 2 after all keys with the prefix |
/// | 4, 4 | limits of the page: items, bytes |
/// | 4, 4, 4 | lengths of the lower bound, the upper bound, and the cursor's key |
/// | 8 | the cursor's incarnation; 0 for the first page, then the cursor's key is empty |
/// | | lower bound, upper bound, cursor's key |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanRequest<'a> {
    /// The keys.
    pub range: Range<'a>,
    /// The order of the items.
    pub order: Order,
    /// The limits of this page.
    pub limits: PageLimits,
    /// Where the page before ended; `None` for the first.
    pub after: Option<After<'a>>,
}

impl<'a> ScanRequest<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let (low, high) = (self.range.low, self.range.high);
        let After { key, incarnation } = self.after.unwrap_or(After { key: &[], incarnation: 0 });
        let mut request = Vec::with_capacity(SCAN_HEADER_BYTES + low.key().len() + high.key().len() + key.len());
        request.extend_from_slice(&[VERSION, u8::from(self.order == Order::Descending), kind_of(low), kind_of(high)]);
        let lengths = [low.key(), high.key(), key].map(|key| key.len() as u32);
        for word in [self.limits.items, self.limits.bytes].into_iter().chain(lengths) {
            request.extend_from_slice(&word.to_le_bytes());
        }
        request.extend_from_slice(&incarnation.to_le_bytes());
        [low.key(), high.key(), key].into_iter().for_each(|key| request.extend_from_slice(key));
        request
    }

    /// Parses and checks a request, whose page may have up to `most`. The incarnation is the server's to check.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn parse(request: &'a [u8], most: PageLimits) -> Result<ScanRequest<'a>, Code> {
        let (header, keys) = request.split_at_checked(SCAN_HEADER_BYTES).ok_or(Code::Malformed)?;
        check_version(header[0])?;
        let order = match header[1] {
            0 => Order::Ascending,
            1 => Order::Descending,
            _ => return Err(Code::Unknown),
        };
        let word = |at: usize| number(&header[4 * at..]);
        let (low, keys) = keys.split_at_checked(word(3) as usize).ok_or(Code::Malformed)?;
        let (high, key) = keys.split_at_checked(word(4) as usize).ok_or(Code::Malformed)?;
        if key.len() != word(5) as usize {
            return Err(Code::Malformed);
        }
        [low, high, key].into_iter().try_for_each(|key| check_key(key).map(|_| ()))?;
        let range = Range { low: gap_of(header[2], low)?, high: gap_of(header[3], high)? };
        let limits = PageLimits { items: word(1), bytes: word(2) };
        if !limits.are_within(most) {
            return Err(Code::PageLimits);
        }
        if range.is_reversed() {
            return Err(Code::Reversed);
        }
        let incarnation = u64::from(word(6)) | u64::from(word(7)) << 32;
        let after = (incarnation != 0).then_some(After { key, incarnation });
        match after {
            None if !key.is_empty() => Err(Code::Malformed),
            Some(After { key, .. }) if !range.contains(key) => Err(Code::CursorOutside),
            _ => Ok(ScanRequest { range, order, limits, after }),
        }
    }

    /// The keys that are still to come.
    pub fn rest(&self) -> Range<'a> {
        match (self.after, self.order) {
            (None, _) => self.range,
            (Some(After { key, .. }), Order::Ascending) => Range { low: Gap::After(key), ..self.range },
            (Some(After { key, .. }), Order::Descending) => Range { high: Gap::Before(key), ..self.range },
        }
    }

    /// The scan for its page.
    pub(crate) fn scan(&self) -> Scan<'a> {
        Scan { range: self.rest(), order: self.order, limit: self.limits.items as usize }
    }
}

/// Whether a request, which was parsed, is for the first part of a scan.
pub(crate) fn is_first(request: &[u8]) -> bool {
    request.get(24..SCAN_HEADER_BYTES).is_some_and(|incarnation| incarnation == [0; 8])
}

fn kind_of(gap: Gap<'_>) -> u8 {
    match gap {
        Gap::Before(_) => 0,
        Gap::After(_) => 1,
        Gap::AfterPrefix(_) => 2,
    }
}

fn gap_of(kind: u8, key: &[u8]) -> Result<Gap<'_>, Code> {
    match kind {
        0 => Ok(Gap::Before(key)),
        1 => Ok(Gap::After(key)),
        2 => Ok(Gap::AfterPrefix(key)),
        _ => Err(Code::Unknown),
    }
}

/// A request for [`STATS`] or [`SAVE`].
pub fn encode_plain() -> Vec<u8> {
    vec![VERSION]
}

/// Parses a request for [`STATS`] or [`SAVE`].
///
/// # Errors
/// What is wrong with the request.
pub fn parse_plain(request: &[u8]) -> Result<(), Code> {
    match request {
        [version] => check_version(*version),
        _ => Err(Code::Malformed),
    }
}

/// The answer of [`SAVE`]: items in the snapshot, and bytes of its file.
pub(crate) fn encode_saved(items: u64, bytes: u64) -> Vec<u8> {
    [items, bytes].map(u64::to_le_bytes).concat()
}

/// Parses the answer of [`SAVE`]; `None` if it is none.
pub(crate) fn parse_saved(answer: &[u8]) -> Option<(u64, u64)> {
    let (items, bytes) = answer.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*items), u64::from_le_bytes(bytes.try_into().ok()?)))
}

/// The answer of [`COUNT`] and of [`DELETE_RANGE`].
///
/// | Bytes | Field |
/// |---|---|
/// | 8 | incarnation of the server |
/// | 4 | number of items |
/// | 1, 3 | 1 if the range has more items, otherwise 0; zeros |
/// | | the last key that was counted |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted<'a> {
    /// A random number that the server drew when it was started; never zero.
    pub incarnation: u64,
    /// Number of items.
    pub items: u32,
    /// Whether the range has more items.
    pub has_more: bool,
    /// The last key that was counted or removed; empty if there was none, or if it does not matter.
    pub last: &'a [u8],
}

impl<'a> Counted<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut answer = Vec::with_capacity(PAGE_HEADER_BYTES + self.last.len());
        answer.extend_from_slice(&self.incarnation.to_le_bytes());
        answer.extend_from_slice(&self.items.to_le_bytes());
        answer.extend_from_slice(&[u8::from(self.has_more), 0, 0, 0]);
        answer.extend_from_slice(self.last);
        answer
    }

    /// Checks an answer; `None` if the bytes are none.
    pub fn parse(answer: &'a [u8]) -> Option<Counted<'a>> {
        let (header, last) = answer.split_at_checked(PAGE_HEADER_BYTES)?;
        let (items, has_more) = (number(&header[8..]), header[12] == 1);
        let is_sound = header[..8] != [0; 8]
            && header[12] <= 1
            && header[13..] == [0; 3]
            && last.len() <= KEY_BYTES_MAX
            && (items > 0 || has_more || last.is_empty());
        let incarnation = u64::from(number(header)) | u64::from(number(&header[4..])) << 32;
        is_sound.then_some(Counted { incarnation, items, has_more, last })
    }
}

/// The four bytes at the start of `bytes`.
///
/// # Panics
/// If there are fewer.
fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Writes a page into a vector.
#[derive(Debug)]
pub(crate) struct PageWriter<'v> {
    page: &'v mut Vec<u8>,
    limits: PageLimits,
    items: u32,
}

impl<'v> PageWriter<'v> {
    /// Begins a page; `page` is overwritten.
    pub fn new(page: &'v mut Vec<u8>, limits: PageLimits, incarnation: u64) -> PageWriter<'v> {
        page.clear();
        page.extend_from_slice(&incarnation.to_le_bytes());
        page.extend_from_slice(&[0; 8]);
        PageWriter { page, limits, items: 0 }
    }

    /// Writes an item; returns false if it belongs to the next page.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> bool {
        let bytes = self.page.len() - PAGE_HEADER_BYTES + item_bytes(key, value);
        if !self.limits.have_room(self.items, bytes) {
            return false;
        }
        self.page.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.page.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.page.extend_from_slice(key);
        self.page.extend_from_slice(value);
        self.items += 1;
        true
    }

    /// Number of items so far.
    pub fn items(&self) -> u32 {
        self.items
    }

    /// Ends the page; returns its number of items.
    pub fn end(self, has_more: bool) -> u32 {
        self.page[8..12].copy_from_slice(&self.items.to_le_bytes());
        self.page[12] = u8::from(has_more);
        self.items
    }
}

/// A page of a scan, in the order of the scan.
///
/// | Bytes | Field |
/// |---|---|
/// | 8 | incarnation of the server |
/// | 4 | number of items |
/// | 1, 3 | 1 if the scan has more items, otherwise 0; zeros |
/// | 4, 4 | of each item: lengths of the key and of the value |
/// | | its key, its value |
#[derive(Debug)]
pub struct Page {
    bytes: MsgBuf,
    /// Where the last key is.
    last: std::ops::Range<usize>,
}

impl Page {
    /// Checks an answer; `None` if the bytes are not a page.
    pub fn parse(bytes: MsgBuf) -> Option<Page> {
        let header = bytes.get(..PAGE_HEADER_BYTES)?;
        if header[..8] == [0; 8] || header[12] > 1 || header[13..] != [0; 3] {
            return None;
        }
        let (mut at, mut last) = (PAGE_HEADER_BYTES, 0..0);
        for _ in 0..number(&header[8..]) {
            let lengths = bytes.get(at..at + ITEM_HEADER_BYTES)?;
            let (key, value) = (number(lengths) as usize, number(&lengths[4..]) as usize);
            at += ITEM_HEADER_BYTES;
            last = at..at + key;
            at += key + value;
            if key > KEY_BYTES_MAX || value > VALUE_BYTES_MAX || at > bytes.len() {
                return None;
            }
        }
        // An empty page that has more would keep a client asking for ever.
        let is_dead_end = number(&header[8..]) == 0 && header[12] == 1;
        (at == bytes.len() && !is_dead_end).then_some(Page { bytes, last })
    }

    /// A random number that the server drew when it was started; never zero.
    pub fn incarnation(&self) -> u64 {
        u64::from_le_bytes(self.bytes[..8].try_into().expect("checked: the header is there"))
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        number(&self.bytes[8..]) as usize
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the scan has more items.
    pub fn has_more(&self) -> bool {
        self.bytes[12] == 1
    }

    /// The last key.
    pub fn last_key(&self) -> Option<&[u8]> {
        (!self.is_empty()).then(|| &self.bytes[self.last.clone()])
    }

    /// The keys and values.
    pub fn items(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[PAGE_HEADER_BYTES..];
        std::iter::from_fn(move || {
            let (lengths, items) = rest.split_at_checked(ITEM_HEADER_BYTES)?;
            // Checked when it was parsed.
            let (key, items) = items.split_at_checked(number(lengths) as usize)?;
            let (value, items) = items.split_at_checked(number(&lengths[4..]) as usize)?;
            rest = items;
            Some((key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PageLimits = PageLimits { items: 3, bytes: 100 };

    fn request() -> ScanRequest<'static> {
        let after = Some(After { key: b"cde", incarnation: 7 << 40 });
        ScanRequest { range: Range::between(b"abc", b"x"), order: Order::Descending, limits: LIMITS, after }
    }

    #[test]
    fn requests_are_read_back() {
        for (key, value) in [(&b"key"[..], &b"value"[..]), (b"", b"")] {
            for operation in [Operation::Get(key), Operation::Put(key, value), Operation::Delete(key)] {
                assert_eq!(Operation::parse(&operation.encode()), Ok(operation));
            }
        }
        for gap in [Gap::Before(b"a"), Gap::After(b"a"), Gap::AfterPrefix(b"a")] {
            for order in [Order::Ascending, Order::Descending] {
                let range = Range { low: gap, high: Gap::AfterPrefix(b"") };
                for after in [None, Some(After { key: b"b", incarnation: u64::MAX })] {
                    let request = ScanRequest { range, order, limits: LIMITS, after };
                    assert_eq!(ScanRequest::parse(&request.encode(), LIMITS), Ok(request));
                }
            }
        }
        assert_eq!(request().rest().high, Gap::Before(b"cde"));
    }

    #[test]
    fn each_prefix_of_a_request_and_each_changed_byte_of_its_header_is_refused_or_read() {
        let bytes = request().encode();
        for len in 0..bytes.len() {
            assert_eq!(ScanRequest::parse(&bytes[..len], LIMITS), Err(Code::Malformed), "{len}");
        }
        for at in 0..SCAN_HEADER_BYTES {
            for change in 1..=255 {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                if let Ok(parsed) = ScanRequest::parse(&bytes, LIMITS) {
                    assert_eq!(parsed.encode(), bytes, "a request has one form");
                }
            }
        }
        let put = Operation::Put(b"key", b"").encode();
        for len in 0..put.len() {
            assert_eq!(Operation::parse(&put[..len]), Err(Code::Malformed));
        }
    }

    #[test]
    fn pages_are_read_back_and_nothing_else_is() {
        let mut bytes = Vec::new();
        let mut writer = PageWriter::new(&mut bytes, LIMITS, 5);
        assert!(writer.push(b"a", &[1; 200]), "the first item may exceed the limit");
        assert!(!writer.push(b"b", b""));
        assert_eq!(writer.end(true), 1);
        let mut writer = PageWriter::new(&mut bytes, LIMITS, 5);
        assert!(writer.push(b"", b"1") && writer.push(b"b", b"") && writer.push(b"c", b"3"));
        assert!(!writer.push(b"d", b""));
        assert_eq!(writer.end(true), 3);
        let parse = |bytes: &[u8]| Page::parse(MsgBuf::copy_from(bytes).unwrap());
        let page = parse(&bytes).unwrap();
        assert_eq!((page.incarnation(), page.len(), page.has_more()), (5, 3, true));
        assert_eq!(page.last_key(), Some(&b"c"[..]));
        assert_eq!(page.items().collect::<Vec<_>>(), [(&b""[..], &b"1"[..]), (b"b", b""), (b"c", b"3")]);
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_none(), "{len}");
        }
        bytes.push(0);
        assert!(parse(&bytes).is_none());
        PageWriter::new(&mut bytes, LIMITS, 5).end(true);
        assert!(parse(&bytes).is_none(), "an empty page that has more");
        PageWriter::new(&mut bytes, LIMITS, 5).end(false);
        assert_eq!(parse(&bytes).unwrap().last_key(), None);
    }

    #[test]
    fn counts_are_read_back_and_nothing_else_is() {
        let counted = Counted { incarnation: 7 << 40, items: 3, has_more: true, last: b"c" };
        let answer = counted.encode();
        assert_eq!(Counted::parse(&answer), Some(counted));
        let none = Counted { incarnation: 1, items: 0, has_more: false, last: b"" };
        // Others have removed the items that it looked at.
        let other = Counted { items: 0, ..counted };
        for part in [none, other] {
            assert_eq!(Counted::parse(&part.encode()), Some(part));
        }
        for wrong in [
            Counted { incarnation: 0, ..counted },
            Counted { items: 0, has_more: false, ..counted },
            Counted { last: &[0; KEY_BYTES_MAX + 1], ..counted },
        ] {
            assert_eq!(Counted::parse(&wrong.encode()), None, "{wrong:?}");
        }
        for len in 0..PAGE_HEADER_BYTES {
            assert_eq!(Counted::parse(&answer[..len]), None);
        }
        assert_eq!(parse_saved(&encode_saved(1, u64::MAX)), Some((1, u64::MAX)));
        assert_eq!(parse_saved(&[0; 15]).or(parse_saved(&[0; 17])), None);
        assert_eq!(parse_plain(&encode_plain()), Ok(()));
        assert_eq!((parse_plain(&[]), parse_plain(&[2])), (Err(Code::Malformed), Err(Code::Unknown)));
    }

    #[test]
    fn codes_are_found_by_their_numbers() {
        for (at, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!((code as usize, Code::of(code as u32)), (at + 1, Some(code)));
        }
        assert_eq!(Code::of(0).or(Code::of(15)), None);
    }
}
