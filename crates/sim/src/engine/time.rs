//! Units of virtual time. Internally, time is counted in picoseconds, so that the serialization of a single byte is
//! exact for every rate in use (80 ps at 100 Gbit/s); the interface uses nanoseconds, as in
//! [`dunlin_net::Transport::now`].

/// Picoseconds since the run began: 213 days fit.
pub(crate) type Picos = u64;

/// No event is ever scheduled at this time.
pub(crate) const NEVER: Picos = u64::MAX;

/// Picoseconds of a time in nanoseconds.
pub(crate) const fn from_nanos(nanos: u64) -> Picos {
    nanos.saturating_mul(1000)
}

/// The last full nanosecond of a time.
pub(crate) const fn to_nanos(time: Picos) -> u64 {
    time / 1000
}
