//! Path MTU discovery: the longest packets to use if the path to a peer may drop packets of the agreed length.
//!
//! There is one [`MtuSearch`] for each peer, since all sessions with it share the path. Its probes are padded PINGs. If
//! a search finds a larger size, later messages have longer packets. If a path carries less than before, requests that
//! are not known to have arrived are recut. Responses are recut when their packets are requested again.
//! `docs/wire-protocol.md`, section 9c, is the specification.

use dunlin_net::Route;

use super::mtu_search::{BASE_MTU, MtuSearch, Outcome};
use super::recovery::clear_window;
use super::session::State;
use super::{Core, NONE, packet_data_bytes};
use crate::error::CallError;
use crate::wire::control::{Presence, SLOTS_MAX};
use crate::wire::header::CUT_MAX;
use crate::wire::{Header, Kind};

impl Core {
    /// Limits the packets of a session that just opened to the length that the path to its peer is known to carry. Both
    /// ends accept `agreed` bytes.
    pub fn limit_to_path(&mut self, session: u32, agreed: u16) {
        let is_certain = self.cold[session as usize].path.is_mtu_certain;
        let (index, route) = (self.sessions[session as usize].peer, self.sessions[session as usize].route);
        let Some(peer) = self.peers.get_mut(index).filter(|_| !is_certain && agreed > BASE_MTU) else { return };
        let search = peer.search.get_or_insert_with(|| Box::new(MtuSearch::new(agreed)));
        let mtu = search.mtu();
        self.joining_limits.extend(search.joining_limit().map(|limit| (route, limit)));
        let entry = &mut self.sessions[session as usize];
        entry.packet_data = entry.packet_data.min(packet_data_bytes(mtu.into()) as u16);
    }

    /// Begins the search for the longest packets that get through to the peer of a session. Does nothing if a search
    /// ever began.
    pub fn search_path(&mut self, session: u32) {
        let peer = self.sessions[session as usize].peer;
        let Some(search) = self.peers.get_mut(peer).and_then(|peer| peer.search.as_deref_mut()) else { return };
        if !search.has_begun() {
            search.begin(|| self.random.next_u64());
            self.send_probes(peer);
        }
    }

    /// Checks whether the path of a session still carries full packets. Call it when they seem to get lost; there is at
    /// most one check per second.
    #[cold]
    pub fn doubt_path(&mut self, session: u32) {
        let peer = self.sessions[session as usize].peer;
        let Some(search) = self.peers.get_mut(peer).and_then(|peer| peer.search.as_deref_mut()) else { return };
        search.check(self.now, || self.random.next_u64());
        self.send_probes(peer);
    }

    /// Advances the search of a peer: retransmits probes, or gives them up.
    pub fn tick_path(&mut self, peer: u32) {
        let Some(search) = self.peers.get_mut(peer).and_then(|peer| peer.search.as_deref_mut()) else { return };
        if search.on_time(self.now, || self.random.next_u64()) == Outcome::Changed {
            self.set_path_mtu(peer);
        }
        self.send_probes(peer);
    }

    /// Processes a PONG, which answers a probe if it has the probe's token.
    pub fn on_probe_answered(&mut self, peer: u32, token: u64) {
        let Some(search) = self.peers.get_mut(peer).and_then(|peer| peer.search.as_deref_mut()) else { return };
        if search.on_answer(token, self.now, || self.random.next_u64()) == Outcome::Changed {
            self.set_path_mtu(peer);
        }
        self.send_probes(peer);
    }

    /// Sends the probes of a peer's search that are due, and tells the transport how long datagrams may get by joining
    /// packets.
    fn send_probes(&mut self, index: u32) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(search) = peer.search.as_deref_mut() else { return };
        let probes = search.due(now);
        self.joining_limits.extend(search.joining_limit().map(|limit| (peer.route, limit)));
        let session = if probes.is_empty() { None } else { self.connected_session_of(index) };
        let Some(session) = session else { return };
        for probe in probes {
            let body = Presence { incarnation: self.incarnation, token: probe.token };
            self.counters.mtu_probes_sent += 1;
            let entry = &mut self.sessions[session as usize];
            let header = Header::new(Kind::Ping, 0, entry.remote_session, 0, entry.remote_tag);
            entry.count_tx(probe.size.into());
            self.tx.push_padded(entry.route, &header, &body, probe.size.into());
        }
        self.arm_tick();
    }

    /// Applies the result of a peer's search to all sessions with it.
    fn set_path_mtu(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        let (Some(mtu), first) = (peer.search.as_ref().map(|search| search.mtu()), peer.first) else { return };
        tracing::debug!(route = peer.route.0, mtu, "path MTU");
        let mut next = first;
        while next != NONE {
            let session = next;
            next = self.cold[session as usize].peer_next;
            let entry = &mut self.sessions[session as usize];
            if entry.state != State::Connected {
                continue;
            }
            let before = entry.packet_data;
            entry.packet_data = entry.packet_data_max.min(packet_data_bytes(mtu.into()) as u16);
            if entry.packet_data < before {
                self.recut_requests(session);
            }
        }
    }

    /// Recuts the requests of a session that are not known to have arrived into packets of its present length.
    fn recut_requests(&mut self, session: u32) {
        for slot in 0..SLOTS_MAX {
            let call = self.sessions[session as usize].client[slot].call;
            if call != NONE {
                self.recut_request_of(call);
            }
        }
    }

    /// Restarts a request in shorter packets. Does nothing if its packets are short enough, or if its response has
    /// begun to arrive. The sequence number stays, so the server runs the handler once, whichever cut arrives
    /// completely.
    fn recut_request_of(&mut self, index: u32) {
        let call = &mut self.calls[index as usize];
        let session = &mut self.sessions[call.session as usize];
        let len = call.request.as_ref().map_or(0, |request| request.len());
        let is_short = call.packet_data <= session.packet_data || len <= usize::from(session.packet_data);
        if call.response_packets != 0 || is_short {
            return;
        }
        if call.cut == CUT_MAX {
            return self.fail_unanswered(index);
        }
        let held = if call.window == NONE { call.in_flight() } else { clear_window(&mut self.windows, call.window) };
        session.credits += held as i16;
        if call.was_sent() {
            (call.cut, call.sent_again) = (call.cut + 1, true);
            self.counters.messages_recut += 1;
        }
        call.packet_data = session.packet_data;
        call.request_packets = call.packets_of_request();
        // If the server has the request, its last packet is enough to ask for the response.
        call.received = if call.confirmed { call.request_packets - 1 } else { 0 };
        call.sent = call.received;
        (call.timed, call.sent_again_below) = (NONE, 0);
        (call.progress, call.retries) = (self.now, 0);
        let (is_queued, has_window) = (call.tx_batch == self.tx.batch, call.window != NONE);
        if is_queued {
            self.tx.forget_call(index);
        }
        if !has_window {
            self.take_window(index);
        }
        self.pump_in_turn(index);
        self.watch_long_call(index);
    }

    /// Ends a call for which nothing gets through, or no answer comes back, although the peer lives.
    #[cold]
    pub fn fail_unanswered(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        let (session, sent) = (call.session, call.was_sent());
        tracing::debug!(session, "a call was not answered however often it was sent");
        self.fail_call(index, CallError::Unanswered);
        if sent {
            self.send_release(session);
        }
    }
}

/// How long datagrams on a route may get by joining packets, to tell the transport.
pub(crate) type JoiningLimit = (Route, u16);
