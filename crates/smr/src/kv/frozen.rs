//! A snapshot of the items as of one instant, taken while they change: an item that is about to change is copied first
//! if the snapshot does not have it yet.
//!
//! Items are visited by the hash of their key, in ranges that hold few of them each ([`dunlin_store::Visit`]).

use std::any::Any;
use std::ops::RangeInclusive;

use dunlin_store::{Item, KeyHash, Partition, Sweep, Visit, Watch};

use crate::machine::Piece;

/// Bytes of items in a range, approximately at most: a change in a range that was not taken yet copies this much.
const RANGE_BYTES: u64 = 16 << 10;
/// Limits of the number of bits that number the ranges: the bitmap of ranges takes at most 8 MiB.
const RANGE_BITS: RangeInclusive<u32> = 6..=26;
/// Ranges that are visited in one piece, at most.
const RANGES_AT_ONCE: usize = 512;

/// The progress of a snapshot. The partition reports changes to it.
#[derive(Debug)]
pub(super) struct Frozen {
    range_bits: u32,
    /// All ranges before this one were taken.
    next: usize,
    /// One bit for each range: set if it was copied before its turn.
    early: Vec<u64>,
    /// The items copied before their turn.
    copies: Vec<u8>,
}

/// Writes an item in the format of snapshots.
pub(super) fn write_item(key: &[u8], item: &Item<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(item.value.len() as u32).to_le_bytes());
    out.extend_from_slice(&item.cas.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(item.value);
}

impl Frozen {
    /// Begins a snapshot of the current items, which count this many bytes.
    pub fn new(items: &dyn Visit, bytes: u64) -> Frozen {
        let bits_for_bytes = (bytes / RANGE_BYTES).max(1).ilog2() + 1;
        let range_bits = items.range_bits().max(bits_for_bytes).clamp(*RANGE_BITS.start(), *RANGE_BITS.end());
        Frozen { range_bits, next: 0, early: vec![0; (1 << range_bits) / 64], copies: Vec::new() }
    }

    /// Takes the snapshot back that a partition reports changes to, if there is one.
    pub fn take(partition: &mut Partition) -> Option<Box<Frozen>> {
        (partition.unwatch()? as Box<dyn Any>).downcast().ok()
    }

    fn ranges(&self) -> usize {
        1 << self.range_bits
    }

    fn hashes(&self, range: usize) -> RangeInclusive<u64> {
        let first = (range as u64) << (64 - self.range_bits);
        first..=first | u64::MAX >> self.range_bits
    }

    fn is_early(&self, range: usize) -> bool {
        self.early[range / 64] & 1 << (range % 64) != 0
    }

    /// Appends the next items, up to one range more than `bytes`, and those that were copied before their turn since
    /// the last piece.
    pub fn next_piece(&mut self, items: &dyn Visit, bytes: usize, out: &mut Vec<u8>) -> Piece {
        let end = out.len().saturating_add(bytes);
        out.append(&mut self.copies);
        let last = self.ranges().min(self.next + RANGES_AT_ONCE);
        while self.next < last && out.len() < end {
            if !self.is_early(self.next) {
                items.visit(self.hashes(self.next), &mut |_, key, item| write_item(key, item, out));
            }
            self.next += 1;
        }
        if self.next == self.ranges() { Piece::Last } else { Piece::Another }
    }

    fn copy(&mut self, items: &dyn Visit, range: usize) {
        if range >= self.next && !self.is_early(range) {
            let (hashes, copies) = (self.hashes(range), &mut self.copies);
            items.visit(hashes, &mut |_, key, item| write_item(key, item, copies));
            self.early[range / 64] |= 1 << (range % 64);
        }
    }
}

impl Watch for Frozen {
    fn before_change(&mut self, items: &dyn Visit, hash: KeyHash) {
        self.copy(items, (hash.0 >> (64 - self.range_bits)) as usize);
    }

    fn before_flush(&mut self, items: &dyn Visit) {
        (self.next..self.ranges()).for_each(|range| self.copy(items, range));
    }
}
