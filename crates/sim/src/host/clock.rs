//! The virtual time of one thread.

use std::cell::Cell;
use std::rc::Rc;

use crate::engine::time::{NEVER, Picos, from_nanos, to_nanos};

/// Parts in a million.
pub(crate) const PPM: i64 = 1_000_000;

/// The clock of a host, which may run faster or slower than time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostClock {
    /// By how many parts in a million it is fast.
    ppm: i64,
    /// When it got this rate, by time and by itself.
    since: (Picos, Picos),
    /// For how long it stood still before.
    stood_still: Picos,
}

impl HostClock {
    /// What it shows at a time.
    #[inline]
    pub fn shows(&self, time: Picos) -> Picos {
        let (begun, showed) = self.since;
        if self.ppm == 0 {
            return showed + (time - begun);
        }
        showed + (u128::from(time.saturating_sub(begun)) * (PPM + self.ppm) as u128 / PPM as u128) as Picos
    }

    /// The first time at which it shows this.
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

    /// The same clock, which runs otherwise from now on.
    pub fn with_rate(self, ppm: i64, now: Picos) -> HostClock {
        HostClock { ppm, since: (now, self.shows(now)), stood_still: self.stood_still(now) }
    }

    /// For how long it stood still up to a time.
    fn stood_still(&self, time: Picos) -> Picos {
        self.stood_still + if self.ppm == -PPM { time.saturating_sub(self.since.0) } else { 0 }
    }
}

/// The time of a thread's CPU: that of the event it handles, and what it was charged since. Clones are handles on the same clock, for
/// handlers and drivers.
#[derive(Debug, Clone)]
pub struct ThreadClock {
    /// Of the whole datacenter.
    global: Rc<Cell<Picos>>,
    /// Until when this CPU is busy.
    busy_until: Rc<Cell<Picos>>,
    /// Of its host.
    host: Rc<Cell<HostClock>>,
    /// The latest time that was shown: a clock whose rate changes while the CPU is busy would go back otherwise, since the rate changes at the time
    /// of the datacenter, which lies before that of the CPU.
    shown: Rc<Cell<u64>>,
    /// The same of [`ThreadClock::boot_now`].
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

    /// The thread's time by no clock but that of the datacenter, in nanoseconds: for those who judge from outside what programs did, and when.
    #[inline]
    pub fn virtual_now(&self) -> u64 {
        to_nanos(self.picos())
    }

    /// What its clock shows and the time for which it stood still, in nanoseconds: the clock that goes on while a machine is suspended. Never goes
    /// back.
    pub fn boot_now(&self) -> u64 {
        let (host, time) = (self.host.get(), self.picos());
        let now = to_nanos(host.shows(time) + host.stood_still(time)).max(self.boot_shown.get());
        self.boot_shown.set(now);
        now
    }

    /// When the clock of its host shows so many nanoseconds.
    #[inline]
    pub(crate) fn time_of(&self, nanos: u64) -> Picos {
        self.host.get().time_of(from_nanos(nanos))
    }

    /// Lets the CPU work for a time: what the thread does next happens so much later.
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

    /// Forgets what the thread of a crashed host was doing.
    pub(crate) fn reset(&self) {
        self.busy_until.set(0);
    }
}
