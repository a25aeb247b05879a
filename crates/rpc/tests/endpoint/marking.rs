//! A transport whose network marks packets, like switches with long queues.

use std::cell::Cell;
use std::rc::Rc;

use dunlin_net::{Route, RxPacket, Transport};

/// Marks every packet that it receives while `marks` says so.
pub struct Marking<T> {
    pub inner: T,
    pub marks: Rc<Cell<bool>>,
    /// Whether routes count as staying on this host.
    pub is_near: Rc<Cell<bool>>,
}

impl<T: Transport> Transport for Marking<T> {
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, resolve, release);
    dunlin_net::forward_transport!(inner: peer_health, tx_burst, tx_flush, tx_to, rx_burst, rx_source, now, wait, waker, wake_fd, arm, disarm, counters);

    fn is_local_route(&self, _: Route) -> bool {
        self.is_near.get()
    }

    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        let packet = self.inner.rx_packet(i);
        if self.marks.get() { packet.with_ecn_mark() } else { packet }
    }
}
