//! The monotonic clock of real transports: the processor's time-stamp counter where it is fit for use.

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

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
