//! Going through all items of a core, a range of hashes at a time.

use dunlin_store::{Item, UnixSeconds};

use super::Status;
use super::bytes::Reader;

/// Longest value that a scan shows; longer ones are read one by one.
pub const SCAN_VALUE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a response beyond which a scan takes no further range: what fits into it a few times over is the limit of one range.
pub const SCAN_BYTES: usize = 256 << 10;

/// Length of a value that is not shown.
const NOT_SHOWN: u32 = u32::MAX;

/// A request to go on from this hash. 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// The first hash that is of interest; 0 to begin.
    pub from: u64,
}

impl Scan {
    /// The request.
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

/// An item that a scan met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value; `None` if it is longer than a scan shows.
    pub value: Option<&'a [u8]>,
    /// 32 bits of the client's own.
    pub flags: u32,
    /// When it expires; `None` for never.
    pub expires: Option<UnixSeconds>,
}

/// Writes a response: its status, whether there is more, from which hash on, and the items.
#[derive(Debug)]
pub struct ScanAnswerWriter(Vec<u8>);

/// Bytes in front of the items.
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
        // Keys have at most 250 bytes, and values that are shown far fewer than 2^32.
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

    /// Whether no further range is to be taken.
    pub fn is_full(&self) -> bool {
        self.0.len() >= SCAN_BYTES
    }

    /// The response; `next` is the hash to go on from, or `None` if that was all.
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

/// A response: the items, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanAnswer<'a> {
    /// The hash to go on from; `None` if that was all.
    pub next: Option<u64>,
    /// What was met.
    pub items: Vec<Scanned<'a>>,
}

impl<'a> ScanAnswer<'a> {
    /// Parses a response; `None` if it is malformed, or of another status.
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
            // Cut where an item ends it is a shorter list.
            let cut = ScanAnswer::parse(&bytes[..len]);
            assert!(cut.is_none_or(|cut| cut.items.len() < 3));
        }
        assert_eq!(ScanAnswer::parse(&ScanAnswerWriter::new().finish(None)), Some(ScanAnswer { next: None, items: vec![] }));
        assert_eq!(Scan::parse(&Scan { from: 99 }.encode()), Some(Scan { from: 99 }));
        assert_eq!([Scan::parse(b""), Scan::parse(&[0; 9])], [None; 2]);
    }
}
