//! Requests to an index service and answers of it, as bytes from a peer.
//!
//! The first byte says which parser gets the rest.

use dunlin_index::wire::{
    COUNT_PAGE, Counted, DELETE_PAGE, LONG_PAGE, Operation, Page, SHORT_PAGE, ScanRequest, encode_plain, parse_plain,
};
use dunlin_index::{KEY_BYTES_MAX, ServerStats, VALUE_BYTES_MAX};
use dunlin_rpc::MsgBuf;

/// Checks one input: what is accepted keeps the limits, and is written again byte for byte.
pub fn check(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 6 {
        0 => {
            if parse_plain(bytes).is_ok() {
                assert_eq!(encode_plain(), bytes);
            }
        }
        1 => {
            if let Ok(operation) = Operation::parse(bytes) {
                assert!(operation.key().len() <= KEY_BYTES_MAX);
                assert!(!matches!(operation, Operation::Put(_, value) if value.len() > VALUE_BYTES_MAX));
                assert_eq!(operation.encode(), bytes);
            }
        }
        2 => {
            for most in [SHORT_PAGE, LONG_PAGE, COUNT_PAGE, DELETE_PAGE] {
                if let Ok(scan) = ScanRequest::parse(bytes, most) {
                    assert!(scan.limits.are_within(most) && !scan.range.is_reversed());
                    assert!(scan.after.is_none_or(|after| scan.range.contains(after.key)));
                    assert_eq!(scan.encode(), bytes);
                }
            }
        }
        3 => {
            let Some(page) = MsgBuf::copy_from(bytes).ok().and_then(Page::parse) else { return };
            assert_eq!(page.items().count(), page.len());
            assert_eq!(page.items().last().map(|(key, _)| key), page.last_key());
            assert!(page.items().all(|(key, value)| key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX));
            assert!(page.incarnation() != 0 && !(page.is_empty() && page.has_more()));
        }
        4 => {
            if let Some(counted) = Counted::parse(bytes) {
                assert!(counted.items > 0 || counted.has_more || counted.last.is_empty());
                assert_eq!(counted.encode(), bytes);
            }
        }
        _ => {
            if let Ok(stats) = ServerStats::decode(bytes) {
                // Whatever numbers a server tells, sums and percentiles do not fail.
                let _ = (stats.service(), stats.index.nodes(), stats.index.held_bytes(), stats.index.block_bytes());
                assert!(stats.index.fill() >= 0.0 && stats.index.bytes_per_item() >= 0.0);
                for handler in stats.handlers() {
                    assert!(handler.latency.percentile(99.0) <= std::time::Duration::from_secs(10));
                    let _ = handler.since(&handler);
                }
            }
        }
    }
}
