//! Scans all items of a core, a range of hashes at a time.

use dunlin_store::{Item, UnixSeconds};

use super::Status;
use super::bytes::Reader;

/// Longest value that a scan returns; longer ones are read one by one.
pub const SCAN_VALUE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a response beyond which a scan visits no further range. A single range may have a few times this much.
pub const SCAN_BYTES: usize = 256 << 10;

/// The length that stands for a value that is not returned.
const NOT_SHOWN: u32 = u32::MAX;

/// A request to continue from this hash. 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// The first hash wanted; 0 to begin.
    pub from: u64,
}

impl Scan {
    /// Returns the request.
    pub fn encode(self) -> [u8; 8] {
        self.from.to_le_bytes()
    }

    /// Parses a request; `None` if it is malformed.
    pub fn parse(request: &[u8]) -> Option<Scan> {
        let mut rest = Reader(request);
        let from = rest.u64()?;
        rest.end()?;
        Some(Scan { from })
    }
}

/// An item found by a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value; `None` if it is longer than a scan returns.
    pub value: Option<&'a [u8]>,
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// When it expires; `None` if never.
    pub expires: Option<UnixSeconds>,
}

/// Writes a response: its status, whether there is more, the hash to continue from, and the items.
#[derive(Debug)]
pub struct ScanAnswerWriter(Vec<u8>);

/// Bytes before the items.
const HEAD_BYTES: usize = 10;

impl ScanAnswerWriter {
    /// Begins a response.
    pub fn new() -> ScanAnswerWriter {
        let mut bytes = Vec::with_capacity(SCAN_BYTES * 2);
        bytes.resize(HEAD_BYTES, 0);
        ScanAnswerWriter(bytes)
    }

    /// Adds an item.
    pub fn push(&mut self, key: &[u8], item: &Item<'_>) {
        let ScanAnswerWriter(bytes) = self;
        let is_shown = item.value.len() <= SCAN_VALUE_BYTES_MAX;
        // Keys have at most 250 bytes, and returned values far fewer than 2^32.
        bytes.push(key.len() as u8);
        bytes.extend_from_slice(&item.flags.to_le_bytes());
        bytes.push(u8::from(item.expires.is_some()));
        bytes.extend_from_slice(&item.expires.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&if is_shown { item.value.len() as u32 } else { NOT_SHOWN }.to_le_bytes());
        bytes.extend_from_slice(key);
        if is_shown {
            bytes.extend_from_slice(item.value);
        }
    }

    /// Whether to visit no further range.
    pub fn is_full(&self) -> bool {
        self.0.len() >= SCAN_BYTES
    }

    /// Returns the response; `next` is the hash to continue from, or `None` at the end.
    pub fn finish(self, next: Option<u64>) -> Vec<u8> {
        let mut bytes = self.0;
        bytes[0] = Status::Done as u8;
        bytes[1] = u8::from(next.is_some());
        bytes[2..HEAD_BYTES].copy_from_slice(&next.unwrap_or(0).to_le_bytes());
        bytes
    }
}

impl Default for ScanAnswerWriter {
    fn default() -> Self {
        ScanAnswerWriter::new()
    }
}

/// A response: the items, and where to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanAnswer<'a> {
    /// The hash to continue from; `None` at the end.
    pub next: Option<u64>,
    /// The items found.
    pub items: Vec<Scanned<'a>>,
}

impl<'a> ScanAnswer<'a> {
    /// Parses a response; `None` if it is malformed, or has another status.
    pub fn parse(response: &'a [u8]) -> Option<ScanAnswer<'a>> {
        let mut rest = Reader(response);
        if Status::of(response)? != Status::Done {
            return None;
        }
        rest.u8()?;
        let has_more = flag(rest.u8()?)?;
        let next = rest.u64()?;
        let mut items = Vec::new();
        while !rest.0.is_empty() {
            let key_len = usize::from(rest.u8()?);
            let flags = rest.u32()?;
            let has_expiry = flag(rest.u8()?)?;
            let expires = rest.u32()?;
            let value_len = rest.u32()?;
            let key = rest.bytes(key_len)?;
            let value = if value_len == NOT_SHOWN { None } else { Some(rest.bytes(value_len as usize)?) };
            items.push(Scanned { key, value, flags, expires: has_expiry.then_some(expires) });
        }
        Some(ScanAnswer { next: has_more.then_some(next), items })
    }
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dunlin_store::Marks;

    use super::*;

    fn item(value: &[u8], expires: Option<u32>) -> Item<'_> {
        Item { value, flags: 7, cas: 1, expires, last_access: 0, marks: Marks::default() }
    }

    #[test]
    fn what_is_written_is_parsed() {
        let long = vec![1; SCAN_VALUE_BYTES_MAX + 1];
        let mut writer = ScanAnswerWriter::new();
        writer.push(b"a", &item(b"", None));
        writer.push(&[0xff; 250], &item(&long[1..], Some(0)));
        writer.push(b"long", &item(&long, Some(u32::MAX)));
        let bytes = writer.finish(Some(u64::MAX));
        let answer = ScanAnswer::parse(&bytes).unwrap();
        assert_eq!(answer.next, Some(u64::MAX));
        let scanned = |key, value, expires| Scanned { key, value, flags: 7, expires };
        let key = [0xff; 250];
        let expected = [
            scanned(&b"a"[..], Some(&b""[..]), None),
            scanned(&key, Some(&long[1..]), Some(0)),
            scanned(b"long", None, Some(u32::MAX)),
        ];
        assert_eq!(answer.items, expected);
        for len in 0..bytes.len() {
            // Truncated at the end of an item, it is a shorter list.
            let cut = ScanAnswer::parse(&bytes[..len]);
            assert!(cut.is_none_or(|cut| cut.items.len() < 3));
        }
        assert_eq!(
            ScanAnswer::parse(&ScanAnswerWriter::new().finish(None)),
            Some(ScanAnswer { next: None, items: vec![] })
        );
        assert_eq!(Scan::parse(&Scan { from: 99 }.encode()), Some(Scan { from: 99 }));
        assert_eq!([Scan::parse(b""), Scan::parse(&[0; 9])], [None; 2]);
    }
}
