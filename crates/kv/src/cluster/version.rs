//! Versions of writes: a clock that never goes back, and that a client sets ahead when it meets later versions.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::wire::Version;

/// Bits of a version below its microseconds: the number of the writer.
const WRITER_BITS: u32 = 12;

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
        VersionClock { writer: writer & ((1 << WRITER_BITS) - 1), last: Cell::new(0), wall }
    }

    /// Returns a version above all before, and above all that were [met](VersionClock::meet).
    pub fn next(&self) -> Version {
        let micros = (self.wall)().max(self.last.get() + 1).min(u64::MAX >> WRITER_BITS);
        self.last.set(micros);
        micros << WRITER_BITS | self.writer
    }

    /// Makes all later versions higher than this one.
    pub fn meet(&self, version: Version) {
        self.last.set(self.last.get().max(version >> WRITER_BITS));
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
        clock.meet(ahead);
        assert!(clock.next() > ahead);
        clock.meet(two);
        assert!(clock.next() > ahead, "older versions do not set it back");
        clock.meet(u64::MAX);
        assert_eq!(clock.next(), u64::MAX, "it stops at its end");
    }
}
