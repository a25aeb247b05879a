//! [`UdpTransport`]: the [`Transport`] built from the parts beside this file.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::addr::Addr;
use crate::clock::{BootClock, Clock};
use crate::error::NetError;
use crate::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};

use super::Link;
use super::config::UdpConfig;
use super::direct::Direct;
use super::frame::frame_bytes;
use super::open::{carries, open};
use super::routes::Routes;
use super::rx::Rx;
use super::sockaddr::SockAddr;
use super::tx::Tx;
use super::wake::{Wake, Woken};

/// Packets over one UDP socket. The [module](super) says how it works, [`UdpConfig`] has the settings. It holds about
/// 600 KiB of buffers, however many peers there are.
///
/// # The receive queue
/// The kernel bounds the queue by memory, not by packets. The length that this transport claims is the granted buffer
/// (twice the requested `SO_RCVBUF`) divided by what the kernel charges for a datagram of full size that comes alone:
/// 16,640 bytes for the 9,354 of loopback, 2,304 for those that fit an Ethernet frame. So a queue full of the longest
/// packets fits. Shorter ones cost less, and far less if they share datagrams or the kernel joins them. Over a network,
/// a driver that spends a page on each packet makes the queue hold half of what is claimed.
///
/// With the default of 64 MiB, of which the kernel grants twice, the queue holds 8,065 packets over loopback and 58,254
/// elsewhere; an ordinary user on a kernel with default settings is granted 416 KiB, which is 184 packets. A server
/// with very many sessions and small messages can give the length of its packets in [`UdpConfig::queued_packet_bytes`],
/// or claim a queue length with [`UdpConfig::rx_queue_len`]. [`TransportCounters::rx_dropped_kernel`] counts what the
/// kernel drops, in datagrams.
///
/// # Peers that are gone
/// A host answers packets to a port where nobody listens with an ICMP message, which the kernel passes to the sender.
/// [`Transport::peer_health`] then returns [`PeerHealth::Refused`] until a packet comes from there. It is a hint: such
/// messages may be filtered, and anyone who knows the two addresses can forge them.
pub struct UdpTransport {
    link: Link,
    tx: Tx,
    rx: Rx,
    wake: Wake,
    clock: Clock,
    local: SocketAddr,
    mtu: usize,
    /// Bytes of the longest datagrams.
    datagram_bytes: usize,
    rx_queue_len: usize,
}

impl UdpTransport {
    /// Opens a socket at `config.addr`.
    ///
    /// # Errors
    /// [`NetError::InUse`] if the port is taken, [`NetError::BadSetting`] for an `mtu` or `queued_packet_bytes` out of
    /// range, [`NetError::Io`] if the system rejects the address or the socket.
    pub fn bind(config: UdpConfig) -> Result<Self, NetError> {
        let opened = open(&config)?;
        let datagram_bytes = config.datagram_bytes(opened.recv_buffer_bytes)?;
        let mtu = config.mtu.unwrap_or(datagram_bytes - frame_bytes(0));
        let rx_queue_len = config.queue_len(opened.recv_buffer_bytes, datagram_bytes)?;
        Ok(UdpTransport {
            link: Link {
                socket: opened.socket,
                direct: Direct::new(config.clone(), opened.local),
                routes: Routes::new(config.routes_max),
                counters: TransportCounters::default(),
            },
            tx: Tx::new(mtu, datagram_bytes, config.coalesce, opened.gso),
            rx: Rx::new(mtu),
            wake: Wake::new()?,
            clock: Clock::new(),
            local: opened.local,
            mtu,
            datagram_bytes,
            rx_queue_len,
        })
    }

    /// Checks that `addr` is of the family of this socket.
    fn reachable(&self, addr: &Addr) -> Result<SocketAddr, NetError> {
        match addr {
            Addr::Udp(udp) if udp.is_ipv4() == self.local.is_ipv4() => Ok(*udp),
            Addr::Udp(_) | Addr::Shm(_) | Addr::Node(_) | Addr::Sim { .. } => {
                let transport = if self.local.is_ipv4() { "UDP on IPv4" } else { "UDP on IPv6" };
                Err(NetError::WrongKind { addr: addr.clone(), transport })
            }
        }
    }
}

impl Transport for UdpTransport {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rx_queue_len(&self) -> usize {
        self.rx_queue_len
    }

    fn local_addr(&self) -> Addr {
        Addr::Udp(self.local)
    }

    fn is_local(&self) -> bool {
        self.local.ip().is_loopback()
    }

    fn is_mtu_certain(&self, route: Route) -> bool {
        let Some(peer) = self.link.routes.get(route) else { return true };
        // The loopback interface is the whole path, so what it takes arrives. It takes everything that a socket does,
        // unless its MTU was changed.
        peer.addr.ip().is_loopback() && carries(peer.addr, self.datagram_bytes).unwrap_or(false)
    }

    fn limit_joining(&mut self, route: Route, bytes: usize) {
        self.tx.flush(&mut self.link);
        self.link.routes.limit_joining(route, frame_bytes(bytes));
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let addr = self.reachable(addr)?;
        self.link.routes.resolve(addr)
    }

    fn release(&mut self, route: Route) {
        self.tx.flush(&mut self.link);
        self.link.routes.release(route);
        if self.link.routes.get(route).is_none() {
            self.link.direct.on_release(route);
            self.rx.on_release(route);
        }
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        match self.link.routes.get(route) {
            Some(peer) if peer.refused => PeerHealth::Refused,
            _ => PeerHealth::Unknown,
        }
    }

    #[inline]
    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        self.tx.burst(&mut self.link, packets);
    }

    #[inline]
    fn tx_flush(&mut self) {
        self.tx.flush(&mut self.link);
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let to = SockAddr::from(self.reachable(addr)?);
        self.tx.stray(&mut self.link, packet, &to);
        Ok(())
    }

    #[inline]
    fn rx_burst(&mut self) -> usize {
        self.rx.burst(&mut self.link)
    }

    #[inline]
    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        self.rx.packet(i)
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        self.rx.source(i).map(Addr::Udp)
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn clock(&self) -> Option<Clock> {
        Some(self.clock.clone())
    }

    fn boot_clock(&self) -> BootClock {
        BootClock::of_system()
    }

    fn wait(&mut self, timeout: Duration) {
        self.tx_flush();
        if !self.rx.has_leftovers() {
            self.link.counters.waits += 1;
            let woken = self.wake.wait(&self.link.socket, self.link.direct.socket(), timeout);
            self.rx.on_wake(woken);
        }
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        self.wake.fd()
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.tx_flush();
        if self.rx.has_leftovers() || !self.wake.arm(&self.link.socket, self.link.direct.socket()) {
            return Arm::Work;
        }
        self.link.counters.waits += 1;
        Arm::Sleep(timeout)
    }

    fn disarm(&mut self) {
        self.wake.disarm(&self.link.socket, self.link.direct.socket());
        self.rx.on_wake(Woken::Otherwise);
    }

    fn waker(&self) -> Waker {
        self.wake.waker()
    }

    fn counters(&self) -> TransportCounters {
        self.link.counters
    }
}

#[cfg(test)]
mod tests;
