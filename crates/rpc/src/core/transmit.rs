//! Packets that wait for the end of the event loop's iteration, to be handed to the transport together.
//!
//! An entry refers to the message that holds its payload; the slices are created when the batch is sent. So a message
//! whose buffer is returned to its owner must first be forgotten here: the paper's invariant of section 4.2.2, kept by
//! [`TxQueue::forget_call`] and [`TxQueue::forget_serve`]. The transport itself holds no references once it has taken a
//! batch.

use arrayvec::ArrayVec;
use dunlin_net::{Addr, Route, Transport, TxPacket};

use super::Core;
use crate::msgbuf::{HEADROOM_BYTES, MsgBuf};
use crate::wire::control::Body;
use crate::wire::header::EXTENSION_BYTES;
use crate::wire::{HEADER_BYTES, HEADER_BYTES_MAX, Header, Kind, MASK_24};

/// Packets handed to the transport in one call (the paper's TX queue has 64 entries).
const TX_BURST: usize = 64;

/// The owner of a queued packet's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Owner {
    /// There is no payload.
    Nobody,
    /// The packet must not be sent any more: its message was returned to its owner.
    Forgotten,
    /// The request of a call.
    Call,
    /// The response of a server slot.
    Serve,
    /// A control packet's body, kept by the queue.
    Control,
}

/// The location of a queued packet's payload. Plain numbers, which stay in registers until they are stored in the
/// queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub owner: Owner,
    /// Bytes of the header that already precedes the payload in memory; 0 if the queue has it.
    adjacent: u8,
    /// Number of the call or server slot.
    index: u32,
    /// Offset in the message.
    offset: u32,
    len: u32,
}

impl Source {
    pub const NOTHING: Source = Source { owner: Owner::Nobody, adjacent: 0, index: 0, offset: 0, len: 0 };

    /// Whether it is the start of its message.
    #[inline]
    fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// A piece of a message.
    #[inline]
    pub fn piece(owner: Owner, index: u32, offset: usize, len: usize) -> Source {
        Source { owner, adjacent: 0, index, offset: offset as u32, len: len as u32 }
    }

    /// The start of a message, with the header written before it if there is room.
    #[inline(always)]
    pub fn start(owner: Owner, index: u32, buf: &mut MsgBuf, header: &Header, len: usize) -> Source {
        Source { owner, adjacent: write_adjacent(buf, header, len), index, offset: 0, len: len as u32 }
    }
}

/// Writes a header before the data, and returns its length; 0 if it does not fit.
#[inline(always)]
fn write_adjacent(buf: &mut MsgBuf, header: &Header, len: usize) -> u8 {
    if header.is_plain() {
        // Fixed length, so that it is one store.
        buf.put_header(&header.base(), len);
        return HEADER_BYTES as u8;
    }
    if let (None, Some(us)) = (header.multi, header.deadline_us) {
        let mut bytes = [0; HEADER_BYTES + EXTENSION_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.base());
        bytes[HEADER_BYTES..].copy_from_slice(&u64::from(us).to_le_bytes());
        buf.put_header(&bytes, len);
        return bytes.len() as u8;
    }
    write_adjacent_extended(buf, *header, len)
}

/// [`write_adjacent`] for a header with extensions. It gets a copy, so that all other headers stay in registers.
#[inline(never)]
fn write_adjacent_extended(buf: &mut MsgBuf, header: Header, len: usize) -> u8 {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let header_len = header.write(&mut bytes);
    if header_len > HEADROOM_BYTES {
        return 0;
    }
    buf.put_header(&bytes[..header_len], len);
    header_len as u8
}

#[derive(Debug, Clone, Copy)]
struct TxItem {
    route: Route,
    source: Source,
    /// For a packet whose header does not precede its payload: the header's place in [`TxQueue::headers`].
    header: u32,
}

#[derive(Debug, Clone, Copy)]
struct TxHeader {
    len: u8,
    bytes: [u8; HEADER_BYTES_MAX],
}

/// The queue. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    items: Vec<TxItem>,
    headers: Vec<TxHeader>,
    bodies: Vec<u8>,
    /// Control packets to addresses without a route: as `(address, packet)`.
    strangers: Vec<(Addr, Vec<u8>)>,
    /// Number of the batch that is being collected.
    pub batch: u32,
}

impl TxQueue {
    #[inline]
    pub fn has_packets(&self) -> bool {
        !self.items.is_empty() || !self.strangers.is_empty()
    }

    /// Appends a packet.
    #[inline(always)]
    pub fn push(&mut self, route: Route, header: &Header, source: Source) {
        let place = if source.adjacent == 0 { self.keep_header(*header) } else { 0 };
        self.items.push(TxItem { route, source, header: place });
    }

    /// Keeps a header for which there is no room before its payload, and returns its place.
    ///
    /// It gets a copy, so that the header of any other packet stays in registers.
    #[inline(never)]
    fn keep_header(&mut self, header: Header) -> u32 {
        let mut kept = TxHeader { len: 0, bytes: [0; HEADER_BYTES_MAX] };
        kept.len = header.write(&mut kept.bytes) as u8;
        self.headers.push(kept);
        self.headers.len() as u32 - 1
    }

    /// Appends a packet without a payload, and returns its place in the batch, for [`TxQueue::amend`].
    pub fn push_bare(&mut self, route: Route, header: &Header) -> u32 {
        self.push(route, header, Source::NOTHING);
        self.items.len() as u32 - 1
    }

    /// Extends a packet of this batch that [`TxQueue::push_bare`] appended: gives it a new header, unless `header` is
    /// `None`, and a body, unless `body` is `None`.
    pub fn amend<B: Body>(&mut self, place: u32, header: Option<&Header>, body: Option<&B>) {
        let item = &mut self.items[place as usize];
        item.source = Source::NOTHING;
        if let Some(body) = body {
            // A body that it already has stays unused until the batch is sent.
            item.source = Source::piece(Owner::Control, 0, self.bodies.len(), B::BYTES);
            body.write(&mut self.bodies);
        }
        if let Some(header) = header {
            let kept = &mut self.headers[item.header as usize];
            kept.len = header.write(&mut kept.bytes) as u8;
        }
    }

    /// Appends a control packet with a body.
    pub fn push_control<B: Body>(&mut self, route: Route, header: &Header, body: &B) {
        let offset = self.bodies.len();
        body.write(&mut self.bodies);
        self.push(route, header, Source::piece(Owner::Control, 0, offset, B::BYTES));
    }

    /// Appends a control packet with a body, padded with zeros to `bytes`.
    pub fn push_padded<B: Body>(&mut self, route: Route, header: &Header, body: &B, bytes: usize) {
        let offset = self.bodies.len();
        body.write(&mut self.bodies);
        let len = bytes.saturating_sub(header.wire_len()).max(B::BYTES);
        self.bodies.resize(offset + len, 0);
        self.push(route, header, Source::piece(Owner::Control, 0, offset, len));
    }

    /// Appends a control packet to an address for which there is no state.
    pub fn push_stranger<B: Body>(&mut self, addr: Addr, header: &Header, body: &B) {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = header.write(&mut bytes);
        let mut packet = bytes[..len].to_vec();
        body.write(&mut packet);
        self.strangers.push((addr, packet));
    }

    /// Removes packets whose payload is in the request of a call.
    #[cold]
    pub fn forget_call(&mut self, call: u32) {
        self.forget(Owner::Call, call);
    }

    /// Removes packets whose payload is in the response of a server slot.
    #[cold]
    pub fn forget_serve(&mut self, serve: u32) {
        self.forget(Owner::Serve, serve);
    }

    #[inline]
    fn header(&self, place: u32) -> &[u8] {
        let TxHeader { len, bytes } = &self.headers[place as usize];
        &bytes[..*len as usize]
    }

    fn forget(&mut self, owner: Owner, index: u32) {
        let sources = self.items.iter_mut().map(|item| &mut item.source);
        sources
            .filter(|source| source.owner == owner && source.index == index)
            .for_each(|source| source.owner = Owner::Forgotten);
    }
}

impl Core {
    /// Hands everything queued to the transport, and reads the clock.
    pub fn transmit<T: Transport>(&mut self, transport: &mut T) {
        if !self.joining_limits.is_empty() {
            self.joining_limits.drain(..).for_each(|(route, bytes)| transport.limit_joining(route, bytes.into()));
        }
        let mut sent = match &self.tx.items[..] {
            // A single packet: nothing to collect.
            [item] => match self.slices(item) {
                Some((header, payload)) => {
                    transport.tx_burst(&[TxPacket { route: item.route, header, payload }]);
                    1
                }
                None => 0,
            },
            _ => self.transmit_bursts(transport),
        };
        if !self.tx.strangers.is_empty() {
            sent += self.answer_strangers(transport);
        }
        transport.tx_flush();
        // The clock is read after the packets have left, so it delays none of them.
        self.now = transport.now();
        for item in &self.tx.items {
            if item.source.owner == Owner::Call {
                let call = &mut self.calls[item.source.index as usize];
                call.progress = self.now;
                if !call.sent_again && call.received == 0 && item.source.is_first() {
                    call.started = self.now;
                }
            }
        }
        if !self.unstamped.is_empty() {
            self.stamp_windows();
        }
        self.counters.tx_packets += sent;
        self.tx.items.clear();
        self.tx.headers.clear();
        self.tx.bodies.clear();
        self.tx.batch = self.tx.batch.wrapping_add(1);
    }

    fn transmit_bursts<T: Transport>(&mut self, transport: &mut T) -> u64 {
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
        sent
    }

    #[cold]
    fn answer_strangers<T: Transport>(&mut self, transport: &mut T) -> u64 {
        // If a stranger cannot be answered, nothing else is affected.
        self.tx.strangers.drain(..).filter(|(addr, packet)| transport.tx_to(addr, packet).is_ok()).count() as u64
    }

    /// Groups packets by destination, keeping their order. Most batches are grouped already.
    fn group_by_route(&mut self) {
        let items = &mut self.tx.items;
        let changes = items.windows(2).filter(|pair| pair[0].route != pair[1].route).count();
        if changes > 1 {
            items.sort_by_key(|item| item.route);
        }
    }

    /// The two parts of a packet: its header, or header and payload if they are adjacent; and the rest.
    #[inline(always)]
    fn slices<'a>(&'a self, item: &TxItem) -> Option<(&'a [u8], &'a [u8])> {
        let Source { owner, adjacent, index, offset, len } = item.source;
        let payload = match owner {
            Owner::Call => self.calls[index as usize].request.as_ref()?,
            Owner::Serve => self.serves[index as usize].response.as_ref()?,
            Owner::Forgotten => return None,
            Owner::Nobody => return Some((self.tx.header(item.header), &[])),
            Owner::Control => {
                let body = &self.tx.bodies[offset as usize..(offset + len) as usize];
                return Some((self.tx.header(item.header), body));
            }
        };
        if adjacent > 0 {
            return Some((payload.as_msgbuf()?.header_and_data(adjacent as usize, len as usize), &[]));
        }
        let end = (offset as usize + len as usize).min(payload.len());
        Some((self.tx.header(item.header), &payload.as_slice()[offset as usize..end]))
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
