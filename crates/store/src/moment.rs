//! The partition's time, and its relation to the wall clock.

use crate::item::UnixSeconds;

/// A point in partition time, and how far the wall clock is ahead of it.
///
/// Expiry uses a monotonic time: a server counts seconds from its start, beginning at the wall clock's value. If the
/// wall clock is set, only the difference changes, and no item expires sooner or later because of it. Times of day that
/// leave or enter the server are converted with the difference at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The partition time ([`crate::Store::set_now`]).
    pub now: UnixSeconds,
    /// Seconds that the wall clock is ahead of it; negative if it is behind.
    pub wall_ahead: i64,
}

impl From<UnixSeconds> for Moment {
    /// Creates a moment at which the wall clock shows the partition time.
    fn from(now: UnixSeconds) -> Moment {
        Moment { now, wall_ahead: 0 }
    }
}

impl Moment {
    /// Converts a partition time to the wall clock's: at least 1, since zero means never.
    pub fn to_wall(self, at: UnixSeconds) -> UnixSeconds {
        shift(at, self.wall_ahead)
    }

    /// Converts a wall-clock time to the partition's: at least 1.
    pub fn from_wall(self, at: UnixSeconds) -> UnixSeconds {
        shift(at, self.wall_ahead.saturating_neg())
    }
}

fn shift(at: UnixSeconds, by: i64) -> UnixSeconds {
    if by == 0 {
        return at;
    }
    let shifted = i64::from(at).saturating_add(by).clamp(1, i64::from(UnixSeconds::MAX));
    // It was just clamped to this range.
    shifted as UnixSeconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shifted_there_and_back_and_stay_within_limits() {
        for wall_ahead in [0, 1, -1, 3600, -3600, 1_000_000_000, -1_000_000_000] {
            let moment = Moment { now: 5, wall_ahead };
            let at = 1_800_000_000;
            assert_eq!(i64::from(moment.to_wall(at)), i64::from(at) + wall_ahead);
            assert_eq!(moment.from_wall(moment.to_wall(at)), at);
        }
        let far = |wall_ahead| Moment { now: 0, wall_ahead };
        assert_eq!([i64::MIN, i64::MAX].map(|ahead| far(ahead).to_wall(7)), [1, UnixSeconds::MAX]);
        assert_eq!([i64::MIN, i64::MAX].map(|ahead| far(ahead).from_wall(7)), [UnixSeconds::MAX, 1]);
        assert_eq!(far(-10).to_wall(10), 1, "zero is never");
    }
}
