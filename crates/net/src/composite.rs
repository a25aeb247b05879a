//! Two transports as one, so that one endpoint serves, say, shared memory and UDP at once.
//!
//! A [`Route`] of the composite is a route of one of the transports, whose highest bit says of which. So packets for
//! the first are passed on as they are, and the routes of those for the second are rewritten once per burst. Receiving
//! alternates, so that neither transport starves the other however busy it is.
//!
//! # Properties of the composite
//!
//! | | of the composite |
//! |---|---|
//! | [`Transport::mtu`], [`Transport::rx_queue_len`] | the smaller: a peer may fill all places over one of the two alone |
//! | [`Transport::is_local`] | if both are; for a single route see [`Transport::is_local_route`] |
//! | [`Transport::local_addr`] | that of the first; [`Transport::local_addrs`] has both |
//! | [`Transport::counters`] | the sum; a sleep is counted once |
//! | [`Transport::now`] | the clock of the first |
//!
//! # The order
//!
//! Make the transport first whose queue is cheaper to poll: shared memory, where a poll is one read, before UDP, where
//! it is a system call. Once the second transport is found empty, only every [`QUIET_LOOKS`]th poll looks at it until
//! it has packets again; when the first is empty too, these looks follow each other within a microsecond.

use std::os::fd::OwnedFd;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::addr::Addr;
use crate::clock::BootClock;
use crate::error::NetError;
use crate::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
use crate::wake::{WakeSet, wait_readable};

/// Set in the routes of the second transport.
const SECOND: u32 = 1 << 31;
/// While the second transport is quiet, one poll in this many looks at it.
pub const QUIET_LOOKS: u32 = 16;
/// Empty looks in a row after which the second transport counts as quiet: it has just been busy, so more packets may
/// come.
const BUSY_LOOKS: u32 = 4;
/// Packets whose routes are rewritten at a time.
const TX_GROUP: usize = 64;

/// Joins two transports that reach different kinds of addresses. See the [module](self).
///
/// ```
/// use dunlin_net::shm::{ShmConfig, ShmTransport};
/// use dunlin_net::udp::{UdpConfig, UdpTransport};
/// use dunlin_net::{Composite, Transport, TxPacket};
///
/// let shm = ShmTransport::new(&ShmConfig::anonymous())?;
/// let udp = UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap()))?;
/// let mut both = Composite::new(shm, udp)?;
///
/// let mut near = ShmTransport::new(&ShmConfig::anonymous())?;
/// let mut far = UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap()))?;
/// for peer in [near.local_addr(), far.local_addr()] {
///     let route = both.resolve(&peer)?;
///     both.tx_burst(&[TxPacket { route, header: b"hello", payload: b"" }]);
/// }
/// both.tx_flush();
/// assert_eq!((near.rx_burst(), far.rx_burst()), (1, 1));
/// # Ok::<(), dunlin_net::NetError>(())
/// ```
#[derive(Debug)]
pub struct Composite<A, B> {
    first: A,
    second: B,
    /// The transport that the current burst came from.
    burst: Child,
    /// Empty looks at the second transport in a row.
    empty_looks: u32,
    /// Looks at the first transport since the last look at the second.
    looks_since: u32,
    wakers: WakeSet,
    /// The descriptors in the epoll set: they stay in it only while they are open.
    _fds: [OwnedFd; 2],
    /// Times this slept or was armed; its parts count the same times too.
    waits: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Child {
    First,
    Second,
}

impl Child {
    #[inline]
    fn of(route: Route) -> Child {
        if route.0 & SECOND == 0 { Child::First } else { Child::Second }
    }
}

impl<A: Transport, B: Transport> Composite<A, B> {
    /// Joins two transports.
    ///
    /// # Errors
    /// [`NetError::BadSetting`] if one has an address that the other reaches too: an answer would then leave through
    /// the wrong transport. [`NetError::Io`] if the system has no descriptors left.
    pub fn new(mut first: A, mut second: B) -> Result<Self, NetError> {
        for addr in second.local_addrs() {
            refuse_reach(&mut first, &addr)?;
        }
        for addr in first.local_addrs() {
            refuse_reach(&mut second, &addr)?;
        }
        let wakers = WakeSet::new()?;
        let fds = [first.wake_fd()?, second.wake_fd()?];
        for fd in &fds {
            wakers.add(fd).map_err(|cause| NetError::Io { doing: "wait for two transports at once".into(), cause })?;
        }
        Ok(Composite {
            first,
            second,
            burst: Child::First,
            empty_looks: 0,
            looks_since: 0,
            wakers,
            _fds: fds,
            waits: 0,
        })
    }

    /// The first transport.
    pub fn first(&self) -> &A {
        &self.first
    }

    /// The second transport.
    pub fn second(&self) -> &B {
        &self.second
    }
}

/// Rejects an address of one part that `transport`, the other, reaches too.
fn refuse_reach(transport: &mut impl Transport, addr: &Addr) -> Result<(), NetError> {
    match transport.resolve(addr) {
        Err(NetError::WrongKind { .. }) => return Ok(()),
        Ok(route) => transport.release(route),
        Err(_) => {}
    }
    let why = format!("{} and {addr} are of one kind; join one endpoint of each kind", transport.local_addr());
    Err(NetError::BadSetting { name: "addresses", why })
}

impl<A: Transport, B: Transport> Composite<A, B> {
    /// Looks at the second transport.
    #[inline]
    fn look_at_second(&mut self) -> usize {
        let count = self.second.rx_burst();
        self.looks_since = 0;
        if count == 0 {
            self.empty_looks = (self.empty_looks + 1).min(BUSY_LOOKS);
        } else {
            self.empty_looks = 0;
            self.burst = Child::Second;
        }
        count
    }

    #[inline]
    fn look_at_first(&mut self) -> usize {
        self.burst = Child::First;
        self.first.rx_burst()
    }

    /// Makes the next polls look at both: packets may have come to either meanwhile.
    fn on_wake(&mut self) {
        self.empty_looks = 0;
    }
}

/// Marks a route as one of the second transport.
fn over_second(route: Route) -> Route {
    Route(route.0 | SECOND)
}

impl<A: Transport, B: Transport> Transport for Composite<A, B> {
    fn mtu(&self) -> usize {
        self.first.mtu().min(self.second.mtu())
    }

    fn route_mtu(&self, route: Route) -> usize {
        match Child::of(route) {
            Child::First => self.first.route_mtu(route),
            Child::Second => self.second.route_mtu(Route(route.0 ^ SECOND)),
        }
    }

    fn rx_queue_len(&self) -> usize {
        self.first.rx_queue_len().min(self.second.rx_queue_len())
    }

    fn local_addr(&self) -> Addr {
        self.first.local_addr()
    }

    fn local_addrs(&self) -> Vec<Addr> {
        [self.first.local_addrs(), self.second.local_addrs()].concat()
    }

    fn is_local(&self) -> bool {
        self.first.is_local() && self.second.is_local()
    }

    fn is_local_route(&self, route: Route) -> bool {
        match Child::of(route) {
            Child::First => self.first.is_local_route(route),
            Child::Second => self.second.is_local_route(Route(route.0 ^ SECOND)),
        }
    }

    fn is_mtu_certain(&self, route: Route) -> bool {
        match Child::of(route) {
            Child::First => self.first.is_mtu_certain(route),
            Child::Second => self.second.is_mtu_certain(Route(route.0 ^ SECOND)),
        }
    }

    fn limit_joining(&mut self, route: Route, bytes: usize) {
        match Child::of(route) {
            Child::First => self.first.limit_joining(route, bytes),
            Child::Second => self.second.limit_joining(Route(route.0 ^ SECOND), bytes),
        }
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let (route, child) = match self.first.resolve(addr) {
            Err(NetError::WrongKind { .. }) => (self.second.resolve(addr)?, Child::Second),
            found => (found?, Child::First),
        };
        match (Child::of(route), child) {
            (Child::First, Child::First) => Ok(route),
            (Child::First, Child::Second) => Ok(over_second(route)),
            // A composite inside a composite has such routes.
            (Child::Second, child) => {
                match child {
                    Child::First => self.first.release(route),
                    Child::Second => self.second.release(route),
                }
                Err(NetError::Full { what: "the numbers of routes of a composite transport", limit: SECOND as usize })
            }
        }
    }

    fn release(&mut self, route: Route) {
        match Child::of(route) {
            Child::First => self.first.release(route),
            Child::Second => self.second.release(Route(route.0 ^ SECOND)),
        }
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        match Child::of(route) {
            Child::First => self.first.peer_health(route),
            Child::Second => self.second.peer_health(Route(route.0 ^ SECOND)),
        }
    }

    #[inline]
    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        for run in packets.chunk_by(|a, b| Child::of(a.route) == Child::of(b.route)) {
            match Child::of(run[0].route) {
                Child::First => self.first.tx_burst(run),
                Child::Second => {
                    for group in run.chunks(TX_GROUP) {
                        let name = |packet: &TxPacket<'_>| Route(packet.route.0 ^ SECOND);
                        let group: ArrayVec<_, TX_GROUP> =
                            group.iter().map(|packet| TxPacket { route: name(packet), ..*packet }).collect();
                        self.second.tx_burst(&group);
                    }
                }
            }
        }
    }

    #[inline]
    fn tx_flush(&mut self) {
        self.first.tx_flush();
        self.second.tx_flush();
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        match self.first.tx_to(addr, packet) {
            Err(NetError::WrongKind { .. }) => self.second.tx_to(addr, packet),
            done => done,
        }
    }

    #[inline]
    fn rx_burst(&mut self) -> usize {
        if self.empty_looks >= BUSY_LOOKS {
            // The second is quiet.
            self.looks_since += 1;
            if self.looks_since < QUIET_LOOKS {
                return self.look_at_first();
            }
        }
        match self.burst {
            Child::First => match self.look_at_second() {
                0 => self.look_at_first(),
                count => count,
            },
            Child::Second => match self.look_at_first() {
                0 => self.look_at_second(),
                count => count,
            },
        }
    }

    #[inline]
    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        match self.burst {
            Child::First => self.first.rx_packet(i),
            Child::Second => {
                let packet = self.second.rx_packet(i);
                packet.with_route(packet.route().map(over_second))
            }
        }
    }

    #[inline]
    fn rx_source(&self, i: usize) -> Option<Addr> {
        match self.burst {
            Child::First => self.first.rx_source(i),
            Child::Second => self.second.rx_source(i),
        }
    }

    #[inline]
    fn now(&self) -> u64 {
        self.first.now()
    }

    fn clock(&self) -> Option<crate::Clock> {
        self.first.clock()
    }

    fn boot_clock(&self) -> BootClock {
        self.first.boot_clock()
    }

    fn wait(&mut self, timeout: Duration) {
        if let Arm::Sleep(timeout) = self.arm(timeout) {
            wait_readable(&self.wakers, timeout);
            self.disarm();
        }
    }

    fn waker(&self) -> Waker {
        // One is enough: it ends a sleep that covers both.
        self.first.waker()
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        self.wakers.fd()
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.on_wake();
        let Arm::Sleep(first) = self.first.arm(timeout) else { return Arm::Work };
        let Arm::Sleep(second) = self.second.arm(timeout) else {
            self.first.disarm();
            return Arm::Work;
        };
        self.waits += 1;
        Arm::Sleep(first.min(second))
    }

    fn disarm(&mut self) {
        self.first.disarm();
        self.second.disarm();
        self.on_wake();
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters { waits: self.waits, ..self.first.counters().plus(&self.second.counters()) }
    }
}
