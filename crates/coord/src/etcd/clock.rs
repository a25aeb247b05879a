//! The clock of this process.

use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since it was asked first.
pub(super) fn now() -> u64 {
    START.elapsed().as_nanos() as u64
}
