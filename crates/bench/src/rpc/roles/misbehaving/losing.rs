//! A transport that loses packets on command.

use std::cell::Cell;
use std::rc::Rc;

use dunlin_net::{Route, Transport, TxPacket};
use dunlin_rpc::wire::{Header, Kind};

/// Which sent packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Nothing,
    /// The next requests, this many.
    Requests(u32),
    /// All packets longer than this, in bytes.
    LongerThan(usize),
}

/// Wraps a transport. The cell selects the losses from now on.
pub(super) struct Losing<T> {
    pub inner: T,
    pub loss: Rc<Cell<Loss>>,
}

impl<T> Losing<T> {
    fn loses(&self, packet: &TxPacket<'_>) -> bool {
        let len = packet.header.len() + packet.payload.len();
        match self.loss.get() {
            Loss::Nothing | Loss::Requests(0) => false,
            Loss::LongerThan(longest) => len > longest,
            Loss::Requests(left) => {
                let is_request = Header::parse(packet.header, len).is_ok_and(|header| header.kind == Kind::Request);
                self.loss.set(Loss::Requests(left - u32::from(is_request)));
                is_request
            }
        }
    }
}

impl<T: Transport> Transport for Losing<T> {
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
    dunlin_net::forward_transport!(inner: resolve, release, peer_health, tx_flush, tx_to, rx_burst, rx_packet, rx_source);
    dunlin_net::forward_transport!(inner: now, wait, waker, wake_fd, arm, disarm, counters, limit_joining);

    /// The wrapped transport does not know of these losses.
    fn is_mtu_certain(&self, _route: Route) -> bool {
        false
    }

    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        for packet in packets {
            if !self.loses(packet) {
                self.inner.tx_burst(std::slice::from_ref(packet));
            }
        }
    }
}
