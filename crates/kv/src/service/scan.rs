//! Scans all items of a core while it serves: a few ranges of hashes for each request, without state in between.

use dunlin_rpc::Request;
use dunlin_store::{Item, Moment, Store, Visit};

use super::wall::in_wall_time;
use crate::shard::Shard;
use crate::wire::{Scan, ScanAnswerWriter, Status};

/// Ranges that one request visits at most, if they are empty: some tens of microseconds.
const RANGES_MAX: u32 = 256;

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
    // Without bits, one range has all hashes.
    let last = u64::MAX.checked_shr(store.range_bits()).unwrap_or(0);
    // Ranges are aligned to the store's, whatever the client asks for: it learns the range of a key, and no more of its
    // hash.
    let mut start = from & !last;
    for _ in 0..RANGES_MAX {
        let end = start | last;
        let mut is_full = false;
        store.visit(start..=end, &mut |_, key, item| is_full = each(key, &in_wall_time(item, moment)));
        start = end.checked_add(1)?;
        if is_full {
            break;
        }
    }
    Some(start)
}
