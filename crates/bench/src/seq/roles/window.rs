//! The measured part of a run.

use std::time::Duration;

use dunlin_net::Clock;

use crate::{BenchError, WARM_UP_SHARE};

/// Interval of figures for the progress bar.
const LIVE_INTERVAL_NANOS: u64 = 200_000_000;

/// Measures the rate of a count after the warm-up. The run continues until the count has grown: a server that waits for
/// a processor may answer nothing in a short run.
pub(crate) struct Window {
    clock: Clock,
    warm: u64,
    length: u64,
    /// Time and count at the start of the measured run.
    from: Option<(u64, u64)>,
    last: (u64, u64),
    next_live: u64,
}

impl Window {
    /// Begins the warm-up of a run.
    pub fn new(run: Duration) -> Self {
        Window {
            clock: Clock::new(),
            warm: run.mul_f64(WARM_UP_SHARE).as_nanos() as u64,
            length: run.as_nanos() as u64,
            from: None,
            last: (0, 0),
            next_live: LIVE_INTERVAL_NANOS,
        }
    }

    /// The time, in nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Whether the warm-up is over.
    #[inline]
    pub fn is_measuring(&self) -> bool {
        self.from.is_some()
    }

    /// Notes the count of this moment and returns whether the run is over. `live` gets the rate periodically.
    pub fn look(&mut self, count: u64, live: impl FnOnce(f64)) -> bool {
        self.look_at(self.clock.now(), count, live)
    }

    fn look_at(&mut self, now: u64, count: u64, live: impl FnOnce(f64)) -> bool {
        self.last = (now, count);
        if self.from.is_none() && now >= self.warm {
            self.from = Some(self.last);
        }
        if now >= self.next_live {
            self.next_live = now + LIVE_INTERVAL_NANOS;
            live(count as f64 * 1e9 / now as f64);
        }
        self.from.is_some_and(|(start, before)| now >= start + self.length && count > before)
    }

    /// The count per second of the measured run so far.
    ///
    /// # Errors
    /// [`dunlin_lab::LabError::NoSamples`] if nothing was counted in it.
    pub fn rate(&self) -> Result<f64, BenchError> {
        let (now, count) = self.last;
        let from = self.from.filter(|(_, before)| count > *before);
        let (start, before) = from.ok_or(BenchError::no_samples("a rate measurement"))?;
        Ok((count - before) as f64 * 1e9 / (now - start).max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_warm_up_does_not_count() {
        let mut window = Window::new(Duration::from_millis(100));
        assert!(!window.look_at(10 * MS, 500, |_| {}));
        assert!(!window.is_measuring() && window.rate().is_err());
        assert!(!window.look_at(20 * MS, 1000, |_| {}));
        assert!(window.is_measuring() && window.rate().is_err());
        assert!(!window.look_at(119 * MS, 5000, |_| {}));
        assert!(window.look_at(120 * MS, 6000, |_| {}));
        assert_eq!(window.rate().unwrap(), 50_000.0);
    }

    #[test]
    fn a_run_without_an_answer_continues_until_there_is_one() {
        let mut window = Window::new(Duration::from_millis(100));
        assert!(!window.look_at(20 * MS, 7, |_| {}));
        assert!(!window.look_at(500 * MS, 7, |_| {}));
        assert!(window.look_at(1020 * MS, 8, |_| {}));
        assert_eq!(window.rate().unwrap(), 1.0);
    }
}
