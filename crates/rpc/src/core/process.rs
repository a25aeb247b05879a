//! What each host makes all endpoints of this process hold together. Message buffers have one limit for the process, so
//! a host that has used up its share at one endpoint gets none at the others.
//!
//! An endpoint reports a host when what it holds for the host has changed by [`TOLD_STEP`], and at each tick. In
//! between, a request costs one comparison.
//!
//! Each host of a simulated datacenter stands for a process, and so does each of its servers: they are not summed here,
//! so simulations in one process do not affect each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::share::HostName;

/// How much an endpoint may leave unreported for a host until its next tick.
const TOLD_STEP: u64 = 64 << 10;

/// Bytes that the endpoints of this process hold for all hosts.
static HELD: AtomicU64 = AtomicU64::new(0);
static HOSTS: Mutex<BTreeMap<HostName, Host>> = Mutex::new(BTreeMap::new());

/// A host with a part at some endpoint.
#[derive(Debug, Default)]
struct Host {
    held: Arc<AtomicU64>,
    parts: u32,
}

fn hosts() -> MutexGuard<'static, BTreeMap<HostName, Host>> {
    // Each change is one step, so a panic does not leave it half done.
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One endpoint's part of what a host holds in this process.
#[derive(Debug)]
pub(crate) struct Part {
    name: HostName,
    of: Arc<AtomicU64>,
    told: u64,
}

impl Part {
    /// An empty part; `None` for a simulated host.
    pub fn of(name: &HostName) -> Option<Part> {
        if let HostName::Sim(_) = name {
            return None;
        }
        let mut hosts = hosts();
        let host = hosts.entry(name.clone()).or_default();
        host.parts += 1;
        Some(Part { name: name.clone(), of: host.held.clone(), told: 0 })
    }

    /// Reports that the part is `held` bytes now, if that differs enough.
    #[inline]
    pub fn tell_step(&mut self, held: u64) {
        if held.abs_diff(self.told) >= TOLD_STEP {
            self.tell(held);
        }
    }

    /// Reports that the part is `held` bytes now.
    pub fn tell(&mut self, held: u64) {
        let before = std::mem::replace(&mut self.told, held);
        if held != before {
            // A decrease is added as its complement: the sums wrap.
            for sum in [&*self.of, &HELD] {
                sum.fetch_add(held.wrapping_sub(before), Relaxed);
            }
        }
    }

    /// What the host holds in the process if its part here is `held` bytes, and what all other hosts hold there.
    pub fn host_and_others(&self, held: u64) -> (u64, u64) {
        let host = self.of.load(Relaxed);
        // The two sums are not read atomically.
        let others = HELD.load(Relaxed).saturating_sub(host);
        (host.saturating_sub(self.told) + held, others)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.tell(0);
        let mut hosts = hosts();
        if let Some(host) = hosts.get_mut(&self.name) {
            host.parts -= 1;
            if host.parts == 0 {
                hosts.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::ShmName;

    use super::*;

    #[test]
    fn parts_of_a_host_add_up() {
        let names = ["process-1", "process-2"].map(|name| HostName::Shm(ShmName::new(name).unwrap()));
        let mut parts = [&names[0], &names[0], &names[1]].map(|name| Part::of(name).unwrap());
        parts[0].tell_step(TOLD_STEP - 1);
        assert_eq!(parts[1].host_and_others(0).0, 0);
        parts[0].tell_step(TOLD_STEP);
        parts[1].tell(5);
        assert_eq!(parts[1].host_and_others(7).0, TOLD_STEP + 7);
        assert!(parts[2].host_and_others(0).1 >= TOLD_STEP + 5);
        parts[0].tell(0);
        assert_eq!(parts[1].host_and_others(5).0, 5);
        drop(parts);
        assert!(!hosts().keys().any(|name| names.contains(name)), "they are forgotten");
        assert!(Part::of(&HostName::Sim(1)).is_none());
    }
}
