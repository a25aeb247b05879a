//! The virtual time of one thread.

use std::cell::Cell;
use std::rc::Rc;

use crate::engine::time::{Picos, from_nanos, to_nanos};

/// The time of a thread's CPU: that of the event it handles, and what it was charged since. Clones are handles on the same clock, for
/// handlers and drivers.
#[derive(Debug, Clone)]
pub struct ThreadClock {
    /// Of the whole datacenter.
    global: Rc<Cell<Picos>>,
    /// Until when this CPU is busy.
    busy_until: Rc<Cell<Picos>>,
}

impl ThreadClock {
    pub(crate) fn new(global: Rc<Cell<Picos>>) -> Self {
        ThreadClock { global, busy_until: Rc::default() }
    }

    /// The thread's time, in nanoseconds. Never goes back.
    #[inline]
    pub fn now(&self) -> u64 {
        to_nanos(self.picos())
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
