//! Peers: the endpoints at the other ends of our sessions, and whether they still live.
//!
//! Keep-alive is per peer, not per session: 20,000 sessions between two endpoints cost one ping. A peer of this host whose process
//! died is noticed by the transport within a tick; a silent one after [`crate::EndpointConfig::peer_timeout`], and only if it
//! was asked several times while this endpoint itself was running.
//!
//! A single session may lose its other end while the peer lives: a repeated CONNECT arrived after its session had ended, or a CLOSE was
//! lost each time. So every session is asked about now and then, and a RESET ends it.

use dunlin_net::{PeerHealth, Route};

use super::session::State;
use super::{Core, NONE, Routes};
use crate::error::CallError;
use crate::wire::control::Presence;
use crate::wire::{Header, Kind};

/// A peer is asked this many times at least before its silence counts.
const PINGS_BEFORE_FAILURE: u32 = 3;
/// Each session is asked about once in this time: the other end may have lost it while the two endpoints went on talking.
const AUDIT_PERIOD_NANOS: u64 = 20_000_000_000;
/// Sessions asked about in one tick, at most.
const AUDITS_PER_TICK: u64 = 16;

/// One endpoint that we share sessions with.
#[derive(Debug)]
pub(crate) struct Peer {
    route: Route,
    incarnation: u64,
    sessions: u32,
    /// Whether it was heard from since the last tick.
    heard: bool,
    /// When it was last heard from, as far as ticks can tell.
    last_heard: u64,
    last_ping: u64,
    /// Pings since then.
    unanswered: u32,
}

impl Core {
    /// Whether another incarnation of an endpoint is known at `route`. Which of the two is the later cannot be seen: a packet of the
    /// earlier may come late. So the known one is asked; if it is gone, its successor answers with a RESET, and its sessions end.
    pub fn is_contested(&mut self, route: Route, incarnation: u64) -> bool {
        let other = |peer: &Option<Peer>| peer.as_ref().is_some_and(|p| p.route == route && p.incarnation != incarnation);
        let Some(index) = self.peers.iter().position(other) else { return false };
        self.send_ping(index as u32);
        true
    }

    /// Counts a session to the peer it belongs to.
    pub fn join_peer(&mut self, session: u32, route: Route, incarnation: u64) {
        let is_same = |peer: &Option<Peer>| peer.as_ref().is_some_and(|p| p.route == route && p.incarnation == incarnation);
        if let Some(index) = self.peers.iter().position(is_same) {
            if let Some(peer) = &mut self.peers[index] {
                peer.sessions += 1;
                peer.heard = true;
            }
            self.sessions[session as usize].peer = index as u32;
            return;
        }
        let peer =
            Peer { route, incarnation, sessions: 1, heard: true, last_heard: self.now, last_ping: self.now, unanswered: 0 };
        let index = self.peers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.peers[index] = Some(peer);
        self.sessions[session as usize].peer = index as u32;
        self.arm_tick();
    }

    /// Counts a session off.
    pub fn leave_peer(&mut self, index: u32) {
        if let Some(peer) = &mut self.peers[index as usize] {
            peer.sessions -= 1;
            if peer.sessions == 0 {
                self.peers[index as usize] = None;
            }
        }
    }

    /// A packet of this peer came.
    #[inline]
    pub fn heard_from(&mut self, index: u32) {
        if let Some(Some(peer)) = self.peers.get_mut(index as usize) {
            peer.heard = true;
        }
    }

    /// Looks after every peer: asks the silent, ends the dead.
    pub fn tick_peers(&mut self, routes: &mut dyn Routes) {
        let timeout = self.config.peer_timeout.as_nanos() as u64;
        let ping_after = timeout / 4;
        for index in 0..self.peers.len() {
            let now = self.now;
            let Some(peer) = &mut self.peers[index] else { continue };
            if std::mem::take(&mut peer.heard) {
                (peer.last_heard, peer.unanswered) = (now, 0);
            }
            if routes.health(peer.route) == PeerHealth::Dead {
                self.fail_peer(index as u32, CallError::PeerDied);
                continue;
            }
            let silent = now.saturating_sub(peer.last_heard);
            if silent >= timeout && peer.unanswered >= PINGS_BEFORE_FAILURE && now - peer.last_ping >= ping_after {
                self.fail_peer(index as u32, CallError::PeerSilent);
            } else if silent >= ping_after && now - peer.last_ping >= ping_after {
                peer.last_ping = now;
                peer.unanswered += 1;
                self.send_ping(index as u32);
            }
        }
        self.peers.truncate(self.peers.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
    }

    /// Asks a peer whether it is there, in the name of one of the sessions with it.
    fn send_ping(&mut self, peer: u32) {
        let of_peer = |s: &super::session::Session| s.peer == peer && s.state == State::Connected;
        if let Some(session) = self.sessions.iter().position(of_peer) {
            self.send_ping_on(session as u32);
        }
    }

    /// Asks whether the other end still has a session.
    pub fn send_ping_on(&mut self, session: u32) {
        let presence = Presence { incarnation: self.incarnation, token: self.now };
        self.counters.pings_sent += 1;
        self.send_control(session, Kind::Ping, &presence);
    }

    /// Asks about the next few sessions, so that each has its turn once in [`AUDIT_PERIOD_NANOS`].
    pub fn tick_audit(&mut self) {
        let table = self.sessions.len() as u64;
        let due = (self.now.saturating_sub(self.audited_at)).saturating_mul(table) / AUDIT_PERIOD_NANOS;
        if due == 0 {
            return;
        }
        self.audited_at = self.now;
        for _ in 0..due.min(AUDITS_PER_TICK) {
            self.audit_next = (self.audit_next + 1) % table as u32;
            let session = &self.sessions[self.audit_next as usize];
            if session.state == State::Connected {
                let was_used = session.client.iter().any(|slot| slot.sequence != 0);
                self.send_ping_on(self.audit_next);
                if was_used {
                    // The last RELEASE may have been lost, and the server keep responses that we have.
                    self.release_later(self.audit_next);
                }
            }
        }
    }

    /// Ends every session with a peer.
    pub fn fail_peer(&mut self, peer: u32, error: CallError) {
        for index in 0..self.sessions.len() as u32 {
            let session = &self.sessions[index as usize];
            if session.peer == peer && !matches!(session.state, State::Free | State::Ending) {
                self.counters.sessions_failed += 1;
                self.end_session(index, error);
            }
        }
    }

    /// A peer asks or answers. If it is not who we think it is, it was restarted.
    pub fn on_presence(&mut self, session: u32, kind: Kind, presence: &Presence) {
        let peer = self.sessions[session as usize].peer;
        if peer == NONE {
            return;
        }
        let expected = self.peers[peer as usize].as_ref().map(|peer| peer.incarnation);
        if expected != Some(presence.incarnation) {
            self.fail_peer(peer, CallError::PeerReset);
        } else if kind == Kind::Ping {
            let answer = Presence { incarnation: self.incarnation, token: presence.token };
            self.send_control(session, Kind::Pong, &answer);
        }
    }

    /// Tells the sender of a packet that its session does not exist here.
    pub fn send_reset(&mut self, to: dunlin_net::Addr, about: &Header) {
        if self.resets_left == 0 {
            return;
        }
        self.resets_left -= 1;
        self.arm_tick();
        let token = about.session as u64 | (about.tag as u64) << 24;
        let body = Presence { incarnation: self.incarnation, token };
        self.tx.push_stranger(to, &Core::sessionless(Kind::Reset), &body);
    }

    /// A peer says that it does not know a session of ours. It must name the session as only the two of us can.
    pub fn on_reset(&mut self, from: Option<Route>, reset: &Presence) {
        let Some(from) = from else {
            self.counters.dropped_control += 1;
            return;
        };
        let named = |s: &super::session::Session| {
            matches!(s.state, State::Connected | State::Closing)
                && s.route == from
                && s.remote_session as u64 | (s.remote_tag as u64) << 24 == reset.token
        };
        let Some(index) = self.sessions.iter().position(named) else {
            self.counters.dropped_control += 1;
            return;
        };
        let peer = self.sessions[index].peer;
        let restarted =
            self.peers.get(peer as usize).and_then(Option::as_ref).is_some_and(|p| p.incarnation != reset.incarnation);
        if self.sessions[index].state == State::Closing {
            // It closed already, and its acknowledgement was lost.
            self.on_close_ack(index as u32);
        } else if restarted {
            self.fail_peer(peer, CallError::PeerReset);
        } else {
            self.counters.sessions_failed += 1;
            self.end_session(index as u32, CallError::PeerReset);
        }
    }
}
