//! Range reads of ordered tables, and their validation.
//!
//! A page of a range is validated by the highest version that the partition had issued when it was read. No other
//! transaction held a lock in the range then, so a later change of a key gets its lock later, and a higher version. This
//! version stays: at the item, at the deletion as long as it is remembered, and then at the gap that the key was in. So
//! a range is unchanged if no version in it is higher than that of the page, and no other transaction holds a lock in
//! it. That covers keys that were inserted, also if they were deleted again.
//!
//! Versions of the index's nodes would not do better: a split, or an insertion beside the range or by the transaction
//! itself, changes them, too.

use super::items::Entry;
use super::{Partition, Seen};
use crate::ids::{TableId, TransactionId};
use crate::mutation::{Mutation, is_planted};
use crate::wire::answer::Cause;
use crate::wire::execute::RangeCheck;
use crate::wire::scan::{PageRequest, PageWriter, Span};

/// Limits of one page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageLimits {
    /// Entries that are visited.
    pub entries_max: usize,
    /// Bytes of the answer after which no item is added.
    pub bytes_max: usize,
}

impl Partition {
    pub fn is_ordered(&self, table: TableId) -> bool {
        self.table(table).is_ordered()
    }

    fn seen_at<'p>(&self, entry: &'p Entry) -> Seen<'p> {
        self.seen(entry.version(), Some(&entry.item))
    }

    /// Writes a page of a range: its items, and where it ends. Entries without a value are locks on absent keys, and
    /// deletions that backups may not have applied yet.
    pub fn read_page(
        &self,
        reader: TransactionId,
        request: &PageRequest<'_>,
        limits: PageLimits,
        out: &mut Vec<u8>,
    ) -> Result<(), Cause> {
        let PageRequest { table, span, items_max, .. } = *request;
        let mut page = PageWriter::new(out, self.last);
        let mut visited = 0;
        let end = self.table(table).visit(span.low, |entry| {
            if !span.is_before_end(&entry.key) {
                return Some(Ok(None));
            }
            let seen = self.seen_at(entry);
            if seen.is_locked_by_other(reader) && !is_planted(Mutation::ScanPassesLocks) {
                return Some(Err(Cause::Locked));
            }
            visited += 1;
            if let Some(value) = seen.value {
                page.add(&entry.key, value);
            }
            let is_full = page.items() >= items_max || page.bytes() >= limits.bytes_max;
            (is_full || visited >= limits.entries_max).then_some(Ok(Some(&*entry.key)))
        });
        page.finish(visited as u32, end.transpose()?.flatten());
        Ok(())
    }

    /// Whether a range is as the page that this transaction has read of it; if so, how many entries it has. A range with
    /// more of them than an unchanged one may have is changed, whatever version the request names.
    pub fn check_range(&self, reader: TransactionId, check: &RangeCheck<'_>) -> Result<usize, Cause> {
        let RangeCheck { table, span, version, .. } = *check;
        let is_newer = |gap| gap > version && !is_planted(Mutation::ScanDeletionNotValidated);
        let (items, mut last, mut visited) = (self.table(table), None, 0);
        let changed = items.visit(span.low, |entry| {
            if !span.is_before_end(&entry.key) {
                // A part of the gap before this entry may be in the range.
                let is_outside = last.is_some_and(|last| span.ends_behind(last));
                return Some(if !is_outside && is_newer(entry.gap) { Err(Cause::Changed) } else { Ok(()) });
            }
            if visited == self.limits.range_entries() {
                return Some(Err(Cause::Changed));
            }
            visited += 1;
            last = Some(&*entry.key);
            let seen = self.seen_at(entry);
            if seen.is_locked_by_other(reader) && !is_planted(Mutation::LockNotValidated) {
                return Some(Err(Cause::Locked));
            }
            let is_changed = if seen.value.is_some() { seen.version > version } else { is_newer(seen.version) };
            // The gap before the first key of the range is not in it.
            (is_changed || (is_newer(entry.gap) && *entry.key != *span.low)).then_some(Err(Cause::Changed))
        });
        let is_end_outside = last.is_some_and(|last| span.ends_behind(last));
        let at_end = || if !is_end_outside && is_newer(items.last_gap()) { Err(Cause::Changed) } else { Ok(()) };
        changed.unwrap_or_else(at_end).map(|()| visited)
    }
}

impl Span<'_> {
    /// Whether no key is between this one and the end.
    fn ends_behind(&self, key: &[u8]) -> bool {
        self.high.and_then(|high| high.strip_suffix(&[0])) == Some(key)
    }
}
