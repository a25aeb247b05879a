//! The metadata of an item besides key and value, in memory.

use crate::item::{Item, Marks, UnixSeconds};

/// Bits of the last access time, in minutes since the partition began.
pub(crate) const MINUTES_BITS: u32 = 22;
/// Latest representable time: eight years. Later accesses appear as old as that.
pub(crate) const MINUTES_MAX: u32 = (1 << MINUTES_BITS) - 1;

/// All fields. Expiry 0 means never: an item that expires at or before the present is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub flags: u32,
    pub expires: UnixSeconds,
    pub cas: u64,
    pub minutes: u32,
    pub marks: Marks,
    /// Read since eviction last passed by.
    pub is_hot: bool,
}

/// An item at its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub fields: Fields,
}

impl<'a> Record<'a> {
    #[inline]
    pub(crate) fn item(&self, clock: &Clock) -> Item<'a> {
        let fields = &self.fields;
        Item {
            value: self.value,
            flags: fields.flags,
            cas: fields.cas,
            expires: (fields.expires != 0).then_some(fields.expires),
            last_access: clock.seconds(fields.minutes),
            marks: fields.marks,
        }
    }
}

impl Fields {
    #[inline]
    pub(crate) fn has_expired(&self, now: UnixSeconds) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

#[inline]
pub(crate) fn marks_to_bits(marks: Marks) -> u32 {
    u32::from(marks.is_fetched) | u32::from(marks.is_stale) << 1 | u32::from(marks.is_won) << 2
}

#[inline]
pub(crate) fn marks_of_bits(bits: u32) -> Marks {
    Marks { is_fetched: bits & 1 != 0, is_stale: bits & 2 != 0, is_won: bits & 4 != 0 }
}

/// The current time, in seconds and in the form that items keep.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    pub now: UnixSeconds,
    began: Option<UnixSeconds>,
}

impl Clock {
    /// Sets the time. The first call defines when the partition began.
    pub(crate) fn set(&mut self, now: UnixSeconds) {
        self.now = now;
        self.began.get_or_insert(now);
    }

    /// Returns the present in the form that items keep.
    #[inline]
    pub(crate) fn minutes(&self) -> u32 {
        (self.now.saturating_sub(self.began.unwrap_or(0)) / 60).min(MINUTES_MAX)
    }

    /// Converts back the time that an item keeps.
    #[inline]
    pub(crate) fn seconds(&self, minutes: u32) -> UnixSeconds {
        self.began.unwrap_or(0).saturating_add(minutes.saturating_mul(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_the_finest_time_of_access() {
        let mut clock = Clock::default();
        clock.set(1_000_000_007);
        clock.set(1_000_000_007 + 119);
        assert_eq!(clock.minutes(), 1);
        assert_eq!(clock.seconds(clock.minutes()), 1_000_000_067);
        clock.set(5);
        assert_eq!(clock.minutes(), 0, "a clock that goes back to before the beginning");
        clock.set(u32::MAX);
        assert_eq!(clock.minutes(), MINUTES_MAX);
    }

    #[test]
    fn marks_keep() {
        for bits in 0..8 {
            assert_eq!(marks_to_bits(marks_of_bits(bits)), bits);
        }
    }
}
