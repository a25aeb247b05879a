//! Peers: the endpoints at the other ends of our sessions, and whether they still live.
//!
//! Keep-alive is per peer, not per session: 20,000 sessions between two endpoints cost one ping. If the process of a
//! peer on this host dies, the transport notices within a tick. A silent peer is noticed after
//! [`crate::EndpointConfig::peer_timeout`], and only if it was pinged several times while this endpoint itself was
//! running. If the network reports that nobody listens there, which anyone can forge, the peer is pinged at once and
//! more often, and is judged after half of that time.
//!
//! A single session may lose its other end while the peer lives: a repeated CONNECT arrived after its session had
//! ended, or a CLOSE was lost each time. So every session is audited from time to time, and a RESET ends it.

use std::collections::HashMap;
use std::sync::Arc;

use dunlin_net::clock::nanos;
use dunlin_net::{Addr, PeerHealth, Route};

use super::mtu_search::MtuSearch;
use super::session::{Session, State};
use super::share::{HostName, Hosts, Share};
use super::{Core, NONE, Routes};
use crate::error::CallError;
use crate::wire::control::Presence;
use crate::wire::{Header, Kind};

/// Least number of pings to a peer before its silence counts.
const PINGS_BEFORE_FAILURE: u32 = 3;
/// The same for a peer whose address is reported to refuse packets.
const PINGS_IN_DOUBT: u32 = 4;
/// Pings to such a peer in each peer timeout, unless ticks are further apart: it is judged after half of the timeout,
/// so that a shorter pause together with a forged report ends nothing.
const PINGS_IN_DOUBT_PER_TIMEOUT: u64 = 2 * PINGS_IN_DOUBT as u64;
/// Deafness excuses a silence of at most this many peer timeouts.
const EXCUSED_TIMEOUTS: u64 = 4;
/// Each session is audited once in this time: the peer may have lost it while the two endpoints kept talking.
const AUDIT_PERIOD_NANOS: u64 = 20_000_000_000;
/// Most sessions audited per tick; less than this share of the receive queue, where the answers arrive, but at least
/// some.
const AUDITS_PER_TICK_MAX: usize = 256;
const AUDITS_PER_TICK_MIN: usize = 16;
const AUDITS_SHARE: usize = 16;

/// One endpoint that we share sessions with.
#[derive(Debug)]
pub(crate) struct Peer {
    pub route: Route,
    addr: Arc<Addr>,
    incarnation: u64,
    sessions: u32,
    host: u32,
    /// First of its sessions, linked through [`super::session::SessionCold::peer_next`].
    pub first: u32,
    /// The search for the longest packets that get through to it, if that is not certain.
    pub search: Option<Box<MtuSearch>>,
    /// Whether a packet of it came since the last tick.
    heard: bool,
    /// When a packet of it last came, with the resolution of ticks.
    last_heard: u64,
    last_ping: u64,
    /// Pings since then.
    unanswered: u32,
    /// Pings since its address was first reported to refuse packets; 0 once a packet of it came.
    in_doubt: u32,
    /// Nanoseconds since then in which any of its sessions was deaf because of wrong tags: see [`super::guess`].
    excused: u64,
}

impl Peer {
    /// Whether a packet came since the last tick, or last at a time that meets a condition.
    pub fn was_heard(&self, meets: impl FnOnce(u64) -> bool) -> bool {
        self.heard || meets(self.last_heard)
    }
}

/// Peers, and indexes to find them and their sessions without a search.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    entries: Vec<Option<Peer>>,
    free: Vec<u32>,
    pub hosts: Hosts,
    by_route: HashMap<Route, u32>,
    /// Whether any peer was pinged and has not answered yet, or its address is reported to refuse packets: the event
    /// loop then checks soon.
    pub any_in_doubt: bool,
    /// Sessions by the peer's route and their number and tag there. Numbers alone are reused.
    by_remote: HashMap<(Route, u64), u32>,
}

impl Peers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_route.len()
    }

    pub fn get(&self, index: u32) -> Option<&Peer> {
        self.entries.get(index as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Peer> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// The host of the peer with this index; `NONE` if there is none.
    #[inline]
    pub fn host_of(&self, index: u32) -> u32 {
        self.get(index).map_or(NONE, |peer| peer.host)
    }

    /// Whether there is a peer at `route`.
    pub fn is_peer(&self, route: Route) -> bool {
        self.by_route.contains_key(&route)
    }

    /// The share of the host of the peer with this index, possibly empty.
    pub fn share_of(&self, index: u32) -> Share {
        self.hosts.share(self.host_of(index)).copied().unwrap_or_default()
    }

    /// The same, mutable; `None` if there is no such peer.
    pub fn share_mut(&mut self, index: u32) -> Option<&mut Share> {
        let host = self.host_of(index);
        self.hosts.share_mut(host)
    }

    /// The address of the peer with this index.
    pub fn addr(&self, index: u32) -> Option<&Arc<Addr>> {
        self.get(index).map(|peer| &peer.addr)
    }

    fn add(&mut self, peer: Peer) -> u32 {
        let route = peer.route;
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(index as usize) {
            Some(entry) => *entry = Some(peer),
            None => self.entries.push(Some(peer)),
        }
        self.by_route.insert(route, index);
        index
    }

    fn remove(&mut self, index: u32) {
        if let Some(peer) = self.entries[index as usize].take() {
            self.by_route.remove(&peer.route);
            self.hosts.leave(peer.host);
            self.free.push(index);
        }
    }
}

impl Core {
    /// Whether another incarnation of an endpoint is known at `route`. Which of the two is newer is unknown: a packet
    /// of the older may come late. So the known one is pinged; if it is gone, its successor answers with a RESET, and
    /// its sessions end.
    pub fn is_contested(&mut self, route: Route, incarnation: u64) -> bool {
        let Some(&index) = self.peers.by_route.get(&route) else { return false };
        let is_other = self.peers.get(index).is_some_and(|peer| peer.incarnation != incarnation);
        if is_other {
            self.send_ping(index);
        }
        is_other
    }

    /// Adds a session to those of its peer, which is at `addr`. The address must not be contested.
    pub fn join_peer(&mut self, session: u32, addr: &Addr, route: Route, incarnation: u64) {
        let index = self.peers.by_route.get(&route).copied().unwrap_or_else(|| {
            let (last_heard, last_ping) = (self.now, self.now);
            let (sessions, first, heard, unanswered, in_doubt, excused) = (0, NONE, true, 0, 0, 0);
            let host = self.peers.hosts.join(HostName::from(addr));
            let addr = Arc::new(addr.clone());
            self.peers.add(Peer {
                route,
                addr,
                incarnation,
                sessions,
                host,
                first,
                heard,
                last_heard,
                last_ping,
                unanswered,
                in_doubt,
                excused,
                search: None,
            })
        });
        let Some(peer) = self.peers.get_mut(index) else { return };
        debug_assert_eq!(peer.incarnation, incarnation, "a contested address");
        peer.sessions += 1;
        peer.heard = true;
        let next = std::mem::replace(&mut peer.first, session);
        if next != NONE {
            self.cold[next as usize].peer_before = session;
        }
        let cold = &mut self.cold[session as usize];
        (cold.peer_before, cold.peer_next) = (NONE, next);
        let (places, accepted) = (cold.places, u32::from(cold.accepted_as.is_some()));
        self.sessions[session as usize].peer = index;
        if let Some(share) = self.peers.share_mut(index) {
            share.add_places(places);
            share.accepted += accepted;
        }
        self.peers.by_remote.insert((route, self.sessions[session as usize].remote_name()), session);
        self.arm_tick();
    }

    /// Removes a session from those of its peer, and the peer with its last session.
    pub fn leave_peer(&mut self, session: u32) {
        let entry = &mut self.sessions[session as usize];
        let index = std::mem::replace(&mut entry.peer, NONE);
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (before, next) = (self.cold[session as usize].peer_before, self.cold[session as usize].peer_next);
        match before {
            NONE => peer.first = next,
            before => self.cold[before as usize].peer_next = next,
        }
        if next != NONE {
            self.cold[next as usize].peer_before = before;
        }
        peer.sessions -= 1;
        let is_last = peer.sessions == 0;
        let name = (peer.route, entry.remote_name());
        if self.peers.by_remote.get(&name) == Some(&session) {
            self.peers.by_remote.remove(&name);
        }
        let cold = &self.cold[session as usize];
        if let Some(share) = self.peers.share_mut(index) {
            share.subtract_places(cold.places);
            share.accepted -= u32::from(cold.accepted_as.is_some());
        }
        if is_last {
            self.peers.remove(index);
        }
    }

    /// The sessions with a peer, starting at one of them.
    fn sessions_from(&self, first: u32) -> impl Iterator<Item = (u32, &Session)> {
        let some = |session: u32| (session != NONE).then_some(session);
        let next = move |session: &u32| some(self.cold[*session as usize].peer_next);
        std::iter::successors(some(first), next).map(|session| (session, &self.sessions[session as usize]))
    }

    /// Notes that a packet of this peer came.
    #[inline]
    pub fn heard_from(&mut self, index: u32) {
        if let Some(peer) = self.peers.get_mut(index) {
            peer.heard = true;
        }
    }

    /// Nanoseconds of silence after which a peer is pinged.
    pub fn ping_after(&self) -> u64 {
        nanos(self.config.peer_timeout) / 4
    }

    /// Checks every peer: pings silent ones, ends the sessions of dead ones.
    pub fn tick_peers(&mut self, routes: &mut dyn Routes) {
        let (timeout, ping_after) = (nanos(self.config.peer_timeout), self.ping_after());
        self.peers.any_in_doubt = false;
        for index in 0..self.peers.entries.len() as u32 {
            let now = self.now;
            let Some(peer) = self.peers.get_mut(index) else { continue };
            if std::mem::take(&mut peer.heard) {
                (peer.last_heard, peer.unanswered, peer.in_doubt, peer.excused) = (now, 0, 0, 0);
            }
            match routes.health(peer.route) {
                PeerHealth::Dead => {
                    self.fail_peer(index, CallError::PeerDied);
                    continue;
                }
                PeerHealth::Refused => {
                    self.doubt(index);
                    continue;
                }
                PeerHealth::Unknown | PeerHealth::Alive => peer.in_doubt = 0,
            }
            let silent = now.saturating_sub(peer.last_heard).saturating_sub(peer.excused);
            if silent >= timeout && peer.unanswered >= PINGS_BEFORE_FAILURE && now - peer.last_ping >= ping_after {
                self.fail_peer(index, CallError::PeerSilent);
            } else if now.saturating_sub(peer.last_heard) >= ping_after && now - peer.last_ping >= ping_after {
                peer.last_ping = now;
                peer.unanswered += 1;
                self.peers.any_in_doubt = true;
                self.send_ping(index);
            }
            self.tick_path(index);
        }
    }

    /// The network reports that nobody listens at a peer's address. Pings it, and takes it for dead after a few pings
    /// without an answer.
    fn doubt(&mut self, index: u32) {
        let pause = nanos(self.config.peer_timeout) / PINGS_IN_DOUBT_PER_TIMEOUT;
        self.peers.any_in_doubt = true;
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.in_doubt > 0 && now - peer.last_ping < pause {
            return;
        }
        if peer.in_doubt >= PINGS_IN_DOUBT && now.saturating_sub(peer.last_heard) >= peer.excused {
            return self.fail_peer(index, CallError::PeerDied);
        }
        peer.in_doubt += 1;
        peer.unanswered += 1;
        peer.last_ping = now;
        self.send_ping(index);
    }

    /// Pings a peer. After each ping without an answer the next one uses another of the sessions with it: either end of
    /// a session may be deaf.
    fn send_ping(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        let turn = peer.unanswered % peer.sessions.max(1);
        let open = |(_, session): &(u32, &Session)| session.state == State::Connected;
        let in_turn = self.sessions_from(peer.first).skip(turn as usize).find(open).map(|(session, _)| session);
        if let Some(session) = in_turn.or_else(|| self.connected_session_of(index)) {
            self.send_ping_on(session);
        }
    }

    /// Excuses a session's peer: the session is deaf for `nanos`, so its peer may seem silent.
    pub fn excuse(&mut self, session: u32, nanos: u64) {
        let most = dunlin_net::clock::nanos(self.config.peer_timeout).saturating_mul(EXCUSED_TIMEOUTS);
        let peer = self.sessions[session as usize].peer;
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.excused = (peer.excused + nanos).min(most);
        }
    }

    /// An open session with a peer.
    pub fn connected_session_of(&self, peer: u32) -> Option<u32> {
        let first = self.peers.get(peer).map_or(NONE, |peer| peer.first);
        let connected = self.sessions_from(first).find(|(_, session)| session.state == State::Connected);
        connected.map(|(session, _)| session)
    }

    /// Pings a session: does the peer still have it?
    pub fn send_ping_on(&mut self, session: u32) {
        let presence = Presence { incarnation: self.incarnation, token: self.now };
        self.counters.pings_sent += 1;
        self.send_control(session, Kind::Ping, &presence);
    }

    /// Audits the next few sessions, so that each gets its turn once in [`AUDIT_PERIOD_NANOS`].
    pub fn tick_audit(&mut self) {
        let table = self.sessions.len() as u64;
        let due = (self.now.saturating_sub(self.audited_at)).saturating_mul(table) / AUDIT_PERIOD_NANOS;
        if due == 0 {
            return;
        }
        self.audited_at = self.now;
        let most = (self.queue.len / AUDITS_SHARE).clamp(AUDITS_PER_TICK_MIN, AUDITS_PER_TICK_MAX);
        for _ in 0..due.min(most as u64) {
            self.audit_next = (self.audit_next + 1) % table as u32;
            let session = &self.sessions[self.audit_next as usize];
            if session.state == State::Connected {
                let was_used = session.client.iter().any(|slot| slot.sequence != 0);
                self.send_ping_on(self.audit_next);
                if was_used {
                    // The last RELEASE may have been lost, and the server may keep responses that we have.
                    self.release_later(self.audit_next);
                }
            }
        }
    }

    /// Ends every session with a peer.
    pub fn fail_peer(&mut self, peer: u32, error: CallError) {
        let first = self.peers.get(peer).map_or(NONE, |peer| peer.first);
        let ends = |(_, session): &(u32, &Session)| !matches!(session.state, State::Free | State::Ending);
        let failed: Vec<u32> = self.sessions_from(first).filter(ends).map(|(session, _)| session).collect();
        for session in failed {
            self.counters.sessions_failed += 1;
            self.end_session(session, error.clone());
        }
    }

    /// Handles a ping or its answer. If the incarnation differs from the one we know, the peer was restarted.
    pub fn on_presence(&mut self, session: u32, kind: Kind, presence: &Presence) {
        let peer = self.sessions[session as usize].peer;
        if peer == NONE {
            return;
        }
        let expected = self.peers.get(peer).map(|peer| peer.incarnation);
        if expected != Some(presence.incarnation) {
            self.fail_peer(peer, CallError::PeerReset);
        } else if kind == Kind::Ping {
            let answer = Presence { incarnation: self.incarnation, token: presence.token };
            self.send_control(session, Kind::Pong, &answer);
        } else {
            self.on_probe_answered(peer, presence.token);
        }
    }

    /// Tells the sender of a packet that its session does not exist here.
    pub fn send_reset(&mut self, to: Addr, about: &Header) {
        if self.resets_left == 0 {
            return;
        }
        self.resets_left -= 1;
        self.arm_tick();
        let token = about.session as u64 | (about.tag as u64) << 24;
        let body = Presence { incarnation: self.incarnation, token };
        self.tx.push_stranger(to, &Core::sessionless(Kind::Reset), &body);
    }

    /// A peer reports that it does not know a session of ours. It must name the session as only the two of us can.
    pub fn on_reset(&mut self, from: Option<Route>, reset: &Presence) {
        let heard = from.filter(|from| self.hears_resets(*from));
        let named = heard.and_then(|from| self.peers.by_remote.get(&(from, reset.token)).copied());
        let is_open = |index: &u32| matches!(self.sessions[*index as usize].state, State::Connected | State::Closing);
        let Some(index) = named.filter(is_open) else {
            self.counters.dropped_control += 1;
            self.note_wrong_reset(from);
            return;
        };
        let peer = self.sessions[index as usize].peer;
        let restarted = self.peers.get(peer).is_some_and(|peer| peer.incarnation != reset.incarnation);
        if self.sessions[index as usize].state == State::Closing {
            // It was closing already, and its acknowledgement was lost.
            self.on_close_ack(index);
        } else if restarted {
            self.fail_peer(peer, CallError::PeerReset);
        } else {
            self.counters.sessions_failed += 1;
            self.end_session(index, CallError::PeerReset);
        }
    }
}
