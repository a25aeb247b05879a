//! Receiving: system calls fill buffers, buffers are split into datagrams and those into packets.

use std::io;
use std::net::SocketAddr;

use arrayvec::ArrayVec;

use crate::transport::{RX_BURST, Route, RxPacket};

use super::Link;
use super::frame::{self, Next};
use super::socket::Arrival;

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
    /// What of the arrivals has not been handed out.
    at: Cursor,
    /// Packets of the current burst.
    packets: ArrayVec<Packet, RX_BURST>,
    packet_bytes_max: usize,
    mode: Mode,
    /// The last count of drops that the kernel told.
    drops: u32,
}

/// A place in the arrivals; offsets are into all buffers together.
#[derive(Default)]
struct Cursor {
    arrival: usize,
    datagram_start: usize,
    next: usize,
    datagram_end: usize,
    arrival_end: usize,
}

/// A packet of the current burst: its place in the buffers and the arrival it came in.
#[derive(Clone, Copy)]
struct Packet {
    start: u32,
    len: u16,
    arrival: u8,
}

/// How many arrivals the next system call asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// One: the queue was empty a moment ago, and asking for a second would delay the first.
    One,
    /// Several: there was something just now, so there may be more.
    Several,
}

impl Rx {
    pub(super) fn new(packet_bytes_max: usize) -> Self {
        // Written once, so that the first packets do not wait for pages.
        let mut buffers = vec![1; BUFFER_BYTES * ARRIVALS_MAX].into_boxed_slice();
        buffers.fill(0);
        Rx {
            buffers,
            arrivals: ArrayVec::new(),
            routes: [None; ARRIVALS_MAX],
            at: Cursor::default(),
            packets: ArrayVec::new(),
            packet_bytes_max,
            mode: Mode::One,
            drops: 0,
        }
    }

    /// Whether packets are there that need no system call.
    pub(super) fn has_leftovers(&self) -> bool {
        self.at.arrival < self.arrivals.len()
    }

    /// Takes the next packets: what is left of the last system call, or else what one more gives.
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

    /// Packet `i` of the burst.
    #[inline]
    pub(super) fn packet(&self, i: usize) -> RxPacket<'_> {
        let packet = self.packets[i];
        let start = packet.start as usize;
        RxPacket::private(self.routes[packet.arrival as usize], &self.buffers[start..start + packet.len as usize])
    }

    /// Who sent packet `i` of the burst.
    pub(super) fn source(&self, i: usize) -> Option<SocketAddr> {
        self.arrivals[self.packets[i].arrival as usize].from
    }

    /// One system call; whether anything arrived.
    fn fill(&mut self, link: &mut Link) -> bool {
        self.arrivals.clear();
        self.at = Cursor::default();
        let result = match self.mode {
            Mode::One => link.socket.receive(&mut self.buffers[..BUFFER_BYTES]).map(|arrival| self.arrivals.push(arrival)),
            Mode::Several => {
                let mut buffers = self.buffers.chunks_exact_mut(BUFFER_BYTES);
                let buffers = std::array::from_fn(|_| buffers.next().unwrap_or_default());
                link.socket.receive_many::<ARRIVALS_MAX>(buffers, &mut self.arrivals)
            }
        };
        match result {
            Ok(()) => {
                self.mode = Mode::Several;
                self.note_arrivals(link);
                true
            }
            Err(error) => {
                self.mode = Mode::One;
                if error.kind() != io::ErrorKind::WouldBlock {
                    link.take_errors();
                }
                false
            }
        }
    }

    /// Finds the senders' routes and counts what the kernel dropped.
    fn note_arrivals(&mut self, link: &mut Link) {
        for (arrival, route) in self.arrivals.iter().zip(&mut self.routes) {
            *route = arrival.from.and_then(|from| link.routes.of_source(from));
            if let Some(drops) = arrival.drops {
                link.counters.rx_dropped_kernel += u64::from(drops.wrapping_sub(self.drops));
                self.drops = drops;
            }
        }
        self.begin_arrival();
    }

    /// Splits arrivals into packets until the burst is full or none is left.
    fn split(&mut self, link: &mut Link) {
        while let Some(arrival) = self.arrivals.get(self.at.arrival) {
            if arrival.truncated {
                link.counters.rx_dropped_malformed += 1;
                self.at.arrival += 1;
                self.begin_arrival();
                continue;
            }
            let datagram = &self.buffers[..self.at.datagram_end];
            match frame::next(datagram, self.at.next, self.packet_bytes_max) {
                Next::Frame(range) => {
                    if self.packets.is_full() {
                        return;
                    }
                    let (start, len) = (range.start as u32, range.len() as u16);
                    self.packets.push(Packet { start, len, arrival: self.at.arrival as u8 });
                    self.at.next = range.end;
                }
                Next::End => {
                    let no_frame = self.at.next == self.at.datagram_start;
                    link.counters.rx_dropped_malformed += u64::from(no_frame);
                    self.begin_datagram(arrival.segment);
                }
                Next::Malformed => {
                    link.counters.rx_dropped_malformed += 1;
                    self.begin_datagram(arrival.segment);
                }
            }
        }
    }

    /// Goes to the datagram behind the current one, or to the next arrival.
    fn begin_datagram(&mut self, segment: usize) {
        if self.at.datagram_end < self.at.arrival_end {
            self.at.datagram_start = self.at.datagram_end;
            self.at.next = self.at.datagram_start;
            self.at.datagram_end = (self.at.next + segment).min(self.at.arrival_end);
        } else {
            self.at.arrival += 1;
            self.begin_arrival();
        }
    }

    /// Goes to the first datagram of the arrival that the cursor names.
    fn begin_arrival(&mut self) {
        if let Some(arrival) = self.arrivals.get(self.at.arrival) {
            self.at.datagram_start = self.at.arrival * BUFFER_BYTES;
            self.at.next = self.at.datagram_start;
            self.at.arrival_end = self.at.next + arrival.len.min(BUFFER_BYTES);
            self.at.datagram_end = (self.at.next + arrival.segment).min(self.at.arrival_end);
        }
    }
}
