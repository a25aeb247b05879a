//! Sessions: what two endpoints agreed, with the slots and credits of both directions.

use std::ops::{Deref, DerefMut};

use dunlin_net::Route;
use dunlin_net::clock::nanos;

use super::handshake::OpenState;
use super::loan::Loan;
use super::places::Places;
use super::recovery::Silence;
use super::{Core, NONE, Path};
use crate::error::CallError;
use crate::observe::Observed;
use crate::timer::TimerId;
use crate::wire::control::SLOTS_MAX;

/// Identifies a session of this endpoint. The generation distinguishes it from a later session with the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionRef {
    pub index: u32,
    pub generation: u32,
}

/// The state of a session. See the state diagrams of `docs/wire-protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// CONNECT has been sent.
    Connecting,
    Connected,
    /// CLOSE has been sent.
    Closing,
    /// Its calls are being ended.
    Ending,
}

/// A slot for our calls. Its sequence number lives as long as the session; the call's state is pooled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientSlot {
    /// Sequence number of the last request sent in this slot.
    pub sequence: u32,
    /// Its call while that is in progress, otherwise `NONE`.
    pub call: u32,
}

/// A slot for the peer's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerSlot {
    /// Sequence number of the last request seen in this slot: no request with this or an earlier number starts a
    /// handler again.
    pub sequence: u32,
    /// Its state while that is needed, otherwise `NONE`.
    pub serve: u32,
}

/// The part of a session that every packet needs: four cache lines, the first for all packets, then one for each
/// direction, and one of counters.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Session {
    pub state: State,
    /// Slots that no call uses, a bit each.
    pub free_slots: u8,
    /// Requests in progress at the same time, as agreed.
    pub slots: u8,
    /// Slots whose call waits for credits, a bit each.
    pub stalled: u8,
    pub route: Route,
    pub local_tag: u32,
    pub remote_session: u32,
    pub remote_tag: u32,
    /// Free credits. Negative while this end gives back more than are free: credits that come back are then not spent.
    pub credits: i16,
    pub credits_max: u16,
    /// Data bytes per packet: for what is sent from now on, and the maximum that the two ends agreed.
    pub packet_data: u16,
    pub packet_data_max: u16,
    pub queued: u16,
    pub peer: u32,
    pub generation: u32,
    /// Smoothed round-trip time and its variation, in nanoseconds, saturated; zero before the first sample.
    pub srtt: u32,
    pub rttvar: u32,
    /// Calls that wait for a slot, linked through [`super::call::Call::next`].
    pub queue_head: u32,
    pub queue_tail: u32,
    pub message_bytes_max: u32,
    /// Whether it is in [`Core::unreleased`].
    pub unreleased: bool,
    /// Whether congestion control must be asked before a packet of a call is sent. Such a session does not borrow more
    /// credits.
    pub limited: bool,
    /// What its timeouts depend on besides the round trip.
    pub timing: Timing,
    /// Whether it asks for more credits when calls wait for some.
    pub may_borrow: bool,

    pub client: Line<[ClientSlot; SLOTS_MAX]>,
    pub server: Line<[ServerSlot; SLOTS_MAX]>,
    pub traffic: Line<Traffic>,
}

/// What the timeouts of a session depend on besides its round trip, in one byte of its first cache line: whether its
/// packets stay on this host, and how often the timeout is doubled until there is a new round-trip sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Timing(u8);

impl Timing {
    const LOCAL: u8 = 1;
    const BACKOFF_SHIFT: u32 = 1;
    /// Maximum number of doublings.
    pub const BACKOFF_MAX: u32 = 20;

    fn set_local(&mut self, is_local: bool) {
        self.0 = self.0 & !Timing::LOCAL | u8::from(is_local);
    }

    /// Index in [`Core::rto_min`].
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0 & Timing::LOCAL)
    }

    #[inline]
    fn backoff(self) -> u32 {
        u32::from(self.0 >> Timing::BACKOFF_SHIFT)
    }

    fn set_backoff(&mut self, doublings: u32) {
        self.end_backoff();
        self.0 |= (doublings.min(Timing::BACKOFF_MAX) as u8) << Timing::BACKOFF_SHIFT;
    }

    #[inline]
    fn end_backoff(&mut self) {
        self.0 &= Timing::LOCAL;
    }
}

/// Maximum number of times that timeouts double, however many there were.
const DOUBLINGS_MAX: u8 = 16;

const _: () = assert!(size_of::<Session>() == 4 * 64, "a session is four cache lines");

/// A value that starts a cache line of its own.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Line<T>(T);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Line<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Packets and bytes of a session in either direction, including retransmissions and control packets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub rx_packets: u64,
    pub rx_bytes: u64,
}

const _: () = assert!(size_of::<SessionCold>() <= 3 * 64, "an idle session costs at most 1 KiB, all told");

/// The rest of a session.
#[derive(Debug)]
pub(crate) struct SessionCold {
    /// Neighbours among the sessions with the same peer.
    pub peer_before: u32,
    pub peer_next: u32,
    /// What it holds of the receive queue, and its loans of credits.
    pub places: Places,
    pub loan: Loan,
    /// Whether it is in [`Core::loans_pending`]. That entry outlives the session: the next one at this index finds it.
    pub is_loan_pending: bool,
    pub retransmissions: u32,
    /// The state of the peer's silence; see [`Core::awaits_life`].
    pub silence: Silence,
    /// How long to wait for a packet that was overtaken, in quarters of a round trip.
    pub patience_quarters: u8,
    pub timer: Option<TimerId>,
    pub attempts: u32,
    /// Shortest known round trip, in nanoseconds: that of the handshake. `None` if it was ambiguous, or measured by the
    /// other side.
    pub rtt_min: Option<u64>,
    /// Set once its address was resolved.
    pub path: Path,
    /// Nonce and incarnation of the client, for an accepted session: together with its route, the key in
    /// [`Core::accepted`].
    pub accepted_as: Option<(u64, u64)>,
    /// For a session that was opened here, until its owner has seen that it is open.
    pub opening: Option<Box<OpenState>>,
    /// The wakers to call at the end of [`State::Closing`].
    pub closers: Vec<std::task::Waker>,
    /// Set once the application asked for it.
    pub observed: Option<Box<Observed>>,
}

impl Session {
    fn new(generation: u32) -> Session {
        Session {
            state: State::Free,
            free_slots: 0,
            slots: 0,
            stalled: 0,
            route: Route(NONE),
            local_tag: 0,
            remote_session: 0,
            remote_tag: 0,
            credits: 0,
            credits_max: 0,
            packet_data: 0,
            packet_data_max: 0,
            queued: 0,
            peer: NONE,
            generation,
            srtt: 0,
            rttvar: 0,
            queue_head: NONE,
            queue_tail: NONE,
            message_bytes_max: 0,
            unreleased: false,
            limited: false,
            timing: Timing::default(),
            may_borrow: false,
            client: Line([ClientSlot { sequence: 0, call: NONE }; SLOTS_MAX]),
            server: Line([ServerSlot { sequence: 0, serve: NONE }; SLOTS_MAX]),
            traffic: Line(Traffic::default()),
        }
    }

    /// The peer's name for it, which only the two ends know: the token of a RESET.
    pub fn remote_name(&self) -> u64 {
        self.remote_session as u64 | (self.remote_tag as u64) << 24
    }

    /// A part of `nanos`, different for each session. There may be very many sessions with a single credit: if all lost
    /// their packets at once, they must not all retransmit at once.
    #[cold]
    fn spread(&self, nanos: u64, doublings: u32) -> u64 {
        let mixed = (self.local_tag ^ doublings << 24).wrapping_mul(0x9e37_79b1) >> 16;
        (nanos >> 16) * u64::from(mixed)
    }

    /// Credits that it has beyond its own one, including those that it gives back as soon as they return.
    pub fn borrowed(&self) -> u16 {
        self.credits_max.saturating_sub(1) + self.credits.min(0).unsigned_abs()
    }

    /// Counts a packet that is queued for sending.
    #[inline]
    pub fn count_tx(&mut self, bytes: usize) {
        self.traffic.tx_packets += 1;
        self.traffic.tx_bytes += bytes as u64;
    }

    /// Takes a round-trip sample (RFC 6298's estimator), from a packet that was sent only once. Ends a back-off.
    #[inline]
    pub fn sample_rtt(&mut self, nanos: u64) {
        self.timing.end_backoff();
        let sample = nanos.clamp(1, u32::MAX as u64 / 2) as u32;
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (sample, sample / 2);
        } else {
            let error = sample.abs_diff(self.srtt);
            self.rttvar = self.rttvar - self.rttvar / 4 + error / 4;
            self.srtt = self.srtt - self.srtt / 8 + sample / 8;
        }
    }
}

impl SessionCold {
    fn new() -> SessionCold {
        SessionCold {
            peer_before: NONE,
            peer_next: NONE,
            places: Places::default(),
            loan: Loan::default(),
            is_loan_pending: false,
            retransmissions: 0,
            silence: Silence::default(),
            patience_quarters: super::recovery::PATIENCE_QUARTERS,
            timer: None,
            attempts: 0,
            rtt_min: None,
            path: Path { mtu: 0, is_local: false, is_mtu_certain: true },
            accepted_as: None,
            opening: None,
            closers: Vec::new(),
            observed: None,
        }
    }
}

impl Core {
    /// Allocates a session with a new tag and these places of the receive queue. The caller has checked the limits.
    pub fn take_session(&mut self, places: Places) -> u32 {
        let index = self.free_sessions.pop().unwrap_or_else(|| {
            self.sessions.push(Session::new(0));
            self.cold.push(SessionCold::new());
            self.sessions.len() as u32 - 1
        });
        let session = &mut self.sessions[index as usize];
        // An earlier session at this index may have left it in the queue of releases, and among pending loans.
        let (unreleased, is_loan_pending) = (session.unreleased, self.cold[index as usize].is_loan_pending);
        *session = Session::new(session.generation.wrapping_add(1));
        session.unreleased = unreleased;
        session.limited = self.congestion.limits_all();
        session.local_tag = self.random.next_tag();
        self.cold[index as usize] = SessionCold { is_loan_pending, ..SessionCold::new() };
        self.session_count += 1;
        self.take_places(index, places);
        self.arm_tick();
        index
    }

    /// Sets the path to the peer.
    pub fn set_path(&mut self, index: u32, path: Path) {
        self.cold[index as usize].path = path;
        self.sessions[index as usize].timing.set_local(path.is_local);
    }

    /// Frees a session whose calls and requests have ended.
    pub fn free_session(&mut self, index: u32) {
        let session = &mut self.sessions[index as usize];
        debug_assert!(session.client.iter().all(|slot| slot.call == NONE) && session.queue_head == NONE);
        debug_assert!(session.server.iter().all(|slot| slot.serve == NONE));
        session.state = State::Free;
        session.local_tag = 0;
        let route = session.route;
        self.leave_peer(index);
        self.give_up_places(index);
        self.end_silence(index);
        let cold = &mut self.cold[index as usize];
        if let Some(timer) = cold.timer.take() {
            self.wheel.remove(timer);
        }
        if let Some((nonce, incarnation)) = cold.accepted_as.take() {
            self.accepted.remove(&(route, nonce, incarnation));
        }
        if route.0 != NONE {
            self.idle_routes.push(route);
        }
        self.congestion.forget(index);
        self.session_count -= 1;
        self.free_sessions.push(index);
    }

    /// The session that a handle names, if it still exists.
    #[inline]
    pub fn session(&self, session: SessionRef) -> Option<&Session> {
        let found = self.sessions.get(session.index as usize)?;
        (found.generation == session.generation && found.state != State::Free).then_some(found)
    }

    pub fn session_ref(&self, index: u32) -> SessionRef {
        SessionRef { index, generation: self.sessions[index as usize].generation }
    }

    /// Notes that a call that was sent more than once was answered `nanos` after its first copy. Which copy was
    /// answered is unknown (Karn's rule), so this is no sample; but if handlers became slower than the timeout, there
    /// would never be one. So the timeout stays as long as this call took, until a call is answered that was sent only
    /// once.
    #[cold]
    pub fn back_off(&mut self, index: u32, nanos: u64) {
        let doublings = (self.sessions[index as usize].timing.backoff()..Timing::BACKOFF_MAX).find(|doublings| {
            self.sessions[index as usize].timing.set_backoff(*doublings);
            self.rto(index, 0) > nanos
        });
        self.sessions[index as usize].timing.set_backoff(doublings.unwrap_or(Timing::BACKOFF_MAX));
    }

    /// Retransmission timeout of a session after `retries` timeouts in a row, in nanoseconds.
    #[inline]
    pub fn rto(&self, index: u32, retries: u8) -> u64 {
        let doublings = u32::from(retries.min(DOUBLINGS_MAX)) + self.sessions[index as usize].timing.backoff();
        self.rto_doubled(index, doublings)
    }

    /// The same for what was sent before the timeout was backed off.
    pub fn rto_before_backoff(&self, index: u32, retries: u8) -> u64 {
        self.rto_doubled(index, u32::from(retries.min(DOUBLINGS_MAX)))
    }

    #[inline]
    fn rto_doubled(&self, index: u32, doublings: u32) -> u64 {
        let session = &self.sessions[index as usize];
        let measured = session.srtt as u64 + 4 * session.rttvar as u64;
        let max = nanos(self.config.rto_max);
        let base = if session.srtt == 0 {
            nanos(self.config.rto_initial)
        } else {
            measured.clamp(self.rto_min[session.timing.place()], max)
        };
        let timeout = base.checked_shl(doublings).unwrap_or(max).min(max);
        if doublings > 0 && session.credits_max == 1 {
            timeout - session.spread(timeout / 2, doublings)
        } else {
            timeout
        }
    }

    /// Ends every call and request of a session with `error`, and the session itself.
    pub fn end_session(&mut self, index: u32, error: CallError) {
        if matches!(self.sessions[index as usize].state, State::Free | State::Ending) {
            return;
        }
        self.sessions[index as usize].state = State::Ending;
        while let Some(call) = self.pop_queued(index) {
            self.fail_call(call, error.clone());
        }
        for slot in 0..SLOTS_MAX {
            let call = self.sessions[index as usize].client[slot].call;
            if call != NONE {
                self.fail_call(call, error.clone());
            }
            self.drop_serve_of(index, slot);
        }
        self.woken.append(&mut self.cold[index as usize].closers);
        self.free_session(index);
    }
}
