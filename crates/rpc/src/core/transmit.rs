//! Packets that wait for the end of the event loop's iteration, to be handed to the transport together.
//!
//! An entry names the message it takes its payload from, and the slices are made when the batch is sent. So a message whose buffer is
//! given back must first be forgotten here: the paper's invariant of section 4.2.2, kept by [`TxQueue::forget_call`] and
//! [`TxQueue::forget_serve`]. The transport itself holds no references once it has taken a batch.

use arrayvec::ArrayVec;
use dunlin_net::{Addr, Route, Transport, TxPacket};

use super::Core;
use crate::msgbuf::MsgBuf;
use crate::payload::Payload;
use crate::wire::control::Body;
use crate::wire::{HEADER_BYTES, HEADER_BYTES_MAX, Header, Kind, MASK_24};

/// Packets handed to the transport in one call (the paper's TX queue has 64 entries).
const TX_BURST: usize = 64;

/// Where the payload of a queued packet is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// There is none, or its message was given back: the packet is not sent if it has lost its payload.
    Nothing,
    /// The packet is not to be sent any more.
    Forgotten,
    /// In the request of a call.
    Call { index: u32, offset: u32, len: u32 },
    /// In the request of a call, with the header already in front of it.
    CallAdjacent { index: u32, header_len: u8, len: u32 },
    /// In the response of a server slot.
    Serve { index: u32, offset: u32, len: u32 },
    /// In the response of a server slot, with the header already in front of it.
    ServeAdjacent { index: u32, header_len: u8, len: u32 },
    /// A control packet's body, kept by the queue.
    Control { offset: u32, len: u32 },
}

impl Source {
    /// Writes the header in front of the request's data.
    #[inline]
    pub fn call_adjacent(index: u32, buf: &mut MsgBuf, header: &Header, len: usize) -> Source {
        Source::CallAdjacent { index, header_len: write_adjacent(buf, header, len), len: len as u32 }
    }

    /// Writes the header in front of the response's data.
    #[inline]
    pub fn serve_adjacent(index: u32, buf: &mut MsgBuf, header: &Header, len: usize) -> Source {
        Source::ServeAdjacent { index, header_len: write_adjacent(buf, header, len), len: len as u32 }
    }
}

#[inline]
fn write_adjacent(buf: &mut MsgBuf, header: &Header, len: usize) -> u8 {
    if header.is_plain() {
        // Of fixed length, so that it is one store.
        buf.put_header(&header.base(), len);
        return HEADER_BYTES as u8;
    }
    let mut bytes = [0; HEADER_BYTES_MAX];
    let header_len = header.write(&mut bytes);
    buf.put_header(&bytes[..header_len], len);
    header_len as u8
}

#[derive(Debug, Clone, Copy)]
struct TxItem {
    route: Route,
    header_len: u8,
    header: [u8; HEADER_BYTES_MAX],
    source: Source,
}

/// The queue. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    items: Vec<TxItem>,
    bodies: Vec<u8>,
    /// Control packets to addresses without a route: as `(address, packet)`.
    strangers: Vec<(Addr, Vec<u8>)>,
    /// Number of the batch that is being collected.
    pub batch: u32,
}

impl TxQueue {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.strangers.is_empty()
    }

    /// Appends a packet.
    #[inline]
    pub fn push(&mut self, route: Route, header: &Header, source: Source) {
        let mut item = TxItem { route, header_len: 0, header: [0; HEADER_BYTES_MAX], source };
        if !matches!(source, Source::CallAdjacent { .. } | Source::ServeAdjacent { .. }) {
            item.header_len = header.write(&mut item.header) as u8;
        }
        self.items.push(item);
    }

    /// Appends a control packet with a body.
    pub fn push_control<B: Body>(&mut self, route: Route, header: &Header, body: &B) {
        let offset = self.bodies.len() as u32;
        body.write(&mut self.bodies);
        self.push(route, header, Source::Control { offset, len: B::BYTES as u32 });
    }

    /// Appends a control packet to an address that nothing is kept of.
    pub fn push_stranger<B: Body>(&mut self, addr: Addr, header: &Header, body: &B) {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = header.write(&mut bytes);
        let mut packet = bytes[..len].to_vec();
        body.write(&mut packet);
        self.strangers.push((addr, packet));
    }

    /// Takes back packets whose payload is in the request of a call.
    #[cold]
    pub fn forget_call(&mut self, call: u32) {
        for item in &mut self.items {
            if matches!(item.source, Source::Call { index, .. } | Source::CallAdjacent { index, .. } if index == call) {
                item.source = Source::Forgotten;
            }
        }
    }

    /// Takes back packets whose payload is in the response of a server slot.
    #[cold]
    pub fn forget_serve(&mut self, serve: u32) {
        for item in &mut self.items {
            if matches!(item.source, Source::Serve { index, .. } | Source::ServeAdjacent { index, .. } if index == serve) {
                item.source = Source::Forgotten;
            }
        }
    }
}

impl Core {
    /// Hands everything that waits to the transport, and reads the clock.
    pub fn transmit<T: Transport>(&mut self, transport: &mut T) {
        if self.tx.items.len() > 2 {
            self.group_by_route();
        }
        let mut sent = 0;
        for items in self.tx.items.chunks(TX_BURST) {
            let mut burst = ArrayVec::<TxPacket<'_>, TX_BURST>::new();
            for item in items {
                if let Some((header, payload)) = self.slices(item) {
                    // The chunk is no longer than the burst.
                    burst.push(TxPacket { route: item.route, header, payload });
                }
            }
            sent += burst.len() as u64;
            transport.tx_burst(&burst);
        }
        if !self.tx.strangers.is_empty() {
            sent += self.answer_strangers(transport);
        }
        transport.tx_flush();
        // The time is read when the packets are gone: nobody waits for that.
        self.now = transport.now();
        for item in &self.tx.items {
            if let Source::Call { index, .. } | Source::CallAdjacent { index, .. } = item.source {
                let call = &mut self.calls[index as usize];
                call.progress = self.now;
                if !call.sent_again && call.received == 0 {
                    call.started = self.now;
                }
            }
        }
        self.counters.tx_packets += sent;
        self.tx.items.clear();
        self.tx.bodies.clear();
        self.tx.batch = self.tx.batch.wrapping_add(1);
    }

    #[cold]
    fn answer_strangers<T: Transport>(&mut self, transport: &mut T) -> u64 {
        // A stranger that cannot be answered is its own problem.
        self.tx.strangers.drain(..).filter(|(addr, packet)| transport.tx_to(addr, packet).is_ok()).count() as u64
    }

    /// Brings packets of one destination together, in their order. Most batches are so already.
    fn group_by_route(&mut self) {
        let items = &mut self.tx.items;
        let changes = items.windows(2).filter(|pair| pair[0].route != pair[1].route).count();
        if changes > 1 {
            items.sort_by_key(|item| item.route);
        }
    }

    #[inline]
    fn slices<'a>(&'a self, item: &'a TxItem) -> Option<(&'a [u8], &'a [u8])> {
        let header = &item.header[..item.header_len as usize];
        let within = |payload: &'_ Payload, offset: u32, len: u32| {
            offset as usize..(offset as usize + len as usize).min(payload.len())
        };
        Some(match item.source {
            Source::Nothing => (header, &[]),
            Source::Forgotten => return None,
            Source::Control { offset, len } => (header, &self.tx.bodies[offset as usize..(offset + len) as usize]),
            Source::Call { index, offset, len } => {
                let payload = self.calls[index as usize].request.as_ref()?;
                (header, &payload.as_slice()[within(payload, offset, len)])
            }
            Source::Serve { index, offset, len } => {
                let payload = self.serves[index as usize].response.as_ref()?;
                (header, &payload.as_slice()[within(payload, offset, len)])
            }
            Source::CallAdjacent { index, header_len, len } => match self.calls[index as usize].request.as_ref()? {
                Payload::MsgBuf(buf) => (buf.header_and_data(header_len as usize, len as usize), &[]),
                _ => return None,
            },
            Source::ServeAdjacent { index, header_len, len } => match self.serves[index as usize].response.as_ref()? {
                Payload::MsgBuf(buf) => (buf.header_and_data(header_len as usize, len as usize), &[]),
                _ => return None,
            },
        })
    }

    /// Queues a control packet of a session.
    pub fn send_control<B: Body>(&mut self, session: u32, kind: Kind, body: &B) {
        let entry = &mut self.sessions[session as usize];
        let header = Header::new(kind, 0, entry.remote_session, 0, entry.remote_tag);
        entry.count_tx(header.wire_len() + B::BYTES);
        self.tx.push_control(entry.route, &header, body);
    }

    /// The header of a packet that belongs to no session of the receiver.
    pub fn sessionless(kind: Kind) -> Header {
        Header::new(kind, 0, MASK_24, 0, 0)
    }
}
