//! Two transports as one, so that one endpoint serves, say, shared memory and UDP at once.
//!
//! A [`Route`] of the composite is that of the transport it leads over, told apart by its highest bit. So packets for the first are
//! passed on as they are, and those for the second are named anew once per burst. Receiving takes turns, so that neither starves the
//! other however busy it is.
//!
//! # What both have in common
//!
//! | | of the composite |
//! |---|---|
//! | [`Transport::mtu`], [`Transport::rx_queue_len`] | the lesser: whoever fills all places may do it over one of the two alone |
//! | [`Transport::is_local`] | if both are; of a single route [`Transport::is_local_route`] tells |
//! | [`Transport::local_addr`] | that of the first; [`Transport::local_addrs`] has both |
//! | [`Transport::counters`] | the sum; a sleep is counted once |
//! | [`Transport::now`] | the clock of the first |
//!
//! # The order
//!
//! The first is the one whose queue is cheaper to look at: shared memory, where that is one read, before UDP, where it is a system call.
//! A second transport that was found empty is looked at only every [`QUIET_LOOKS`]th time until it gives packets again; when the first
//! has nothing either these looks follow each other within a microsecond.

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
/// One of so many looks for packets goes to the second transport while it is quiet.
pub const QUIET_LOOKS: u32 = 16;
/// Looks in a row that find nothing, after which the second transport counts as quiet: it has just been busy, so more may come.
const BUSY_LOOKS: u32 = 4;
/// Packets named anew at a time.
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
    /// Whose packets the current burst is of.
    burst: Child,
    /// Looks at the second in a row that found nothing.
    empty_looks: u32,
    /// Looks at the first since the last at the second.
    looks_since: u32,
    wakers: WakeSet,
    /// Its members: they are so while they are open.
    _fds: [OwnedFd; 2],
    /// Times this slept or was armed for it, each of which its parts count too.
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
    /// [`NetError::BadSetting`] if one has an address that the other reaches too: an answer would then leave by the wrong one.
    /// [`NetError::Io`] if the system has no descriptors left.
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
        Ok(Composite { first, second, burst: Child::First, empty_looks: 0, looks_since: 0, wakers, _fds: fds, waits: 0 })
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

/// Refuses an address of the other part that `transport` would reach, too.
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

    /// Has both looked at next: something may have come to either meanwhile.
    fn on_wake(&mut self) {
        self.empty_looks = 0;
    }
}

/// Names a route over the second transport.
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
            // A composite in a composite has such routes.
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
        // One is enough to end a sleep that is for both.
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
