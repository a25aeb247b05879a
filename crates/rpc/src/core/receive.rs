//! The first look at a packet: does it belong to one of our sessions, and which code handles it?

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_net::{Route, RxPacket};

use super::Core;
use super::serve::{Dispatch, Serve};
use super::session::State;
use crate::observe::DropReason;
use crate::payload::Payload;
use crate::wire::control::SLOTS_MAX;
use crate::wire::{HEADER_BYTES, Header, Kind, MASK_24};

/// What the event loop does with the packets of a burst after the first look, each with its number. Filled in place, so
/// that results are not copied through calls.
#[derive(Default)]
pub(crate) struct Received {
    /// Requests whose handlers must run.
    pub dispatches: Dispatches,
    pub others: Others,
}

/// The requests of one burst.
pub(crate) type Dispatches = ArrayVec<(u8, Dispatch), RX_BURST>;
/// The other packets of a burst that need the event loop.
pub(crate) type Others = ArrayVec<(u8, Other), RX_BURST>;

/// A packet that is not for a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Other {
    /// Session management, which needs the transport.
    Control(Header),
    /// It belongs to a session that does not exist here: answer with a RESET.
    Unknown(Header),
}

impl Core {
    /// Prefetches the session that a packet seems to belong to.
    #[inline]
    pub fn prefetch(&self, head: &[u8]) {
        if let Some(word) = head.first_chunk::<8>() {
            let index = (u64::from_le_bytes(*word) >> 40) as usize;
            if let Some(session) = self.sessions.get(index) {
                crate::prefetch::read(session);
                crate::prefetch::read(&*session.client);
                crate::prefetch::read(&*session.server);
                crate::prefetch::read(&*session.traffic);
            }
        }
    }

    /// Prefetches the slot of the request that a packet seems to carry; its session was prefetched before.
    #[inline]
    pub fn prefetch_serve(&self, head: &[u8]) {
        if let Some(serve) = self.serve_of(head) {
            crate::prefetch::read_lines(serve);
        }
    }

    /// Prefetches the buffers that the slot keeps for its response; the slot was prefetched before.
    #[inline]
    pub fn prefetch_response(&self, head: &[u8]) {
        let response = self.serve_of(head).and_then(|serve| serve.response.as_ref());
        if let Some(buf) = response.and_then(Payload::as_msgbuf) {
            crate::prefetch::read(buf.header_and_data(HEADER_BYTES, 0));
        }
    }

    #[inline]
    fn serve_of(&self, head: &[u8]) -> Option<&Serve> {
        let base = head.first_chunk::<HEADER_BYTES>()?;
        let (first, slot) = (u64::from_le_bytes(*base.first_chunk::<8>()?), base[8] as usize % SLOTS_MAX);
        let is_request = base[0] & 0xf == Kind::Request as u8;
        let session = self.sessions.get((first >> 40) as usize).filter(|_| is_request)?;
        self.serves.get(session.server[slot].serve as usize)
    }

    /// Processes a packet. Whatever its bytes are, the worst effect is that a counter changes.
    #[inline]
    pub fn on_packet(&mut self, i: u8, packet: &RxPacket<'_>, received: &mut Received) {
        match Header::parse_plain(packet.head(), packet.len()) {
            Some(header) if !packet.ecn_marked() => self.on_session_packet(i, &header, packet, received),
            _ => self.on_any_packet(i, packet, received),
        }
    }

    /// A packet that is not plain data, or that is marked.
    #[inline(never)]
    fn on_any_packet(&mut self, i: u8, packet: &RxPacket<'_>, received: &mut Received) {
        let mut header = match Header::parse(packet.head(), packet.len()) {
            Ok(header) => header,
            Err(_) => {
                self.counters.dropped_malformed += 1;
                return;
            }
        };
        // Whichever way the mark came about, it is for the client; a server echoes it.
        header.ecn_echo |= packet.ecn_marked();
        let is_sessionless = match header.kind {
            Kind::Connect | Kind::Cookie | Kind::Accept | Kind::Refuse => true,
            Kind::Reset => header.session == MASK_24,
            _ => false,
        };
        if is_sessionless {
            return received.others.push((i, Other::Control(header)));
        }
        self.on_session_packet(i, &header, packet, received);
    }

    #[inline(always)]
    fn on_session_packet(&mut self, i: u8, header: &Header, packet: &RxPacket<'_>, received: &mut Received) {
        let index = header.session;
        let Some(session) = self.sessions.get_mut(index as usize).filter(|s| s.is_open_for(header, packet.route()))
        else {
            return self.on_closed_session_packet(i, *header, packet, received);
        };
        session.traffic.rx_packets += 1;
        session.traffic.rx_bytes += packet.len() as u64;
        let peer = session.peer;
        self.heard_from(peer);
        match header.kind {
            Kind::Response => self.on_response(index, header, packet),
            Kind::Request => {
                if let Some(dispatch) = self.on_request(index, header, packet) {
                    received.dispatches.push((i, dispatch));
                }
            }
            Kind::CreditReturn => self.on_credit_return(index, header, packet),
            Kind::RequestForResponse => self.on_request_for_response(index, header, packet),
            _ => received.others.push((i, Other::Control(*header))),
        }
    }
}

impl Core {
    /// A packet of a session that is closing, or that does not exist. On a closing session only management packets
    /// matter: its calls have ended, and no handler starts.
    #[cold]
    fn on_closed_session_packet(&mut self, i: u8, header: Header, packet: &RxPacket<'_>, received: &mut Received) {
        use Kind::{CreditReturn, Request, RequestForResponse, Response};
        if !self.is_session_of(&header, packet.route()) {
            self.counters.dropped_unknown_session += 1;
            self.note_wrong_tag(&header, packet.route());
            return received.others.push((i, Other::Unknown(header)));
        }
        let session = &mut self.sessions[header.session as usize];
        session.traffic.rx_packets += 1;
        session.traffic.rx_bytes += packet.len() as u64;
        let peer = session.peer;
        self.heard_from(peer);
        if matches!(header.kind, Request | Response | CreditReturn | RequestForResponse) {
            return self.drop_on(header.session, DropReason::Stale);
        }
        received.others.push((i, Other::Control(header)));
    }

    /// Whether a packet still names a session and comes from its peer.
    pub fn is_session_of(&self, header: &Header, from: Option<Route>) -> bool {
        self.sessions.get(header.session as usize).is_some_and(|session| session.is_for(header, from))
    }
}

impl super::session::Session {
    /// Whether a packet names this session, which is open or closing, has its tag, and comes from its peer.
    #[inline]
    fn is_for(&self, header: &Header, from: Option<Route>) -> bool {
        self.is_open_for(header, from) || self.state == State::Closing && self.is_named_by(header, from)
    }

    /// The same for a session that is open.
    #[inline]
    fn is_open_for(&self, header: &Header, from: Option<Route>) -> bool {
        self.state == State::Connected && self.is_named_by(header, from)
    }

    #[inline]
    fn is_named_by(&self, header: &Header, from: Option<Route>) -> bool {
        header.tag == self.local_tag && from == Some(self.route)
    }
}
