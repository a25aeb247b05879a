//! Receiving: system calls fill buffers, buffers are split into datagrams and those into packets.

use std::io;
use std::net::SocketAddr;

use arrayvec::ArrayVec;

use crate::transport::{RX_BURST, Route, RxPacket};

use super::Link;
use super::direct::Connected;
use super::frame::{self, Next};
use super::socket::{Arrival, Queue};
use super::wake::Woken;

/// Bytes of a receive buffer: the kernel joins datagrams up to 64 KiB.
const BUFFER_BYTES: usize = 65_536;
/// Arrivals taken by one system call.
const ARRIVALS_MAX: usize = 8;

/// The receiving half.
pub(super) struct Rx {
    buffers: Box<[u8]>,
    arrivals: ArrayVec<Arrival, ARRIVALS_MAX>,
    /// The routes back to the senders of `arrivals`.
    routes: [Option<Route>; ARRIVALS_MAX],
    /// The place up to which arrivals have been handed out.
    at: Cursor,
    /// Packets of the current burst.
    packets: ArrayVec<Packet, RX_BURST>,
    packet_bytes_max: usize,
    turn: Turn,
}

/// A place in the arrivals.
#[derive(Clone, Copy, Default)]
struct Cursor {
    arrival: usize,
    /// Where in it the current datagram begins: the kernel may have joined several.
    datagram: usize,
    /// Bytes of the datagram that were handed out.
    next: usize,
}

/// A packet of the current burst: its place in the buffers and the arrival it came in.
#[derive(Clone, Copy)]
struct Packet {
    start: u32,
    len: u16,
    arrival: u8,
}

/// A socket of the transport.
#[derive(Clone, Copy)]
enum Which {
    Main,
    Direct,
}

/// Which socket is polled next, if a second one is connected to a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The main one, this many times or until it is empty: what came before the connection must be delivered first.
    Drain(u16),
    /// The main one, and if it is empty then the connected one.
    Main,
    /// The connected one, with this much credit left.
    Direct(u8),
}

/// Credit of the connected socket before the main one has its turn: 8 polls that find packets, or 32 that find none. A
/// poll of the main socket that finds nothing delays the next packet by one system call; other peers wait some
/// microseconds at most.
const DIRECT_CREDIT: u8 = 32;
const PRICE_OF_ARRIVALS: u8 = 4;
const PRICE_OF_NOTHING: u8 = 1;
/// Most polls of the main socket before the connected one has its turn.
const DRAIN_TURNS: u16 = 4096;

impl Rx {
    pub(super) fn new(packet_bytes_max: usize) -> Self {
        // Written once, so that the first packets cause no page faults.
        let mut buffers = vec![1; BUFFER_BYTES * ARRIVALS_MAX].into_boxed_slice();
        buffers.fill(0);
        Rx {
            buffers,
            arrivals: ArrayVec::new(),
            routes: [None; ARRIVALS_MAX],
            at: Cursor::default(),
            packets: ArrayVec::new(),
            packet_bytes_max,
            turn: Turn::Main,
        }
    }

    /// Whether packets are available without a system call.
    pub(super) fn has_leftovers(&self) -> bool {
        self.at.arrival < self.arrivals.len()
    }

    /// Takes the next packets: what is left of the last system call, otherwise what one more returns.
    #[inline]
    pub(super) fn burst(&mut self, link: &mut Link) -> usize {
        self.packets.clear();
        if self.has_leftovers() {
            self.split(link);
        }
        if self.packets.is_empty() && self.fill(link) {
            self.split(link);
        }
        if !self.packets.is_empty() {
            link.counters.rx_batches += 1;
            link.counters.rx_packets += self.packets.len() as u64;
            link.counters.rx_bytes += self.packets.iter().map(|p| u64::from(p.len)).sum::<u64>();
        }
        self.packets.len()
    }

    /// Packets of the burst.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Packet `i` of the burst.
    #[inline]
    pub(super) fn packet(&self, i: usize) -> RxPacket<'_> {
        let packet = self.packets[i];
        let start = packet.start as usize;
        let arrival = packet.arrival as usize;
        let lent = RxPacket::private(self.routes[arrival], &self.buffers[start..start + packet.len as usize]);
        if self.arrivals[arrival].ecn_marked { lent.with_ecn_mark() } else { lent }
    }

    /// The sender of packet `i` of the burst.
    pub(super) fn source(&self, i: usize) -> Option<SocketAddr> {
        self.arrivals[self.packets[i].arrival as usize].from
    }

    /// Polls the socket whose turn it is; returns whether anything arrived.
    fn fill(&mut self, link: &mut Link) -> bool {
        if link.direct.socket().is_none() {
            // Before the poll, because a socket that is busy all the time is never found empty.
            self.connect_due(link);
        }
        let main_first = match self.turn {
            _ if link.direct.socket().is_none() => true,
            Turn::Drain(0) | Turn::Main => {
                self.turn = Turn::Direct(DIRECT_CREDIT);
                true
            }
            Turn::Drain(more) => {
                self.turn = Turn::Drain(more - 1);
                true
            }
            Turn::Direct(_) => false,
        };
        if main_first && self.poll(link, Which::Main) {
            return true;
        }
        if let Turn::Drain(_) = self.turn {
            self.turn = Turn::Direct(DIRECT_CREDIT);
        }
        let arrived = self.poll(link, Which::Direct);
        if let (Turn::Direct(left), false) = (self.turn, main_first) {
            let price = if arrived { PRICE_OF_ARRIVALS } else { PRICE_OF_NOTHING };
            self.turn = left.checked_sub(price).map_or(Turn::Main, Turn::Direct);
        }
        if arrived {
            return true;
        }
        // The connected socket was just found empty: the right moment to give it to another peer.
        self.connect_due(link);
        false
    }

    /// Gives the connected socket to a peer that has earned it.
    fn connect_due(&mut self, link: &mut Link) {
        if let Some(route) = link.direct.due() {
            link.connect(route);
            self.turn = Turn::Drain(DRAIN_TURNS);
        }
    }

    /// Makes one system call; returns whether anything arrived.
    fn poll(&mut self, link: &mut Link, which: Which) -> bool {
        self.arrivals.clear();
        self.at = Cursor::default();
        let (socket, mut peer) = match which {
            Which::Main => (&mut link.socket, None),
            Which::Direct => match link.direct.connected() {
                Some(Connected { socket, peer, joining, .. }) => (socket, Some((*peer, joining))),
                None => return false,
            },
        };
        let was_empty = socket.queue == Queue::Empty;
        let result = if was_empty {
            let buffer = &mut self.buffers[..BUFFER_BYTES];
            let arrival = match &peer {
                Some((peer, joining)) if joining.is_possible() => socket.receive_joined(buffer, *peer),
                Some((peer, _)) => socket.receive_connected(buffer, *peer),
                None => socket.receive(buffer),
            };
            arrival.map(|arrival| self.arrivals.push(arrival))
        } else {
            let mut buffers = self.buffers.chunks_exact_mut(BUFFER_BYTES);
            let buffers = std::array::from_fn(|_| buffers.next().unwrap_or_default());
            socket.receive_many::<ARRIVALS_MAX>(buffers, &mut self.arrivals)
        };
        if let Err(error) = result {
            socket.queue = Queue::Empty;
            if error.kind() != io::ErrorKind::WouldBlock {
                link.take_errors();
            }
            return false;
        }
        socket.queue = Queue::Busy;
        if let Some((_, joining)) = &mut peer {
            joining.on_arrivals(socket, &self.arrivals, was_empty);
        }
        for (arrival, route) in self.arrivals.iter().zip(&mut self.routes) {
            *route = arrival.from.and_then(|from| link.routes.of_source(from));
            if let Some(drops) = arrival.drops {
                link.counters.rx_dropped_kernel += u64::from(drops.wrapping_sub(socket.drops));
                socket.drops = drops;
            }
        }
        true
    }

    /// Forgets a route that was released, whose packets may still be in the buffers.
    pub(super) fn on_release(&mut self, route: Route) {
        for source in self.routes.iter_mut().filter(|source| **source == Some(route)) {
            *source = None;
        }
    }

    /// After a sleep the socket that ended it has its turn, without a system call for the other.
    pub(super) fn on_wake(&mut self, woken: Woken) {
        if let Turn::Direct(_) | Turn::Main = self.turn {
            self.turn = match woken {
                Woken::ByDirect => Turn::Direct(DIRECT_CREDIT),
                Woken::Otherwise => Turn::Main,
            };
        }
    }

    /// Splits arrivals into packets until the burst is full or none is left.
    fn split(&mut self, link: &mut Link) {
        while let Some(arrival) = self.arrivals.get(self.at.arrival) {
            let len = arrival.len.min(BUFFER_BYTES);
            let start = self.at.arrival * BUFFER_BYTES + self.at.datagram;
            // Each datagram on its own: a fault in one does not affect the others, and each counts its pad bytes from
            // its own start.
            let end = len.min(self.at.datagram + arrival.segment);
            let datagram = &self.buffers[start..start + end - self.at.datagram];
            match frame::next(datagram, self.at.next, self.packet_bytes_max) {
                Next::Frame(range) => {
                    if self.packets.is_full() {
                        return;
                    }
                    let (at, len) = ((start + range.start) as u32, range.len() as u16);
                    self.packets.push(Packet { start: at, len, arrival: self.at.arrival as u8 });
                    // Most datagrams hold one frame with nothing behind it.
                    if range.end < datagram.len() || arrival.truncated {
                        self.at.next = range.end.next_multiple_of(2);
                        continue;
                    }
                }
                Next::End if self.at.next > 0 && !(arrival.truncated && end == len) => {}
                Next::End | Next::Malformed => link.counters.rx_dropped_malformed += 1,
            }
            self.at = match end < len {
                true => Cursor { datagram: end, next: 0, ..self.at },
                false => Cursor { arrival: self.at.arrival + 1, ..Cursor::default() },
            };
        }
    }
}
