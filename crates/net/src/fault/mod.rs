//! A transport with injected faults: packets dropped, duplicated, reordered, delayed and corrupted, from a seed.
//!
//! [`FaultInjector`] wraps any [`Transport`] and applies faults to the packets that go out; for faults in both
//! directions, wrap both ends. All its decisions follow from the seed, the [`Faults`] and the packets it is given, so
//! over a [`loopback`](crate::loopback) network a run repeats exactly.
//!
//! Packets that are delayed or reordered wait inside, at most [`HELD_PACKETS_MAX`] of them. Once a packet is due by the
//! clock of the wrapped transport, the next `tx_burst`, `tx_to`, `tx_flush`, `rx_burst`, `arm` or `wait` releases it;
//! [`FaultInjector::next_release`] tells a driver when that is. If no fault is switched on and nothing is held, each
//! call is passed on as it is, at the cost of a few comparisons.
//!
//! Its [`Transport::counters`] are those of the wrapped transport: a packet that was dropped here never reached it.
//!
//! ```
//! use std::time::Duration;
//! use dunlin_net::fault::{FaultInjector, Faults};
//! use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
//! use dunlin_net::{Addr, Transport, TxPacket};
//!
//! let net = LoopbackNetwork::new(LoopbackConfig::default());
//! let faults = Faults { drop: 0.5, ..Faults::default() };
//! let mut from = FaultInjector::new(net.endpoint(1)?, 7, faults)?;
//! let mut to = net.endpoint(2)?;
//! let route = from.resolve(&Addr::Node(2))?;
//! from.tx_burst(&[TxPacket { route, header: b"perhaps", payload: &[] }; 40]);
//! from.tx_flush();
//! net.advance(Duration::from_millis(1));
//! let arrived = to.rx_burst() as u64;
//! assert_eq!(arrived + from.fault_counters().dropped, 40);
//! assert!(0 < arrived && arrived < 40);
//! # Ok::<(), dunlin_net::NetError>(())
//! ```
#![forbid(unsafe_code)]

mod faults;
mod held;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use faults::{FaultCounters, Faults};
use held::{Destination, HeldPackets, Release};

use crate::addr::Addr;
use crate::clock::nanos;
use crate::error::NetError;
use crate::random::Random;
use crate::transport::{Arm, Route, Transport, TxPacket};

/// Most packets held back at a time; at this limit, further packets are sent at once instead.
pub const HELD_PACKETS_MAX: usize = 1024;

/// Longest run of bytes that one corruption overwrites.
const CORRUPT_RUN_MAX: usize = 16;

/// Wraps a transport and injects faults into what is sent through it. See the [module](self).
#[derive(Debug)]
pub struct FaultInjector<T> {
    inner: T,
    faults: Faults,
    random: Random,
    held: HeldPackets,
    /// Packets handed over so far; a reordered packet is released at a given count.
    handed_over: u64,
    /// Routes that their user released while packets were held for them: if they were released at once, their numbers
    /// could come to mean another peer before those packets leave.
    given_up: Vec<Route>,
    counters: FaultCounters,
}

/// What happens to one copy of a packet.
#[derive(Debug, Clone, Copy)]
struct Fate {
    corrupt: bool,
    hold: Option<Release>,
}

/// What happens to a packet.
enum Verdict {
    Untouched,
    Dropped,
    Once(Fate),
    Twice(Fate, Fate),
}

impl<T: Transport> FaultInjector<T> {
    /// Wraps `inner`. Give each transport of a test a different seed, or all of them lose the same packets.
    ///
    /// # Errors
    /// [`NetError::BadSetting`] if a probability is not from 0 to 1, or a range is empty.
    pub fn new(inner: T, seed: u64, faults: Faults) -> Result<Self, NetError> {
        faults.check()?;
        Ok(FaultInjector {
            inner,
            faults,
            random: Random::new(seed),
            held: HeldPackets::new(),
            handed_over: 0,
            given_up: Vec::new(),
            counters: FaultCounters::default(),
        })
    }

    /// Changes the faults from now on. Packets that are held stay held.
    ///
    /// # Errors
    /// As [`FaultInjector::new`]; the faults then stay as they are.
    pub fn set_faults(&mut self, faults: Faults) -> Result<(), NetError> {
        faults.check()?;
        self.faults = faults;
        Ok(())
    }

    /// The present faults.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// Ends all faults, and sends all held packets at once.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.release_up_to(Release { time: u64::MAX, count: u64::MAX });
        self.inner.tx_flush();
    }

    /// When the next held packet is due, on the transport's clock; `None` if none is held.
    pub fn next_release(&self) -> Option<u64> {
        self.held.next_time()
    }

    /// What was done to packets so far.
    pub fn fault_counters(&self) -> FaultCounters {
        self.counters
    }

    /// The wrapped transport.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The wrapped transport; packets sent through it directly suffer no faults.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Unwraps the transport. Held packets are lost; to send them, call [`FaultInjector::heal`] first.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// At most the time until a held packet is due.
    fn limit_wait(&self, timeout: Duration) -> Duration {
        self.next_release().map_or(timeout, |at| timeout.min(Duration::from_nanos(at.saturating_sub(self.now()))))
    }

    fn decide(&mut self, now: u64) -> Verdict {
        self.handed_over += 1;
        if self.random.chance(self.faults.drop) {
            self.counters.dropped += 1;
            return Verdict::Dropped;
        }
        let twice = self.random.chance(self.faults.duplicate);
        let first = self.decide_copy(now);
        if twice {
            self.counters.duplicated += 1;
            return Verdict::Twice(first, self.decide_copy(now));
        }
        if first.corrupt || first.hold.is_some() { Verdict::Once(first) } else { Verdict::Untouched }
    }

    fn decide_copy(&mut self, now: u64) -> Fate {
        let Faults { reorder, delay, corrupt, delay_min, delay_max, reorder_window, reorder_time_max, .. } =
            self.faults;
        let corrupt = self.random.chance(corrupt);
        let hold = if self.random.chance(delay) {
            self.counters.delayed += 1;
            let time = now.saturating_add(self.random.between(nanos(delay_min), nanos(delay_max)));
            Some(Release { time, count: u64::MAX })
        } else if self.random.chance(reorder) {
            self.counters.reordered += 1;
            let time = now.saturating_add(nanos(reorder_time_max));
            Some(Release { time, count: self.handed_over + 1 + self.random.below(reorder_window.into()) })
        } else {
            None
        };
        Fate { corrupt, hold }
    }

    fn carry_out(&mut self, verdict: Verdict, to: impl Fn() -> Destination, header: &[u8], payload: &[u8]) {
        let (first, second) = match verdict {
            Verdict::Untouched => (Some(Fate { corrupt: false, hold: None }), None),
            Verdict::Dropped => (None, None),
            Verdict::Once(fate) => (Some(fate), None),
            Verdict::Twice(first, second) => (Some(first), Some(second)),
        };
        for fate in [first, second].into_iter().flatten() {
            let mut bytes = self.held.copy_of(header, payload);
            if fate.corrupt && !bytes.is_empty() {
                self.counters.corrupted += 1;
                corrupt(&mut self.random, &mut bytes);
            }
            match fate.hold {
                Some(release) if !self.held.is_full() => self.held.push(to(), bytes, release),
                hold => {
                    self.counters.hold_full += u64::from(hold.is_some());
                    self.send(&to(), bytes);
                }
            }
        }
    }

    fn pass_on(&mut self, untouched: &[TxPacket<'_>]) {
        if !untouched.is_empty() {
            self.inner.tx_burst(untouched);
        }
    }

    fn send(&mut self, to: &Destination, bytes: Vec<u8>) {
        match to {
            Destination::Route(route) => {
                self.inner.tx_burst(&[TxPacket { route: *route, header: &bytes, payload: &[] }]);
            }
            Destination::Addr(addr) => {
                self.counters.undeliverable += u64::from(self.inner.tx_to(addr, &bytes).is_err());
            }
        }
        self.held.recycle(bytes);
    }

    /// Sends the held packets that are due, and returns whether there were any.
    fn release_due(&mut self, now: u64) -> bool {
        self.release_up_to(Release { time: now, count: self.handed_over })
    }

    fn release_up_to(&mut self, limit: Release) -> bool {
        let mut any = false;
        while let Some(packet) = self.held.take_due(limit) {
            self.send(&packet.to, packet.bytes);
            any = true;
        }
        if any && !self.given_up.is_empty() {
            let given_up = std::mem::take(&mut self.given_up);
            given_up.into_iter().for_each(|route| self.release(route));
        }
        any
    }

    /// Sends what is due, and flushes.
    fn release_and_flush(&mut self) {
        if !self.held.is_empty() && self.release_due(self.inner.now()) {
            self.inner.tx_flush();
        }
    }
}

/// Changes a packet, which must not be empty, into a different one.
fn corrupt(random: &mut Random, bytes: &mut Vec<u8>) {
    let len = bytes.len();
    let at = random.below(len as u64) as usize;
    match random.below(3) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => {
            let run = 1 + random.below((len - at).min(CORRUPT_RUN_MAX) as u64) as usize;
            for byte in &mut bytes[at..at + run] {
                *byte ^= 1 + random.below(255) as u8;
            }
        }
        _ => bytes.truncate(at),
    }
}

impl<T: Transport> Transport for FaultInjector<T> {
    crate::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route, resolve);
    crate::forward_transport!(inner: is_mtu_certain, limit_joining);
    crate::forward_transport!(inner: peer_health, rx_packet, rx_source, now, waker, wake_fd, disarm, counters);

    fn release(&mut self, route: Route) {
        if self.held.has_route(route) {
            self.given_up.push(route);
        } else {
            self.inner.release(route);
        }
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        if self.faults.is_none() && self.held.is_empty() {
            return self.inner.tx_burst(packets);
        }
        let now = self.inner.now();
        self.release_due(now);
        // Packets without faults are passed on in runs, so that the transport can still batch them.
        let mut run = 0;
        for (i, packet) in packets.iter().enumerate() {
            let verdict = self.decide(now);
            if !matches!(verdict, Verdict::Untouched) {
                self.pass_on(&packets[run..i]);
                run = i + 1;
                self.carry_out(verdict, || Destination::Route(packet.route), packet.header, packet.payload);
            }
            if self.held.is_overtaken(self.handed_over) {
                self.pass_on(&packets[run..=i]);
                run = i + 1;
                self.release_due(now);
            }
        }
        self.pass_on(&packets[run..]);
    }

    fn tx_flush(&mut self) {
        if !self.held.is_empty() {
            self.release_due(self.inner.now());
        }
        self.inner.tx_flush();
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let now = self.inner.now();
        self.release_due(now);
        match self.decide(now) {
            Verdict::Untouched => self.inner.tx_to(addr, packet),
            verdict => {
                self.carry_out(verdict, || Destination::Addr(addr.clone()), packet, &[]);
                Ok(())
            }
        }
    }

    fn rx_burst(&mut self) -> usize {
        self.release_and_flush();
        self.inner.rx_burst()
    }

    /// As the wrapped transport, but not past the time when a held packet is due.
    fn wait(&mut self, timeout: Duration) {
        self.release_and_flush();
        let timeout = self.limit_wait(timeout);
        self.inner.wait(timeout);
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.release_and_flush();
        let timeout = self.limit_wait(timeout);
        if timeout.is_zero() { Arm::Work } else { self.inner.arm(timeout) }
    }
}
