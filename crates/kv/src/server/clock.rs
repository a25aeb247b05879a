//! The time of day, for expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_store::UnixSeconds;

/// How often the partitions are told the time.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Seconds since 1970.
pub(super) fn unix_seconds() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Until 2106.
    since.as_secs().try_into().unwrap_or(UnixSeconds::MAX)
}
