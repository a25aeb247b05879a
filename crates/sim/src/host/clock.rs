//! The virtual time of one thread.

use std::cell::Cell;
use std::rc::Rc;

use crate::engine::time::{NEVER, Picos, from_nanos, to_nanos};

/// Parts in a million.
pub(crate) const PPM: i64 = 1_000_000;

/// The clock of a host, which may run faster or slower than time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostClock {
    /// Its deviation in parts per million.
    ppm: i64,
    /// When it got this rate, in virtual time and in its own.
    since: (Picos, Picos),
    /// How long it had been stopped before that.
    stood_still: Picos,
}

impl HostClock {
    /// Its reading at a time.
    #[inline]
    pub fn shows(&self, time: Picos) -> Picos {
        let (begun, showed) = self.since;
        if self.ppm == 0 {
            return showed + (time - begun);
        }
        showed + (u128::from(time.saturating_sub(begun)) * (PPM + self.ppm) as u128 / PPM as u128) as Picos
    }

    /// The first time at which it reads this.
    #[inline]
    fn time_of(&self, shown: Picos) -> Picos {
        let (begun, showed) = self.since;
        let left = shown.saturating_sub(showed);
        if self.ppm == 0 {
            return begun.saturating_add(left);
        }
        let rate = (PPM + self.ppm) as u128;
        if rate == 0 {
            return if left == 0 { begun } else { NEVER };
        }
        let time = (u128::from(left) * PPM as u128).div_ceil(rate);
        Picos::try_from(time).map_or(NEVER, |time| begun.saturating_add(time))
    }

    /// The same clock, with another rate from now on.
    pub fn with_rate(self, ppm: i64, now: Picos) -> HostClock {
        HostClock { ppm, since: (now, self.shows(now)), stood_still: self.stood_still(now) }
    }

    /// How long it was stopped, up to a time.
    fn stood_still(&self, time: Picos) -> Picos {
        self.stood_still + if self.ppm == -PPM { time.saturating_sub(self.since.0) } else { 0 }
    }
}

/// The time of a thread's CPU: that of its current event, plus the CPU time charged since. Clones are handles on the
/// same clock, for handlers and drivers.
#[derive(Debug, Clone)]
pub struct ThreadClock {
    /// Time of the whole datacenter.
    global: Rc<Cell<Picos>>,
    /// When this CPU will be idle.
    busy_until: Rc<Cell<Picos>>,
    /// Clock of its host.
    host: Rc<Cell<HostClock>>,
    /// The latest time that was returned. Without it, a clock whose rate changes while the CPU is busy could go back:
    /// the rate changes at the datacenter's time, which is before that of the CPU.
    shown: Rc<Cell<u64>>,
    /// The same for [`ThreadClock::boot_now`].
    boot_shown: Rc<Cell<u64>>,
}

impl ThreadClock {
    pub(crate) fn new(global: Rc<Cell<Picos>>, host: Rc<Cell<HostClock>>) -> Self {
        ThreadClock { global, busy_until: Rc::default(), host, shown: Rc::default(), boot_shown: Rc::default() }
    }

    /// The thread's time by the clock of its host, in nanoseconds. Never goes back.
    #[inline]
    pub fn now(&self) -> u64 {
        let now = to_nanos(self.host.get().shows(self.picos())).max(self.shown.get());
        self.shown.set(now);
        now
    }

    /// The thread's time in the datacenter's virtual time, in nanoseconds: for outside observers of programs.
    #[inline]
    pub fn virtual_now(&self) -> u64 {
        to_nanos(self.picos())
    }

    /// The reading of its clock plus the time for which it was stopped, in nanoseconds: the clock that advances while a
    /// machine is suspended. Never goes back.
    pub fn boot_now(&self) -> u64 {
        let (host, time) = (self.host.get(), self.picos());
        let now = to_nanos(host.shows(time) + host.stood_still(time)).max(self.boot_shown.get());
        self.boot_shown.set(now);
        now
    }

    /// When the clock of its host reads this many nanoseconds.
    #[inline]
    pub(crate) fn time_of(&self, nanos: u64) -> Picos {
        self.host.get().time_of(from_nanos(nanos))
    }

    /// Charges CPU time: the thread's next action happens this much later.
    #[inline]
    pub fn charge(&self, nanos: u64) {
        self.charge_picos(from_nanos(nanos));
    }

    #[inline]
    pub(crate) fn picos(&self) -> Picos {
        self.global.get().max(self.busy_until.get())
    }

    #[inline]
    pub(crate) fn charge_picos(&self, picos: Picos) {
        self.busy_until.set(self.picos() + picos);
    }

    /// Lets the CPU spin until `time`.
    #[inline]
    pub(crate) fn spin_until(&self, time: Picos) {
        self.busy_until.set(self.picos().max(time));
    }

    /// Discards the CPU time of a thread whose host crashed.
    pub(crate) fn reset(&self) {
        self.busy_until.set(0);
    }
}
