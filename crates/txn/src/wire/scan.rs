//! Range reads: a range, the request for a page of it, and the page.

use bytes::{Buf, BufMut};
use dunlin_index::{Gap, Range};

use super::{WireError, put_value, take, take_value};
use crate::ids::{PartitionId, TableId, Version};
use crate::limits::KEY_BYTES_MAX;

/// Maximum length of a bound: a key, and the zero byte that makes it the bound behind that key.
pub const BOUND_BYTES_MAX: usize = KEY_BYTES_MAX + 1;
/// The length that means "no bound".
const NO_BOUND: u16 = u16::MAX;

/// A range of keys in its form on the wire: from `low` on, below `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<'a> {
    /// The first key that may be in it.
    pub low: &'a [u8],
    /// The first key behind it; `None` if there is none.
    pub high: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// All keys.
    pub const ALL: Span<'static> = Span { low: b"", high: None };

    /// Whether a key is before its end.
    pub fn is_before_end(&self, key: &[u8]) -> bool {
        self.high.is_none_or(|high| key < high)
    }

    /// Whether a key is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low <= key && self.is_before_end(key)
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        !self.is_before_end(self.low)
    }

    /// The same range for an index.
    pub fn range(&self) -> Range<'a> {
        Range { low: Gap::Before(self.low), high: self.high.map_or(Range::ALL.high, Gap::Before) }
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bound(out, Some(self.low));
        put_bound(out, self.high);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// If it is truncated, a bound is too long, or it has no lower bound.
    pub fn take(from: &mut &'a [u8]) -> Result<Span<'a>, WireError> {
        let none = WireError::Unknown { field: "lower bound", value: NO_BOUND.into() };
        Ok(Span { low: take_bound(from)?.ok_or(none)?, high: take_bound(from)? })
    }
}

fn put_bound(out: &mut Vec<u8>, bound: Option<&[u8]>) {
    out.put_u16_le(bound.map_or(NO_BOUND, |bound| bound.len() as u16));
    out.put_slice(bound.unwrap_or_default());
}

fn take_bound<'a>(from: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    match from.try_get_u16_le()? {
        NO_BOUND => Ok(None),
        len if usize::from(len) > BOUND_BYTES_MAX => {
            Err(WireError::Unknown { field: "length of a bound", value: len.into() })
        }
        len => take(from, len.into()).map(Some),
    }
}

/// A request for a page: the entry of a [`super::Kind::Scan`] request, which has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest<'a> {
    /// The partition, which has all keys of the range.
    pub partition: PartitionId,
    /// The table.
    pub table: TableId,
    /// The range.
    pub span: Span<'a>,
    /// Maximum number of items.
    pub items_max: u32,
}

impl<'a> PageRequest<'a> {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.partition.0);
        out.put_u16_le(self.table.0);
        self.span.encode(out);
        out.put_u32_le(self.items_max);
    }

    /// Takes it from the front.
    ///
    /// # Errors
    /// As [`Span::take`], and if it asks for no item.
    pub fn take(from: &mut &'a [u8]) -> Result<PageRequest<'a>, WireError> {
        let (partition, table) = (PartitionId(from.try_get_u32_le()?), TableId(from.try_get_u16_le()?));
        let (span, items_max) = (Span::take(from)?, from.try_get_u32_le()?);
        if items_max == 0 {
            return Err(WireError::Unknown { field: "limit of items", value: 0 });
        }
        Ok(PageRequest { partition, table, span, items_max })
    }
}

/// A page: the answer to a [`PageRequest`]. It says everything about the keys from the beginning of the range to its
/// end: they have these items, and no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<'a> {
    /// The highest version that the partition had issued.
    pub version: Version,
    /// Entries that the participant visited: items, locks on absent keys, and remembered deletions.
    pub visited: u32,
    /// Keys and values, in order.
    pub items: Vec<(&'a [u8], &'a [u8])>,
    /// The last key that was visited, if the page ends before the range.
    pub last: Option<&'a [u8]>,
}

/// A page under construction, behind what the answer has already.
#[derive(Debug)]
pub(crate) struct PageWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    items: u32,
}

impl<'o> PageWriter<'o> {
    pub fn new(out: &'o mut Vec<u8>, version: Version) -> PageWriter<'o> {
        out.put_u64_le(version);
        let start = out.len();
        out.put_u64_le(0);
        PageWriter { out, start, items: 0 }
    }

    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        put_bound(self.out, Some(key));
        put_value(self.out, Some(value));
        self.items += 1;
    }

    pub fn items(&self) -> u32 {
        self.items
    }

    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    pub fn finish(self, visited: u32, last: Option<&[u8]>) {
        self.out[self.start..self.start + 4].copy_from_slice(&visited.to_le_bytes());
        self.out[self.start + 4..self.start + 8].copy_from_slice(&self.items.to_le_bytes());
        put_bound(self.out, last);
    }
}

impl<'a> Page<'a> {
    /// Parses it.
    ///
    /// # Errors
    /// If it is truncated, an item has no value, or bytes follow it.
    pub fn parse(mut from: &'a [u8]) -> Result<Page<'a>, WireError> {
        let (version, visited, count) = (from.try_get_u64_le()?, from.try_get_u32_le()?, from.try_get_u32_le()?);
        let mut items = Vec::with_capacity((count as usize).min(from.len() / 6));
        for _ in 0..count {
            let missing = WireError::Unknown { field: "item", value: u64::from(NO_BOUND) };
            let (key, value) = (take_bound(&mut from)?, take_value(&mut from)?);
            items.push(key.zip(value).ok_or(missing)?);
        }
        let last = take_bound(&mut from)?;
        super::end(from)?;
        Ok(Page { version, visited, items, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let mut out = vec![0];
        let mut writer = PageWriter::new(&mut out, 77);
        writer.add(b"dunlin", b"Calidris alpina");
        writer.add(b"knot", b"");
        writer.finish(5, Some(b"plover"));
        let items = vec![(&b"dunlin"[..], &b"Calidris alpina"[..]), (b"knot", b"")];
        let page = Page { version: 77, visited: 5, items, last: Some(b"plover") };
        assert_eq!(Page::parse(&out[1..]), Ok(page));
        for cut in 1..out.len() {
            assert!(Page::parse(&out[1..cut]).is_err(), "cut off after {cut} bytes");
        }
        out.push(0);
        assert_eq!(Page::parse(&out[1..]), Err(WireError::Long));
    }

    #[test]
    fn ranges_without_a_beginning_and_with_long_bounds_are_malformed() {
        let of = |low: Option<&[u8]>, high: Option<&[u8]>| {
            let mut out = Vec::new();
            put_bound(&mut out, low);
            put_bound(&mut out, high);
            Span::take(&mut &out[..]).map(|span| (span.low.len(), span.high.map(<[u8]>::len)))
        };
        assert_eq!(of(Some(b""), None), Ok((0, None)));
        assert_eq!(of(Some(&[1; 251]), Some(&[2; 251])), Ok((251, Some(251))));
        assert!(matches!(of(None, None), Err(WireError::Unknown { field: "lower bound", .. })));
        assert!(matches!(of(Some(b""), Some(&[1; 252])), Err(WireError::Unknown { value: 252, .. })));
    }
}
