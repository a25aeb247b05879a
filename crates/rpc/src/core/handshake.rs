//! The start of sessions: CONNECT, COOKIE, CONNECT again with the cookie, ACCEPT or REFUSE.
//!
//! Until a client has sent back a cookie that was sent only to its own address, the server keeps no state about it and
//! sends it nothing longer than what it sent. Every step may be lost or repeated: the client retransmits CONNECT, and a
//! repeated CONNECT finds the session that the first one created.

use std::hash::Hasher;
use std::task::Waker;

use dunlin_net::clock::nanos;
use dunlin_net::{Addr, PeerHealth, Route};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::loan::Loan;
use super::places::{Admission, Places};
use super::random::SecretRandom;
use super::session::{SessionRef, State};
use super::share::HostName;
use super::timers::token_of_session;
use super::{Core, Routes, packet_data_bytes};
use crate::error::ConnectError;
use crate::mutation::{Mutation, is_planted};
use crate::wire::control::{Accept, Body, Connect, Cookie, CookieBytes, Refuse, RefuseReason, SLOTS_MAX};
use crate::wire::header::VERSION;
use crate::wire::{Header, Kind, MASK_24};

/// How long a cookie is valid, at least; at most twice as long.
const COOKIE_EPOCH_NANOS: u64 = 10_000_000_000;
/// First wait before CONNECT is retransmitted; it doubles up to [`CONNECT_REPEAT_NANOS_MAX`].
const CONNECT_REPEAT_NANOS: u64 = 5_000_000;
const CONNECT_REPEAT_NANOS_MAX: u64 = 200_000_000;
/// CONNECTs sent to an address that is reported to refuse packets, including the one before the report.
const ATTEMPTS_IF_REFUSED: u32 = 4;
/// How long an answer to them is waited for after the report, unless the address is on this host: longer than a round
/// trip of the paths that datacenters have between them.
const ANSWER_NANOS_IF_REFUSED: u64 = 250_000_000;

/// How a repeated CONNECT finds its accepted session: by the client's route, nonce and incarnation. Another address
/// that draws the same numbers, or has overheard them, does not find it.
pub(crate) type Accepted = (Route, u64, u64);

/// A session requested by the application, before the event loop has seen it.
pub(crate) struct Opening {
    pub addr: Addr,
    /// Nanoseconds that it may take, if not the endpoint's setting.
    pub timeout: Option<u64>,
    /// Shared with the future that waits.
    pub progress: std::rc::Rc<std::cell::RefCell<OpenProgress>>,
}

/// What the future that waits for a session can see.
#[derive(Default)]
pub(crate) struct OpenProgress {
    pub result: Option<Result<SessionRef, ConnectError>>,
    pub waker: Option<Waker>,
    /// Set when the future is dropped: the session is no longer wanted.
    pub abandoned: bool,
}

impl OpenProgress {
    /// Stores the result; wake the waiters once nobody borrows the core.
    pub fn finish(&mut self, result: Result<SessionRef, ConnectError>, woken: &mut Vec<Waker>) {
        self.result = Some(result);
        woken.extend(self.waker.take());
    }
}

/// A session between CONNECT and ACCEPT.
pub(crate) struct OpenState {
    addr: Addr,
    nonce: u64,
    cookie: CookieBytes,
    give_up: u64,
    /// When CONNECT was sent last.
    connect_sent: u64,
    /// The first report that its address refuses packets, as long as it does.
    hint: Option<Hint>,
    /// Until when it keeps what it was given places for at the start, although others want them. It is given them once.
    start_until: Option<u64>,
    progress: std::rc::Rc<std::cell::RefCell<OpenProgress>>,
}

/// A report that an address refuses packets.
struct Hint {
    /// When it was seen.
    seen_at: u64,
    /// CONNECTs sent before the one that it followed.
    attempts_before: u32,
}

impl std::fmt::Debug for OpenState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenState({})", self.addr)
    }
}

/// The key of this endpoint's cookies.
pub(crate) struct CookieKey([u8; 16]);

impl CookieKey {
    pub fn new(random: &mut SecretRandom) -> CookieKey {
        CookieKey(random.next_u128().to_le_bytes())
    }

    /// The cookie of a client at `addr`: SipHash-2-4 with 128 bits, over everything that must not change.
    fn cookie(&self, addr: &Addr, connect: &Connect, epoch: u64) -> CookieBytes {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(addr.to_string().as_bytes());
        hasher.write_u64(connect.nonce);
        hasher.write_u64(connect.incarnation);
        hasher.write_u32(connect.session);
        hasher.write_u64(epoch);
        hasher.finish128().as_bytes()
    }
}

/// How long the CONNECT is waited for that follows on so many.
fn repeat_after(attempts: u32) -> u64 {
    (CONNECT_REPEAT_NANOS << attempts.min(10)).min(CONNECT_REPEAT_NANOS_MAX)
}

impl Core {
    /// Starts the sessions that the application requested.
    pub fn start_openings(&mut self, routes: &mut dyn Routes) {
        while let Some(opening) = self.openings.pop_front() {
            if opening.progress.borrow().abandoned {
                continue;
            }
            let progress = opening.progress.clone();
            if let Err(error) = self.start_opening(routes, opening) {
                progress.borrow_mut().finish(Err(error), &mut self.woken);
            }
        }
    }

    fn start_opening(&mut self, routes: &mut dyn Routes, opening: Opening) -> Result<(), ConnectError> {
        let Opening { addr, timeout, progress } = opening;
        let give_up = self.now.saturating_add(timeout.unwrap_or(nanos(self.config.connect_timeout)));
        if self.shutting_down {
            return Err(ConnectError::ShutDown);
        }
        if self.session_count >= self.config.sessions_max {
            return Err(ConnectError::TooManySessions { sessions: self.session_count });
        }
        let mut wanted = self.places_wanted();
        if self.shares_credits() {
            // The other credits get places once the server has answered, so a silent server keeps no places from
            // others.
            wanted = wanted.least();
        }
        let places = match self.admission(wanted) {
            Admission::Full => wanted,
            Admission::Least => wanted.least(),
            Admission::Unplaced => wanted.unplaced(),
            Admission::Refused => {
                let (queue, reserved) = (self.queue.len, self.queue.reserved);
                return Err(ConnectError::NoCredits { queue, reserved, needed: wanted.sum() });
            }
        };
        let route = routes.resolve(&addr).map_err(|error| ConnectError::unreachable(&addr, &error))?;
        let index = self.take_session(places);
        let nonce = self.random.next_u64();
        let session = &mut self.sessions[index as usize];
        session.state = State::Connecting;
        session.route = route;
        self.set_path(index, routes.path(route));
        let open = OpenState {
            addr,
            nonce,
            cookie: CookieBytes::default(),
            give_up,
            connect_sent: self.now,
            hint: None,
            start_until: None,
            progress,
        };
        self.cold[index as usize].opening = Some(Box::new(open));
        let timer = self.wheel.create(token_of_session(index));
        self.cold[index as usize].timer = Some(timer);
        self.send_connect(index);
        Ok(())
    }

    /// The places that a session opened here gets, if there are enough.
    fn places_wanted(&self) -> Places {
        Places::new(self.config.reverse_credits, self.config.credits)
    }

    /// Takes places for all credits of a session whose server has answered, if there are enough.
    fn take_start(&mut self, index: u32) {
        let (least, wanted) = (self.cold[index as usize].places, self.places_wanted());
        self.give_up_places(index);
        let is_room = self.admission(wanted) == Admission::Full;
        self.take_places(index, if is_room { wanted } else { least });
    }

    /// Takes the places for the start from a session whose server has said COOKIE, and then nothing in the time until
    /// CONNECT is repeated; says whether it had any. The server may have opened the session with them, so CONNECT
    /// begins anew: an ACCEPT to the nonce and tag before is answered with a RESET.
    pub fn withdraw_start(&mut self, index: u32) -> bool {
        let places = self.cold[index as usize].places;
        let Some(open) = &mut self.cold[index as usize].opening else { return false };
        if open.start_until.is_none_or(|until| self.now < until) || places.sum() <= places.least().sum() {
            return false;
        }
        (open.nonce, open.cookie) = (self.random.next_u64(), CookieBytes::default());
        self.sessions[index as usize].local_tag = self.random.next_tag();
        self.change_places(index, |places| *places = places.least());
        self.send_connect(index);
        true
    }

    fn send_connect(&mut self, index: u32) {
        let session = &self.sessions[index as usize];
        let (route, tag) = (session.route, session.local_tag);
        let places = self.cold[index as usize].places;
        let cold = &mut self.cold[index as usize];
        let Some(open) = &mut cold.opening else { return };
        let connect = Connect {
            versions: (VERSION, VERSION),
            slots: self.config.slots,
            credits: self.config.credits,
            reverse_credits: self.config.reverse_credits,
            mtu: cold.path.mtu,
            message_bytes_max: self.config.message_bytes_max as u32,
            session: index,
            tag,
            incarnation: self.incarnation,
            nonce: open.nonce,
            cookie: open.cookie,
            // One credit exists even without a place. The server uses these numbers only together with a valid cookie.
            credits_start: places.outbound.max(1),
            reverse_start: places.inbound.max(self.config.reverse_credits.min(1)),
        };
        self.tx.push_control(route, &Core::sessionless(Kind::Connect), &connect);
        open.connect_sent = self.now;
        let wait = repeat_after(cold.attempts);
        cold.attempts += 1;
        if let Some(timer) = cold.timer {
            self.wheel.arm(timer, (self.now + wait).min(open.give_up));
        }
    }

    /// The timer of a session that is being opened has fired.
    pub fn on_connect_timer(&mut self, routes: &mut dyn Routes, index: u32) {
        let Some(open) = &self.cold[index as usize].opening else { return };
        if open.progress.borrow().abandoned {
            return self.fail_opening(index, ConnectError::ShutDown);
        }
        let addr = open.addr.clone();
        if self.now >= open.give_up {
            return self.fail_opening(index, ConnectError::TimedOut { addr });
        }
        let health = routes.health(self.sessions[index as usize].route);
        let cold = &mut self.cold[index as usize];
        let Some(open) = &mut cold.opening else { return };
        let is_gone = match health {
            PeerHealth::Dead => true,
            // Anyone can forge such a report. Each CONNECT since then checks whether it is true.
            PeerHealth::Refused => {
                let attempts_before = cold.attempts.saturating_sub(1);
                let hint = open.hint.get_or_insert(Hint { seen_at: self.now, attempts_before });
                let is_time = cold.path.is_local || self.now - hint.seen_at >= ANSWER_NANOS_IF_REFUSED;
                is_time && cold.attempts >= hint.attempts_before + ATTEMPTS_IF_REFUSED
            }
            PeerHealth::Unknown | PeerHealth::Alive => {
                open.hint = None;
                false
            }
        };
        if is_gone {
            return self.fail_opening(index, ConnectError::nobody_listens(&addr));
        }
        self.send_connect(index);
    }

    /// Ends a session that did not open.
    pub fn fail_opening(&mut self, index: u32, error: ConnectError) {
        if let Some(open) = self.cold[index as usize].opening.take() {
            open.progress.borrow_mut().finish(Err(error), &mut self.woken);
            self.free_session(index);
        }
    }

    /// A stranger requests a session.
    pub fn on_connect(&mut self, routes: &mut dyn Routes, source: Option<Addr>, body: &[u8]) {
        let (Some(addr), Ok(connect)) = (source, Connect::parse(body)) else {
            self.counters.dropped_control += 1;
            return;
        };
        let epoch = self.now / COOKIE_EPOCH_NANOS;
        let expected = self.cookie_key.cookie(&addr, &connect, epoch);
        let previous = epoch.checked_sub(1).map(|epoch| self.cookie_key.cookie(&addr, &connect, epoch));
        if connect.cookie != expected && Some(connect.cookie) != previous {
            let header = Header::new(Kind::Cookie, 0, connect.session, 0, connect.tag);
            let answer = Cookie { nonce: connect.nonce, cookie: expected };
            return self.tx.push_stranger(addr, &header, &answer);
        }
        // Look up the route now: the transport's own look-up preceded the other packets of the burst, which may have
        // made this stranger a peer. The route is held while the packet is processed, and by each session that is
        // created.
        let Ok(route) = routes.resolve(&addr) else {
            return self.refuse(addr, &connect, RefuseReason::Settings);
        };
        self.on_proven_connect(routes, route, &addr, &connect);
        routes.release(route);
    }

    fn refuse(&mut self, addr: Addr, connect: &Connect, reason: RefuseReason) {
        self.counters.sessions_refused += 1;
        let header = Header::new(Kind::Refuse, 0, connect.session, 0, connect.tag);
        self.tx.push_stranger(addr, &header, &Refuse { nonce: connect.nonce, reason });
    }

    /// A client that has proven its address requests a session, or has missed our ACCEPT.
    fn on_proven_connect(&mut self, routes: &mut dyn Routes, route: Route, addr: &Addr, connect: &Connect) {
        if self.is_contested(route, connect.incarnation) {
            // The client retransmits its CONNECT, and by then this is resolved.
            return;
        }
        let index = match self.accepted.get(&(route, connect.nonce, connect.incarnation)) {
            Some(&index) if !is_planted(Mutation::AcceptedTwice) => index,
            _ => match self.accept(routes, addr, connect) {
                Ok(index) => index,
                Err(reason) => return self.refuse(addr.clone(), connect, reason),
            },
        };
        let session = &self.sessions[index as usize];
        let cold = &self.cold[index as usize];
        let accept = Accept {
            nonce: connect.nonce,
            version: VERSION,
            slots: session.slots,
            credits: cold.places.inbound_agreed,
            reverse_credits: cold.places.outbound_agreed,
            credits_start: cold.loan.granted(cold.places.inbound_agreed),
            reverse_start: session.credits_max,
            mtu: cold.path.mtu.min(connect.mtu),
            message_bytes_max: session.message_bytes_max,
            session: index,
            tag: session.local_tag & MASK_24,
            incarnation: self.incarnation,
        };
        self.send_control(index, Kind::Accept, &accept);
        self.search_path(index);
    }

    /// Creates the session of a client that has proven its address.
    fn accept(&mut self, routes: &mut dyn Routes, addr: &Addr, connect: &Connect) -> Result<u32, RefuseReason> {
        if self.shutting_down {
            return Err(RefuseReason::ShuttingDown);
        }
        if !(connect.versions.0..=connect.versions.1).contains(&VERSION) {
            return Err(RefuseReason::Version);
        }
        let starts = connect.credits_start == 0 || (connect.reverse_start == 0) != (connect.reverse_credits == 0);
        if (connect.mtu as usize) < Core::MTU_MIN || connect.slots == 0 || connect.credits == 0 || starts {
            return Err(RefuseReason::Settings);
        }
        if self.session_count >= self.config.sessions_max {
            return Err(RefuseReason::TooManySessions);
        }
        // What the client may send us, and what we may send to it.
        let inbound = connect.credits.min(1024);
        let outbound = connect.reverse_credits.min(1024);
        let start = (inbound.min(connect.credits_start), outbound.min(connect.reverse_start));
        let agreed = Places::new(inbound, outbound);
        // If credits are shared, what the client has no places for at the start need not have any here either.
        let wanted =
            if self.shares_credits() { Places { inbound: start.0, outbound: start.1, ..agreed } } else { agreed };
        let host = HostName::from(addr);
        self.check_share(&host, wanted)?;
        let fits_share = wanted.sum() <= self.places_left(self.peers.hosts.share_of(&host).places_due());
        let (places, start) = match self.admission(if fits_share { wanted } else { wanted.least() }) {
            Admission::Full if fits_share => (wanted, start),
            Admission::Full => (wanted.least(), (1, outbound.min(1))),
            Admission::Least => (wanted.least(), (1, outbound.min(1))),
            Admission::Unplaced => (wanted.unplaced(), (1, outbound.min(1))),
            Admission::Refused => return Err(RefuseReason::NoCredits),
        };
        let route = routes.resolve(addr).map_err(|_| RefuseReason::Settings)?;
        let index = self.take_session(places);
        self.cold[index as usize].loan = Loan::new(start.1, start.0, self.now);
        self.cold[index as usize].accepted_as = Some((connect.nonce, connect.incarnation));
        self.accepted.insert((route, connect.nonce, connect.incarnation), index);
        self.sessions[index as usize].slots = connect.slots.min(self.config.slots);
        self.sessions[index as usize].message_bytes_max =
            connect.message_bytes_max.min(self.config.message_bytes_max as u32);
        let path = routes.path(route);
        self.set_path(index, path);
        let mtu = path.mtu.min(connect.mtu) as usize;
        self.establish(index, route, (connect.session, connect.tag), start.1, mtu);
        self.join_peer(index, addr, route, connect.incarnation);
        self.limit_to_path(index, mtu as u16);
        self.counters.sessions_accepted += 1;
        Ok(index)
    }

    /// Stores what was agreed; the session is now open.
    fn establish(&mut self, index: u32, route: Route, remote: (u32, u32), credits: u16, mtu: usize) {
        self.mtu = self.mtu.max(mtu);
        let slots = self.sessions[index as usize].slots;
        let session = &mut self.sessions[index as usize];
        session.route = route;
        (session.remote_session, session.remote_tag) = remote;
        (session.credits, session.credits_max) = (credits as i16, credits);
        session.may_borrow = credits < self.cold[index as usize].places.outbound_agreed;
        session.packet_data = packet_data_bytes(mtu) as u16;
        session.packet_data_max = session.packet_data;
        session.free_slots = ((1u16 << slots) - 1) as u8;
        session.state = State::Connected;
    }

    /// Whether a packet that was not accepted is for a session all the same: it has overtaken the ACCEPT, or came in
    /// the same burst.
    pub fn knows_tag(&self, header: &Header) -> bool {
        self.sessions
            .get(header.session as usize)
            .is_some_and(|s| s.state != State::Free && s.local_tag & MASK_24 == header.tag)
    }

    /// The opening session that an answer to a CONNECT belongs to.
    fn opening_of(&mut self, header: &Header, from: Option<Route>, nonce: u64) -> Option<u32> {
        let index = header.session;
        let found = self.sessions.get(index as usize).is_some_and(|session| {
            let open = &self.cold[index as usize].opening;
            session.state == State::Connecting
                && session.local_tag == header.tag
                && from == Some(session.route)
                && open.as_ref().is_some_and(|open| open.nonce == nonce)
        });
        if !found {
            self.counters.dropped_control += 1;
        }
        found.then_some(index)
    }

    /// The server asks for proof of our address.
    pub fn on_cookie(&mut self, header: &Header, from: Option<Route>, body: &[u8]) {
        let Ok(cookie) = Cookie::parse(body) else {
            self.counters.dropped_control += 1;
            return;
        };
        let Some(index) = self.opening_of(header, from, cookie.nonce) else { return };
        self.note_handshake_rtt(index, 1);
        let cold = &mut self.cold[index as usize];
        let Some(open) = &mut cold.opening else { return };
        // The same cookie again answers a repetition; the timer repeats for us.
        if open.cookie == cookie.cookie {
            return;
        }
        open.cookie = cookie.cookie;
        if self.config.credit_sharing.is_on() && open.start_until.is_none() {
            // No CONNECT before had a cookie, so no session begins with what one of them said.
            open.start_until = Some(self.now + repeat_after(cold.attempts));
            self.take_start(index);
        }
        self.send_connect(index);
    }

    /// Notes the round trip of an answered CONNECT, if that was the `attempt`-th and so no retransmission. It involves
    /// no handler and few packets: it is the path alone.
    fn note_handshake_rtt(&mut self, index: u32, attempt: u32) {
        let cold = &mut self.cold[index as usize];
        if let Some(open) = cold.opening.as_ref().filter(|_| cold.attempts == attempt) {
            let rtt = self.now.saturating_sub(open.connect_sent).max(1);
            cold.rtt_min = Some(cold.rtt_min.map_or(rtt, |known| known.min(rtt)));
        }
    }

    /// The server has opened the session.
    pub fn on_accept(&mut self, header: &Header, from: Option<Route>, source: Option<Addr>, body: &[u8]) {
        let Ok(accept) = Accept::parse(body) else {
            self.counters.dropped_control += 1;
            return;
        };
        let Some(index) = self.opening_of(header, from, accept.nonce) else {
            // For a session that was given up here, or that a repeated CONNECT opened twice: the server need not keep
            // it.
            let is_known =
                self.sessions.get(header.session as usize).is_some_and(|s| s.local_tag & MASK_24 == header.tag);
            if let (false, Some(source)) = (is_known, source) {
                self.send_reset(source, header);
            }
            return;
        };
        let mtu = accept.mtu as usize;
        let places = self.cold[index as usize].places;
        let (outbound, inbound) = (places.outbound.max(1), places.inbound.max(self.config.reverse_credits.min(1)));
        let starts_agreed = (1..=outbound.min(accept.credits)).contains(&accept.credits_start)
            && accept.reverse_start <= inbound.min(accept.reverse_credits)
            && (accept.reverse_start == 0) == (accept.reverse_credits == 0);
        let agreed = starts_agreed
            && accept.version == VERSION
            && (1..=self.config.slots.min(SLOTS_MAX as u8)).contains(&accept.slots)
            && (1..=self.config.credits).contains(&accept.credits)
            && accept.reverse_credits <= self.config.reverse_credits
            && (Core::MTU_MIN..=self.cold[index as usize].path.mtu as usize).contains(&mtu)
            && accept.message_bytes_max as usize <= self.config.message_bytes_max;
        if !agreed {
            self.counters.dropped_control += 1;
            return;
        }
        let route = self.sessions[index as usize].route;
        if self.is_contested(route, accept.incarnation) {
            // Our CONNECT is retransmitted, and by then this is resolved.
            return;
        }
        self.note_handshake_rtt(index, 2);
        let cold = &mut self.cold[index as usize];
        let Some(open) = cold.opening.take() else { return };
        if let Some(timer) = cold.timer.take() {
            self.wheel.remove(timer);
        }
        self.sessions[index as usize].slots = accept.slots;
        self.sessions[index as usize].message_bytes_max = accept.message_bytes_max;
        self.give_up_places(index);
        let mut agreed = Places::new(accept.reverse_credits, accept.credits);
        if self.shares_credits() {
            let start = Places { inbound: accept.reverse_start, outbound: accept.credits_start, ..agreed };
            agreed = start.at_most(places);
        }
        self.take_places(index, agreed);
        self.cold[index as usize].loan = Loan::new(accept.credits_start, accept.reverse_start, self.now);
        self.establish(index, route, (accept.session, accept.tag), accept.credits_start, mtu);
        self.join_peer(index, &open.addr, route, accept.incarnation);
        self.limit_to_path(index, accept.mtu);
        self.search_path(index);
        self.counters.sessions_opened += 1;
        let session = self.session_ref(index);
        if open.progress.borrow().abandoned {
            self.close_session(session);
        } else {
            open.progress.borrow_mut().finish(Ok(session), &mut self.woken);
        }
    }

    /// The server has not opened the session.
    pub fn on_refuse(&mut self, header: &Header, from: Option<Route>, body: &[u8]) {
        let Ok(refuse) = Refuse::parse(body) else {
            self.counters.dropped_control += 1;
            return;
        };
        if let Some(index) = self.opening_of(header, from, refuse.nonce)
            && let Some(open) = &self.cold[index as usize].opening
        {
            let addr = open.addr.clone();
            self.fail_opening(index, ConnectError::Refused { addr, reason: refuse.reason });
        }
    }
}
