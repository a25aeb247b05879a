//! The clock of this machine.

/// Nanoseconds since the machine was started, including time in which it was suspended: a clock for leases must advance
/// meanwhile.
pub(super) fn now() -> u64 {
    dunlin_net::clock::boot_nanos()
}
