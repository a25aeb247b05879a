//! The first look at a packet: is it of a session of ours, and whose business is it?

use dunlin_net::{Route, RxPacket};

use super::Core;
use super::serve::Dispatch;
use super::session::State;
use crate::wire::{Header, Kind, MASK_24};

/// What the event loop does with a packet after the first look.
pub(crate) enum Received {
    /// Nothing more.
    Done,
    /// Run a handler.
    Dispatch(Dispatch),
    /// Manage sessions, which needs the transport.
    Control(Header),
    /// It belongs to a session that does not exist here: say so.
    Unknown(Header),
}

impl Core {
    /// Prefetches the session that a packet seems to be for.
    #[inline]
    pub fn prefetch(&self, head: &[u8]) {
        if let Some(word) = head.first_chunk::<8>() {
            let index = (u64::from_le_bytes(*word) >> 40) as usize;
            if let Some(session) = self.sessions.get(index) {
                crate::prefetch::read(session);
                crate::prefetch::read(&session.client);
                crate::prefetch::read(&session.server);
                crate::prefetch::read(&session.traffic);
            }
        }
    }

    /// Takes a packet in. Whatever its bytes are, at worst a counter changes.
    #[inline]
    pub fn on_packet(&mut self, packet: &RxPacket<'_>) -> Received {
        let header = match Header::parse(packet.head(), packet.len()) {
            Ok(header) => header,
            Err(_) => {
                self.counters.dropped_malformed += 1;
                return Received::Done;
            }
        };
        let is_sessionless = match header.kind {
            Kind::Connect | Kind::Cookie | Kind::Accept | Kind::Refuse => true,
            Kind::Reset => header.session == MASK_24,
            _ => false,
        };
        if is_sessionless {
            return Received::Control(header);
        }
        let index = header.session;
        let Some(session) = self.sessions.get_mut(index as usize).filter(|s| s.is_for(&header, packet.route())) else {
            self.counters.dropped_unknown_session += 1;
            return Received::Unknown(header);
        };
        session.traffic.rx_packets += 1;
        session.traffic.rx_bytes += packet.len() as u64;
        let peer = session.peer;
        self.heard_from(peer);
        match header.kind {
            Kind::Response => self.on_response(index, &header, packet),
            Kind::Request => {
                if let Some(dispatch) = self.on_request(index, &header, packet) {
                    return Received::Dispatch(dispatch);
                }
            }
            Kind::CreditReturn => self.on_credit_return(index, &header),
            Kind::RequestForResponse => self.on_request_for_response(index, &header),
            _ => return Received::Control(header),
        }
        Received::Done
    }
}

impl super::session::Session {
    /// Whether a packet names this session, proves that it knows it, and comes from its other end.
    #[inline]
    fn is_for(&self, header: &Header, from: Option<Route>) -> bool {
        header.tag == self.local_tag && matches!(self.state, State::Connected | State::Closing) && from == Some(self.route)
    }
}
