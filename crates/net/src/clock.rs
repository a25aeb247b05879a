//! The monotonic clock of real transports: the processor's time-stamp counter where it is usable. And [`BootClock`],
//! which also counts time in which the machine was suspended.

use std::rc::Rc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the clock was created. Reading it costs about 10 ns.
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

/// The clock for promises to others that hold for a time, such as leases: it keeps running while the machine is
/// suspended, because time passes for others. The clock of a transport ([`Transport::now`](crate::Transport::now)) may
/// stop meanwhile. The two also differ in rate: never mix their times.
///
/// For this machine it is `CLOCK_BOOTTIME`. It counts a suspension that the operating system knows of. If a hypervisor
/// stops a guest without telling it, some of the clocks that Linux keeps time by stand still as well (`kvm-clock` on
/// some hosts), and then no clock of the guest counts that time.
#[derive(Clone)]
pub struct BootClock(Rc<dyn Fn() -> u64>);

impl BootClock {
    /// A clock that calls `tell`, which returns nanoseconds from an arbitrary origin and must never go back.
    pub fn told_by(tell: impl Fn() -> u64 + 'static) -> BootClock {
        BootClock(Rc::new(tell))
    }

    /// The clock of this machine.
    pub fn of_system() -> BootClock {
        BootClock::told_by(boot_nanos)
    }

    /// Nanoseconds from an arbitrary origin, read anew each time. Never goes back.
    pub fn now(&self) -> u64 {
        (self.0)()
    }
}

impl std::fmt::Debug for BootClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BootClock({})", self.now())
    }
}

/// Returns a duration in nanoseconds, saturating: the longest time that 64 bits hold, 584 years, stands for ever.
pub const fn nanos(time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// Nanoseconds since the machine was started, including those in which it was suspended. Costs as much as a clock of
/// `std`.
pub fn boot_nanos() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::shm::{ShmConfig, ShmTransport};
    use crate::udp::{UdpConfig, UdpTransport};
    use crate::{AnyTransport, Transport};

    /// Promises use one clock only: the sum of two that stop at different times, or run at different rates, would be
    /// neither.
    #[test]
    fn promises_are_counted_by_the_clock_of_the_system_alone() {
        let clock = BootClock::of_system();
        for _ in 0..10_000 {
            let (before, now, after) = (boot_nanos(), clock.now(), boot_nanos());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }

    #[test]
    fn transports_make_promises_by_the_clock_of_the_system() {
        let shm = || ShmTransport::new(&ShmConfig::anonymous()).unwrap();
        let udp = || UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let clocks = [
            shm().boot_clock(),
            udp().boot_clock(),
            AnyTransport::joined(shm(), udp()).unwrap().boot_clock(),
            AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap().boot_clock(),
        ];
        for clock in clocks {
            let (before, now, after) = (boot_nanos(), clock.now(), boot_nanos());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }

    #[test]
    fn the_longest_times_stand_for_ever() {
        assert_eq!(nanos(Duration::from_nanos(u64::MAX - 1)), u64::MAX - 1);
        assert_eq!(nanos(Duration::from_secs(u64::MAX / 1_000_000_000 + 1)), u64::MAX);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }

    /// `as_nanos() as u64` makes a long time a short one. Experiments and tests, which choose their own times, may.
    #[test]
    fn no_crate_cuts_off_nanoseconds() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = Vec::new();
        for name in ["cli", "coord", "index", "net", "rpc", "seq", "serve", "sim", "smr", "txn"] {
            find_cuts(&crates.join(name).join("src"), &mut found);
        }
        assert!(found.is_empty(), "use nanos of this module: {found:#?}");
    }

    fn find_cuts(at: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let is_of_tests = path.to_string_lossy().contains("test") || path.ends_with("raw");
            if path.is_dir() && !is_of_tests {
                find_cuts(&path, found);
            } else if path.is_file() && !is_of_tests && !path.ends_with("net/src/clock.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let lines = text.lines().enumerate().filter(|(_, line)| line.contains("as_nanos() as u64"));
                found.extend(lines.map(|(i, line)| format!("{}:{}: {line}", path.display(), i + 1)));
            }
        }
    }
}
