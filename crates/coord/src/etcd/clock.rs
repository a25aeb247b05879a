//! The clock of this machine.

/// Nanoseconds since it was started, also those in which it was suspended: what a lease is counted by must go on meanwhile.
pub(super) fn now() -> u64 {
    dunlin_net::clock::boot_nanos()
}
