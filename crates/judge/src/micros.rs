//! Times in explanations.

use std::fmt;

/// A time in nanoseconds, shown in microseconds.
pub(crate) struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} us", self.0 / 1000, self.0 % 1000)
    }
}
