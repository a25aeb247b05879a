//! Versions of writes: a clock that never goes back.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::wire::Version;

/// Bits of a version below its microseconds: the number of the writer.
const WRITER_BITS: u32 = 12;

/// Writes of one key by one client at the same time that are told apart when they must get a higher version.
const RAISED_AT_ONCE: u64 = 4096;

/// Returns the seconds since 1970 of a version.
pub(crate) fn seconds_of(version: Version) -> u64 {
    (version >> WRITER_BITS) / 1_000_000
}

/// Draws the versions of one client.
#[derive(Debug)]
pub(super) struct VersionClock {
    writer: u64,
    /// The microseconds of the last version.
    last: Cell<u64>,
    /// Versions that were drawn above others.
    raised: Cell<u64>,
    /// The wall clock, in microseconds since 1970.
    wall: fn() -> u64,
}

/// The wall clock of this machine, in microseconds since 1970.
pub(super) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros().try_into().unwrap_or(u64::MAX))
}

impl VersionClock {
    /// Of the writer with this number, of which the lower bits count: two writers with the same number may give two
    /// writes in one microsecond the same version.
    pub fn new(writer: u64, wall: fn() -> u64) -> VersionClock {
        VersionClock { writer: writer & ((1 << WRITER_BITS) - 1), last: Cell::new(0), raised: Cell::new(0), wall }
    }

    /// Returns a version above all that this has returned before.
    pub fn next(&self) -> Version {
        let micros = (self.wall)().max(self.last.get() + 1).min(u64::MAX >> WRITER_BITS);
        self.last.set(micros);
        micros << WRITER_BITS | self.writer
    }

    /// Returns a version above another one, for one write. Later versions are as they would have been: a writer whose
    /// clock is ahead must not set the clocks of all others ahead.
    pub fn above(&self, version: Version) -> Version {
        let next = self.next();
        if next > version {
            return next;
        }
        // Writes at the same time that have met the same version get different ones.
        self.raised.set(self.raised.get() + 1);
        let micros = (version >> WRITER_BITS).saturating_add(1 + self.raised.get() % RAISED_AT_ONCE);
        micros.min(u64::MAX >> WRITER_BITS) << WRITER_BITS | self.writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_whatever_the_clock_does() {
        let clock = VersionClock::new(u64::MAX, || 1_700_000_000_000_000);
        let [one, two] = [clock.next(), clock.next()];
        assert!(two > one);
        assert_eq!(seconds_of(one), 1_700_000_000);
        let ahead = VersionClock::new(1, || 1_800_000_000_000_000).next();
        let [raised, other] = [clock.above(ahead), clock.above(ahead)];
        assert!(raised > ahead && other > ahead && raised != other);
        assert!(clock.next() < ahead, "a clock that is ahead counts for one write");
        assert!(clock.above(two) < ahead);
        assert_eq!(clock.above(u64::MAX), u64::MAX, "it stops at its end");
    }
}
