//! One transport type for every kind of address, chosen when it is opened.
//!
//! A program that takes its address from the command line uses this; each call costs one predictable branch.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::addr::{Addr, ShmName};
use crate::clock::BootClock;
use crate::composite::Composite;
use crate::error::NetError;
use crate::shm::{self, ShmConfig, ShmTransport};
use crate::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
use crate::udp::{UdpConfig, UdpTransport};

/// A transport of any kind that an [`Addr`] can name on the command line.
///
/// ```
/// use std::time::Duration;
///
/// use dunlin_net::{AnyTransport, Transport, TxPacket};
///
/// let mut server = AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?;
/// let mut client = AnyTransport::for_peer(&server.local_addr())?;
/// let route = client.resolve(&server.local_addr())?;
/// client.tx_burst(&[TxPacket { route, header: b"head", payload: b"body" }]);
/// client.tx_flush();
/// while server.rx_burst() == 0 {
///     server.wait(Duration::from_secs(1));
/// }
/// assert_eq!(server.rx_packet(0).bytes(), Some(&b"headbody"[..]));
/// # Ok::<(), dunlin_net::NetError>(())
/// ```
pub enum AnyTransport {
    /// Shared memory.
    Shm(Box<ShmTransport>),
    /// Kernel UDP.
    Udp(Box<UdpTransport>),
    /// Both, for one endpoint that is reached either way.
    ShmAndUdp(Box<Composite<ShmTransport, UdpTransport>>),
}

/// Calls the same method of whichever transport it is.
macro_rules! each {
    ($any:expr, $transport:ident => $call:expr) => {
        match $any {
            AnyTransport::Shm($transport) => $call,
            AnyTransport::Udp($transport) => $call,
            AnyTransport::ShmAndUdp($transport) => $call,
        }
    };
}

impl AnyTransport {
    /// Opens a transport that others reach at `addr`. For every kind of address, this also removes regions in shared
    /// memory that dead processes of this user left behind.
    ///
    /// # Errors
    /// As for the transport of that kind; [`NetError::WrongKind`] for addresses that are valid only inside one process.
    pub fn bind(addr: &Addr) -> Result<Self, NetError> {
        match addr {
            Addr::Udp(addr) => Ok(AnyTransport::Udp(Box::new(udp_at(*addr)?))),
            Addr::Shm(name) => Ok(AnyTransport::Shm(Box::new(shm_at(name)?))),
            Addr::Node(_) | Addr::Sim { .. } => Err(wrong_kind(addr)),
        }
    }

    /// Opens a transport that others reach at each of `addrs`: one name in shared memory, one UDP address, or one of
    /// each.
    ///
    /// # Errors
    /// As [`AnyTransport::bind`]; [`NetError::BadSetting`] if `addrs` is empty or has several addresses of one kind.
    ///
    /// ```
    /// use dunlin_net::{AnyTransport, Transport};
    ///
    /// let name = format!("shm:doc-{}", std::process::id());
    /// let both = AnyTransport::bind_all(&[name.parse()?, "udp://127.0.0.1:0".parse()?])?;
    /// assert_eq!(both.local_addrs().len(), 2);
    /// # Ok::<(), dunlin_net::NetError>(())
    /// ```
    pub fn bind_all(addrs: &[Addr]) -> Result<Self, NetError> {
        if let [addr] = addrs {
            return AnyTransport::bind(addr);
        }
        match addrs {
            [Addr::Shm(name), Addr::Udp(addr)] | [Addr::Udp(addr), Addr::Shm(name)] => {
                AnyTransport::joined(shm_at(name)?, udp_at(*addr)?)
            }
            _ => {
                let why = "give one of the form shm:NAME, one of the form udp://HOST:PORT, or one of each".into();
                Err(NetError::BadSetting { name: "addresses of an endpoint", why })
            }
        }
    }

    /// Joins two transports that the caller opened with its own settings.
    ///
    /// # Errors
    /// As [`Composite::new`].
    pub fn joined(shm: ShmTransport, udp: UdpTransport) -> Result<Self, NetError> {
        Ok(AnyTransport::ShmAndUdp(Box::new(Composite::new(shm, udp)?)))
    }

    /// Opens a transport at an address of the system's choice, from which `peer` can be reached.
    ///
    /// # Errors
    /// As [`AnyTransport::bind`].
    pub fn for_peer(peer: &Addr) -> Result<Self, NetError> {
        match peer {
            Addr::Udp(peer) => {
                let local = match peer {
                    SocketAddr::V4(v4) if v4.ip().is_loopback() => Ipv4Addr::LOCALHOST.into(),
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(v6) if v6.ip().is_loopback() => Ipv6Addr::LOCALHOST.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                AnyTransport::bind(&Addr::Udp(SocketAddr::new(local, 0)))
            }
            Addr::Shm(_) => Ok(AnyTransport::Shm(Box::new(ShmTransport::new(&ShmConfig::anonymous())?))),
            Addr::Node(_) | Addr::Sim { .. } => Err(wrong_kind(peer)),
        }
    }
}

fn shm_at(name: &ShmName) -> Result<ShmTransport, NetError> {
    ShmTransport::new(&ShmConfig::named(name.clone()))
}

/// Opens a socket. This also sweeps dead regions: a process that was killed may have had a region, and its successor
/// only a socket.
fn udp_at(addr: SocketAddr) -> Result<UdpTransport, NetError> {
    shm::remove_dead(&ShmConfig::anonymous().directory);
    UdpTransport::bind(UdpConfig::new(addr))
}

fn wrong_kind(addr: &Addr) -> NetError {
    NetError::WrongKind { addr: addr.clone(), transport: "shared memory or UDP" }
}

impl Transport for AnyTransport {
    #[inline]
    fn mtu(&self) -> usize {
        each!(self, t => t.mtu())
    }

    fn route_mtu(&self, route: Route) -> usize {
        each!(self, t => t.route_mtu(route))
    }

    fn rx_queue_len(&self) -> usize {
        each!(self, t => t.rx_queue_len())
    }

    fn local_addr(&self) -> Addr {
        each!(self, t => t.local_addr())
    }

    fn local_addrs(&self) -> Vec<Addr> {
        each!(self, t => t.local_addrs())
    }

    fn is_local(&self) -> bool {
        each!(self, t => t.is_local())
    }

    fn is_local_route(&self, route: Route) -> bool {
        each!(self, t => t.is_local_route(route))
    }

    fn is_mtu_certain(&self, route: Route) -> bool {
        each!(self, t => t.is_mtu_certain(route))
    }

    fn limit_joining(&mut self, route: Route, bytes: usize) {
        each!(self, t => t.limit_joining(route, bytes))
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        each!(self, t => t.resolve(addr))
    }

    fn release(&mut self, route: Route) {
        each!(self, t => t.release(route))
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        each!(self, t => t.peer_health(route))
    }

    #[inline]
    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        each!(self, t => t.tx_burst(packets))
    }

    #[inline]
    fn tx_flush(&mut self) {
        each!(self, t => t.tx_flush())
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        each!(self, t => t.tx_to(addr, packet))
    }

    #[inline]
    fn rx_burst(&mut self) -> usize {
        each!(self, t => t.rx_burst())
    }

    #[inline]
    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        each!(self, t => t.rx_packet(i))
    }

    #[inline]
    fn rx_source(&self, i: usize) -> Option<Addr> {
        each!(self, t => t.rx_source(i))
    }

    #[inline]
    fn now(&self) -> u64 {
        each!(self, t => t.now())
    }

    fn clock(&self) -> Option<crate::Clock> {
        each!(self, t => t.clock())
    }

    fn boot_clock(&self) -> BootClock {
        each!(self, t => t.boot_clock())
    }

    fn wait(&mut self, timeout: Duration) {
        each!(self, t => t.wait(timeout))
    }

    fn waker(&self) -> Waker {
        each!(self, t => t.waker())
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        each!(self, t => t.wake_fd())
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        each!(self, t => t.arm(timeout))
    }

    fn disarm(&mut self) {
        each!(self, t => t.disarm())
    }

    fn counters(&self) -> TransportCounters {
        each!(self, t => t.counters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivers(server: &Addr) {
        let mut server = AnyTransport::bind(server).unwrap();
        let mut client = AnyTransport::for_peer(&server.local_addr()).unwrap();
        let route = client.resolve(&server.local_addr()).unwrap();
        client.tx_burst(&[TxPacket { route, header: b"he", payload: b"llo" }]);
        client.tx_flush();
        let start = server.now();
        while server.rx_burst() == 0 {
            assert!(server.now() - start < 5_000_000_000, "nothing arrived");
        }
        assert_eq!(server.rx_packet(0).bytes(), Some(b"hello".as_slice()));
        assert_eq!(server.rx_source(0), Some(client.local_addr()));
    }

    #[test]
    fn an_address_is_chosen_for_the_peer() {
        delivers(&"udp://127.0.0.1:0".parse().unwrap());
        delivers(&format!("shm:test-any-{}", std::process::id()).parse().unwrap());
        let Addr::Udp(anywhere) = AnyTransport::for_peer(&"udp://192.0.2.1:9".parse().unwrap()).unwrap().local_addr()
        else {
            panic!("not UDP")
        };
        assert!(anywhere.ip().is_unspecified());
        assert!(AnyTransport::for_peer(&"udp://127.0.0.1:9".parse().unwrap()).unwrap().is_local());
        assert!(AnyTransport::for_peer(&"shm:nobody".parse().unwrap()).unwrap().is_local());
        assert!(!AnyTransport::for_peer(&"udp://192.0.2.1:9".parse().unwrap()).unwrap().is_local());
        assert!(matches!(AnyTransport::bind(&Addr::Node(1)), Err(NetError::WrongKind { .. })));
    }
}
