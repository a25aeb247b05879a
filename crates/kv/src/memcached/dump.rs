//! `stats cachedump`: a list of items for people and for memcdump.

use std::io::Write as _;

use dunlin_store::{UnixSeconds, Visit};

/// Bytes of lines that one core tells at most: memcached tells 2 MiB of each slab class.
const DUMP_BYTES_MAX: usize = 2 << 20;

/// Ranges of hashes, of about a bucket each, that one core goes through at most: a few milliseconds.
const RANGES_MAX: u64 = 1 << 16;

/// A line for each item: key, length of the value, expiry as a Unix time or 0 for none. Keys that would break the line are left out. At most
/// `items_max` items, unless that is zero, and no more than the constants of this file allow.
pub(super) fn lines(store: &impl Visit, items_max: u32, now: UnixSeconds) -> Vec<u8> {
    let (mut lines, mut items) = (Vec::new(), 0u32);
    let is_full = |lines: &Vec<u8>, items| lines.len() >= DUMP_BYTES_MAX || (items_max > 0 && items >= items_max);
    let bits = store.range_bits();
    let width = u64::MAX.checked_shr(bits).unwrap_or(0);
    let ranges = 1u64.checked_shl(bits).unwrap_or(u64::MAX).min(RANGES_MAX);
    for range in 0..ranges {
        let start = range.checked_shl(u64::BITS - bits).unwrap_or(0);
        store.visit(start..=start | width, &mut |_, key, item| {
            // The store's own clock may be late.
            let is_there = item.expires.is_none_or(|at| at > now);
            let is_line = !key.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0);
            if !is_there || !is_line || is_full(&lines, items) {
                return;
            }
            items += 1;
            lines.extend_from_slice(b"ITEM ");
            lines.extend_from_slice(key);
            // A Vec takes everything.
            let _ = write!(lines, " [{} b; {} s]\r\n", item.value.len(), item.expires.unwrap_or(0));
        });
        if is_full(&lines, items) {
            break;
        }
    }
    lines
}
