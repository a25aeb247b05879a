//! Range reads: the pages of one, one after the other, and what they show with the transaction's own writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use dunlin_index::{Gap, Range};

use super::rounds::Round;
use super::{Entry, Outgoing, State};
use crate::error::TxnError;
use crate::ids::{PartitionId, TableId, Version};
use crate::limits::{KEY_BYTES_MAX, PAGES_MAX, SCANNED_BYTES_MAX, SCANNED_MAX};
use crate::mutation::{Mutation, is_planted};
use crate::wire::execute::{Check, RangeCheck};
use crate::wire::scan::{Page, PageRequest, Span};
use crate::wire::{Kind, WireError};

/// A range of keys: from the first on, below the second.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyRange {
    low: Box<[u8]>,
    high: Option<Box<[u8]>>,
}

impl KeyRange {
    fn new(range: Range<'_>) -> Result<KeyRange, TxnError> {
        if range.is_reversed() {
            return Err(TxnError::Reversed);
        }
        for Gap::Before(key) | Gap::After(key) | Gap::AfterPrefix(key) in [range.low, range.high] {
            if key.len() > KEY_BYTES_MAX {
                return Err(TxnError::KeyLength { len: key.len() });
            }
        }
        // Nothing is behind all keys.
        let low = first_behind(range.low);
        Ok(low.map_or_else(KeyRange::empty, |low| KeyRange { low, high: first_behind(range.high) }))
    }

    fn empty() -> KeyRange {
        KeyRange { low: [].into(), high: Some([].into()) }
    }

    fn span(&self) -> Span<'_> {
        Span { low: &self.low, high: self.high.as_deref() }
    }
}

impl From<Span<'_>> for KeyRange {
    fn from(span: Span<'_>) -> KeyRange {
        KeyRange { low: span.low.into(), high: span.high.map(Box::from) }
    }
}

/// The smallest key behind a gap.
fn first_behind(gap: Gap<'_>) -> Option<Box<[u8]>> {
    gap.first_behind().map(|(key, last)| key.iter().copied().chain(last).collect())
}

/// The entries of a transaction, in order of table and key, that are in a range.
fn within<'e>(entries: &'e [Entry], table: TableId, span: Span<'_>) -> &'e [Entry] {
    let first = entries.partition_point(|entry| (entry.table, &*entry.key) < (table, span.low));
    let rest = &entries[first..];
    let len = rest.partition_point(|entry| entry.table == table && span.is_before_end(&entry.key));
    &rest[..len]
}

/// The range from the first item of a page to the last.
fn items_only(page: &Page<'_>) -> KeyRange {
    let ends = page.items.first().zip(page.items.last());
    ends.map_or_else(KeyRange::empty, |((first, _), (last, _))| KeyRange {
        low: (*first).into(),
        high: first_behind(Gap::After(last)),
    })
}

/// A part of a range read: what one page covered.
#[derive(Debug)]
pub(super) struct PageRead {
    table: TableId,
    partition: PartitionId,
    range: KeyRange,
    version: Version,
    /// Entries that the participant visited.
    visited: usize,
}

/// A range read that is under way.
#[derive(Debug)]
struct Scanning {
    table: TableId,
    /// What is still to be read.
    rest: KeyRange,
    limit: usize,
    found: Vec<(Bytes, Bytes)>,
}

/// The range reads of a transaction.
#[derive(Debug, Default)]
pub(super) struct Scans {
    pages: Vec<PageRead>,
    under_way: Option<Scanning>,
    /// Entries that participants visited.
    visited: usize,
    bytes: usize,
}

impl State {
    /// Begins to read up to `limit` items of a range.
    pub fn begin_scan(&mut self, table: TableId, range: Range<'_>, limit: usize) -> Result<(), TxnError> {
        let Some(named) = self.configuration.tables.get(usize::from(table.0)) else {
            return Err(TxnError::NoTable { table: format!("number {}", table.0) });
        };
        if named.keys.splits().is_none() {
            return Err(TxnError::NotOrdered { table: named.name.clone() });
        }
        self.scans.under_way = Some(Scanning { table, rest: KeyRange::new(range)?, limit, found: Vec::new() });
        Ok(())
    }

    /// The request for the next page; none if the range read is done.
    pub fn scan_round(&mut self) -> Result<Option<Outgoing>, TxnError> {
        let Some(Scanning { table, rest, limit, found }) = &self.scans.under_way else { return Ok(None) };
        if found.len() >= *limit || rest.span().is_empty() {
            return Ok(None);
        }
        let limits = [
            (self.scans.pages.len(), PAGES_MAX, "pages of range reads"),
            (self.scans.visited, SCANNED_MAX, "items in range reads"),
            (self.scans.bytes, SCANNED_BYTES_MAX, "bytes in range reads"),
        ];
        if let Some((_, max, what)) = limits.into_iter().find(|(now, max, _)| now >= max) {
            return Err(TxnError::TooLarge { what, max });
        }
        let Some((partition, span)) = self.configuration.first_part(*table, rest.span()) else { return Ok(None) };
        self.check_partition(partition)?;
        let items_max = (limit - found.len()).try_into().unwrap_or(u32::MAX);
        let request = PageRequest { partition, table: *table, span, items_max };
        let mut round = Round::new(self, Kind::Scan);
        round.add(self.configuration.copies(partition)[0], self.entries.len() + self.scans.pages.len(), |out| {
            request.encode(out);
        });
        let message = round.finish().pop();
        self.messages += 1;
        Ok(message)
    }

    /// Applies the page that answered a request, behind its status.
    pub fn scanned(&mut self, body: &[u8]) -> Result<(), WireError> {
        let Some(Scanning { table, rest, found, .. }) = &mut self.scans.under_way else { return Ok(()) };
        let table = *table;
        // The items share the memory of their page.
        let body = Bytes::copy_from_slice(body);
        let page = Page::parse(&body)?;
        let Some((partition, part)) = self.configuration.first_part(table, rest.span()) else { return Ok(()) };
        let behind = page.last.map(|last| [last, &[0]].concat());
        let covered = Span { high: behind.as_deref().or(part.high), ..part };
        let is_in_part = page.last.is_none_or(|last| part.contains(last));
        if !is_in_part || page.items.iter().any(|(key, _)| !covered.contains(key)) {
            return Err(WireError::Unknown { field: "key of a page", value: page.items.len() as u64 });
        }
        let mut shown: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        shown.extend(page.items.iter().map(|(key, value)| (body.slice_ref(key), body.slice_ref(value))));
        for entry in within(&self.entries, table, covered) {
            let Some(planned) = &entry.write else { continue };
            match planned.value() {
                Some(value) => shown.insert(Bytes::copy_from_slice(&entry.key), value.clone()),
                None => shown.remove(&*entry.key),
            };
        }
        found.extend(shown);
        let range = if is_planted(Mutation::ScanGapNotValidated) { items_only(&page) } else { covered.into() };
        let next = covered.high.filter(|high| rest.high.as_deref() != Some(*high)).map(Box::from);
        *rest = next.map_or_else(KeyRange::empty, |low| KeyRange { low, high: rest.high.clone() });
        let visited = page.visited as usize;
        self.scans.visited += visited;
        self.scans.bytes += body.len();
        self.scans.pages.push(PageRead { table, partition, range, version: page.version, visited });
        Ok(())
    }

    /// What the range read has found.
    pub fn end_scan(&mut self) -> Vec<(Bytes, Bytes)> {
        let Some(Scanning { mut found, limit, .. }) = self.scans.under_way.take() else { return Vec::new() };
        found.truncate(limit);
        found
    }

    /// Adds the pages to the messages that validate.
    pub(super) fn check_pages(&self, round: &mut Round<'_>) {
        if is_planted(Mutation::ScanNotValidated) {
            return;
        }
        let skipped =
            if is_planted(Mutation::ScanPagesNotValidated) { self.scans.pages.len().saturating_sub(1) } else { 0 };
        for (at, page) in self.scans.pages.iter().enumerate().skip(skipped) {
            let PageRead { table, partition, range, version, visited } = page;
            let check = RangeCheck { partition: *partition, table: *table, span: range.span(), version: *version };
            let place = self.configuration.copies(*partition)[0];
            // Keys that were absent have entries now if the transaction has locked them.
            let visits = visited + within(&self.entries, *table, check.span).len();
            round.add_visiting(visits, place, self.entries.len() + at, |out| Check::Range(check).encode(out));
        }
    }

    /// The beginning of a page that conflicts, given its number.
    pub(super) fn page_begin(&self, page: usize) -> Box<[u8]> {
        let read = self.scans.pages.get(page).map(|page| &page.range);
        let range = read.or(self.scans.under_way.as_ref().map(|scanning| &scanning.rest));
        range.map_or_else(Box::default, |range| range.low.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_and_ends_at_keys() {
        let of = |range| KeyRange::new(range).map(|KeyRange { low, high }| (low.into_vec(), high.map(Vec::from)));
        assert_eq!(of(Range::ALL), Ok((vec![], None)));
        assert_eq!(of(Range::prefix(b"a")), Ok((b"a".to_vec(), Some(b"b".to_vec()))));
        assert_eq!(of(Range::prefix(b"a\xff\xff")), Ok((b"a\xff\xff".to_vec(), Some(b"b".to_vec()))));
        assert_eq!(of(Range::prefix(b"\xff")), Ok((b"\xff".to_vec(), None)));
        let between = Range { low: Gap::After(b"a"), high: Gap::After(b"c") };
        assert_eq!(of(between), Ok((b"a\0".to_vec(), Some(b"c\0".to_vec()))));
        assert_eq!(of(Range::between(b"b", b"a")), Err(TxnError::Reversed));
        assert_eq!(of(Range::from(&[1; 251])), Err(TxnError::KeyLength { len: 251 }));
        let nothing = KeyRange::new(Range { low: Gap::AfterPrefix(b"\xff"), high: Range::ALL.high }).unwrap();
        assert!(nothing.span().is_empty());
    }
}
