//! Scans all items of a core while it serves: a few ranges of hashes for each request, without state in between.

use std::ops::RangeInclusive;

use dunlin_rpc::Request;
use dunlin_store::{Item, Moment, Store, Visit};

use super::wall::in_wall_time;
use crate::shard::Shard;
use crate::wire::{Scan, ScanAnswerWriter, Status};

/// Ranges that one request visits at most, if they are empty: some tens of microseconds.
pub(super) const RANGES_MAX: u32 = 256;

/// Answers a scan.
pub(super) fn scan<S: Store + Visit>(shard: &Shard<S>, request: Request<'_>) {
    let Some(Scan { from }) = Scan::parse(request.payload()) else {
        shard.count_stray(false);
        return request.respond(&[Status::Malformed as u8]);
    };
    if let Some(status) = shard.refusal(true) {
        return request.respond(&[status as u8]);
    }
    let store = shard.store.borrow();
    let mut answer = ScanAnswerWriter::new();
    let next = visit(&*store, from, shard.moment(), |key, item| {
        answer.push(key, item);
        answer.is_full()
    });
    request.respond(&answer.finish(next));
}

/// Visits ranges from the one that contains `from`, until one ends after `each` has returned that the answer is full.
/// Returns the hash at which the next one begins.
pub(super) fn visit(
    store: &impl Visit,
    from: u64,
    moment: Moment,
    mut each: impl FnMut(&[u8], &Item<'_>) -> bool,
) -> Option<u64> {
    walk(store.range_bits(), from, |range| {
        let mut is_full = false;
        store.visit(range, &mut |_, key, item| is_full = each(key, &in_wall_time(item, moment)));
        is_full
    })
}

/// Passes some of 2^`bits` ranges to `each`, from the one that contains `from`, until it returns true. Returns the hash
/// at which the next one begins.
pub(super) fn walk(bits: u32, from: u64, mut each: impl FnMut(RangeInclusive<u64>) -> bool) -> Option<u64> {
    let mut start = from;
    for _ in 0..RANGES_MAX {
        let range = range_of(start, bits);
        start = *range.end();
        let is_full = each(range);
        start = start.checked_add(1)?;
        if is_full {
            break;
        }
    }
    Some(start)
}

/// Returns the one of 2^`bits` ranges that contains a hash. Ranges are aligned to the store's, whatever the client asks
/// for: it learns the range of a key, and no more of its hash.
pub(super) fn range_of(hash: u64, bits: u32) -> RangeInclusive<u64> {
    // Without bits, one range has all hashes.
    let last = u64::MAX.checked_shr(bits).unwrap_or(0);
    hash & !last..=hash | last
}
