//! A transport whose network marks packets, as switches with long queues do.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};
use dunlin_net::{Addr, NetError};

/// Marks every packet that it receives while `marks` says so.
pub struct Marking<T> {
    pub inner: T,
    pub marks: Rc<Cell<bool>>,
    /// Whether the routes that are looked at stay on this host.
    pub is_near: Rc<Cell<bool>>,
}

impl<T: Transport> Transport for Marking<T> {
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn rx_queue_len(&self) -> usize {
        self.inner.rx_queue_len()
    }

    fn local_addr(&self) -> Addr {
        self.inner.local_addr()
    }

    fn is_local_route(&self, _: Route) -> bool {
        self.is_near.get()
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        self.inner.resolve(addr)
    }

    fn release(&mut self, route: Route) {
        self.inner.release(route)
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        self.inner.peer_health(route)
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        self.inner.tx_burst(packets)
    }

    fn tx_flush(&mut self) {
        self.inner.tx_flush()
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        self.inner.tx_to(addr, packet)
    }

    fn rx_burst(&mut self) -> usize {
        self.inner.rx_burst()
    }

    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        let packet = self.inner.rx_packet(i);
        if self.marks.get() { packet.with_ecn_mark() } else { packet }
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        self.inner.rx_source(i)
    }

    fn now(&self) -> u64 {
        self.inner.now()
    }

    fn wait(&mut self, timeout: Duration) {
        self.inner.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        self.inner.wake_fd()
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.inner.arm(timeout)
    }

    fn disarm(&mut self) {
        self.inner.disarm()
    }

    fn counters(&self) -> TransportCounters {
        self.inner.counters()
    }
}
