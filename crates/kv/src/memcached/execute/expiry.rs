//! Expiry times in memcached's format.

use dunlin_store::UnixSeconds;

/// Longest time that is relative, in seconds: 30 days. A larger number is a Unix time.
pub const RELATIVE_SECONDS_MAX: i32 = 60 * 60 * 24 * 30;

/// Converts a client's expiry: never for zero, at once if negative, relative to now up to 30 days, otherwise a Unix
/// time.
pub fn expiry(exptime: i32, now: UnixSeconds) -> Option<UnixSeconds> {
    match exptime {
        0 => None,
        ..0 => Some(now),
        1..=RELATIVE_SECONDS_MAX => Some(now.saturating_add(exptime.unsigned_abs())),
        _ => Some(exptime.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_days_are_from_now_and_more_is_a_date() {
        let now = 1_700_000_000;
        assert_eq!(expiry(0, now), None);
        assert_eq!(expiry(-1, now), Some(now));
        assert_eq!(expiry(i32::MIN, now), Some(now));
        assert_eq!(expiry(1, now), Some(now + 1));
        assert_eq!(expiry(2_592_000, now), Some(now + 2_592_000));
        assert_eq!(expiry(2_592_001, now), Some(2_592_001));
        assert_eq!(expiry(60, UnixSeconds::MAX), Some(UnixSeconds::MAX));
    }
}
