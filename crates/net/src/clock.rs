//! The monotonic clock of real transports: the processor's time-stamp counter where it is fit for use. And what it does not count: time in which the machine
//! was suspended.

use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the clock was made. Reading it costs about 10 ns.
#[derive(Debug, Clone)]
pub struct Clock {
    clock: quanta::Clock,
    origin: u64,
}

impl Clock {
    /// A clock that starts at zero.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Clock { clock, origin }
    }

    /// Nanoseconds since [`Clock::new`].
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.delta_as_nanos(self.origin, self.clock.raw())
    }
}

/// Tells for how long the machine was suspended, which the clock of a transport ([`Transport::now`](crate::Transport::now)) does not count. A promise that holds for a
/// time, such as a lease, needs both: for others that time goes on.
#[derive(Clone)]
pub struct Suspensions(Option<Rc<dyn Fn() -> u64>>);

impl Suspensions {
    /// The machine is never suspended, or its clock goes on meanwhile.
    pub fn none() -> Suspensions {
        Suspensions(None)
    }

    /// Those that this function tells of, in nanoseconds.
    pub fn told_by(tell: impl Fn() -> u64 + 'static) -> Suspensions {
        Suspensions(Some(Rc::new(tell)))
    }

    /// Those of this machine, as its operating system counts them.
    pub fn of_system() -> Suspensions {
        Suspensions::told_by(system_nanos)
    }

    /// Nanoseconds in which the machine was suspended so far, counted from any beginning. Read afresh each time, from two clocks, so it may go back by some
    /// microseconds.
    pub fn nanos(&self) -> u64 {
        self.0.as_ref().map_or(0, |tell| tell())
    }
}

impl std::fmt::Debug for Suspensions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Suspensions({:?})", self.0.as_ref().map(|tell| tell()))
    }
}

/// Nanoseconds since the machine was started, those in which it was suspended included. Costs as much as the clock of std.
pub fn boot_nanos() -> u64 {
    nanos_of(ClockId::Boottime)
}

fn nanos_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The least of some readings: this thread may have been descheduled between the two of one.
fn system_nanos() -> u64 {
    const READINGS: usize = 3;
    let reading = || {
        let monotonic = nanos_of(ClockId::Monotonic);
        boot_nanos().saturating_sub(monotonic)
    };
    (0..READINGS).map(|_| reading()).min().unwrap_or_default()
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
