//! The protocol as a state machine without I/O: packets and time go in, packets and finished calls come out.
//!
//! | File | What it holds |
//! |---|---|
//! | [`session`] | what two endpoints agreed, slots and credits |
//! | [`call`] | the client's side of a request: how it begins, and its timer |
//! | [`pump`] | what a call sends, and when |
//! | [`end`] | how calls end |
//! | [`answer`] | the server's answers to a call |
//! | [`recovery`], [`window`] | multi-packet calls: what is in flight, what is lost |
//! | [`congestion`] | when a session may send its next packet |
//! | [`backlog`] | calls that wait for a slot |
//! | [`serve`] | the server's side: receiving, at-most-once, responses |
//! | [`assemble`] | its side of multi-packet requests |
//! | [`piece`] | where in its message a packet belongs |
//! | [`receive`] | the first look at a packet, and where it goes |
//! | [`transmit`] | packets that wait for the end of the iteration |
//! | [`places`], [`loan`] | how many packets each session may have in a receive queue, and credits lent to the sessions that use them |
//! | [`share`], [`memory`] | what one host may hold |
//! | [`guess`] | how often strangers may guess tags |
//! | [`handshake`], [`close`], [`peer`] | how sessions begin, end, and are kept alive |
//! | [`path`], [`mtu_search`] | the longest packets that get through to a peer |
//! | [`observe`] | counters of single sessions |
//! | [`timers`] | what happens when a timer fires |
//!
//! Nothing here reads a clock: [`Core::now`] is set by the event loop, once per burst.

pub(crate) mod alarm;
pub(crate) mod answer;
pub(crate) mod assemble;
pub(crate) mod backlog;
pub(crate) mod call;
pub(crate) mod close;
pub(crate) mod congestion;
pub(crate) mod end;
pub(crate) mod guess;
pub(crate) mod handle;
pub(crate) mod handshake;
pub(crate) mod loan;
pub(crate) mod memory;
pub(crate) mod mtu_search;
pub(crate) mod observe;
pub(crate) mod path;
pub(crate) mod peer;
pub(crate) mod piece;
pub(crate) mod places;
pub(crate) mod process;
pub(crate) mod pump;
pub(crate) mod random;
pub(crate) mod receive;
pub(crate) mod recovery;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod share;
pub(crate) mod timers;
pub(crate) mod transmit;
pub(crate) mod window;

use std::collections::HashMap;
use std::collections::VecDeque;
use std::task::Waker;

use dunlin_net::{Addr, NetError, PeerHealth, Route, Transport};

use crate::config::EndpointConfig;
use crate::handler_stats::Handlers;
use crate::msgbuf::Trimmer;
use crate::payload::Payload;
use crate::stats::{Counters, RttHistogram};
use crate::timer::{TimerId, Wheel};
use crate::wire::HEADER_BYTES_MAX;
use call::{Call, CallRef};
use congestion::Congestion;
use dunlin_net::clock::nanos;
use handshake::{CookieKey, Opening};
use peer::Peers;
use random::SecretRandom;
use serve::{Serve, ServeRef};
use session::{Session, SessionCold};
use transmit::TxQueue;
use window::Window;

/// Room for timers that fire at the same time, so that a call in steady state allocates none.
const TIMERS_FIRED: usize = 256;
/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// The path to a peer; a transport may have several kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    /// Largest packet.
    pub mtu: u16,
    /// Whether packets stay on this host.
    pub is_local: bool,
    /// Whether packets of `mtu` bytes certainly get through.
    pub is_mtu_certain: bool,
}

/// What session management needs of a transport. Dynamic dispatch, since it is far from the path of a request.
pub(crate) trait Routes {
    fn path(&self, route: Route) -> Path;
    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError>;
    fn release(&mut self, route: Route);
    fn health(&mut self, route: Route) -> PeerHealth;
}

impl<T: Transport> Routes for T {
    fn path(&self, route: Route) -> Path {
        let mtu = self.route_mtu(route).min(u16::MAX as usize) as u16;
        Path { mtu, is_local: self.is_local_route(route), is_mtu_certain: self.is_mtu_certain(route) }
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        Transport::resolve(self, addr)
    }

    fn release(&mut self, route: Route) {
        Transport::release(self, route)
    }

    fn health(&mut self, route: Route) -> PeerHealth {
        self.peer_health(route)
    }
}

/// State of one endpoint.
pub(crate) struct Core {
    pub config: EndpointConfig,
    /// Largest packet of the sessions so far; at least the MTU that the transport has on every route.
    pub mtu: usize,
    /// Nanoseconds, as last read: after the last burst or transmission, or a few empty iterations ago.
    pub now: u64,
    /// Sent to every peer: a restarted endpoint has a different one.
    pub incarnation: u64,

    pub sessions: Vec<Session>,
    pub cold: Vec<SessionCold>,
    pub free_sessions: Vec<u32>,
    pub session_count: u32,
    pub queue: places::Queue,
    /// Sessions that must begin or repeat a step of a loan at the next tick, each once.
    pub loans_pending: Vec<u32>,
    /// Where the next search for reclaimable places begins.
    pub reclaim_next: u32,
    /// Sessions that were requested and that the event loop has not seen yet.
    pub openings: VecDeque<Opening>,
    /// Sessions accepted from peers, so that a repeated CONNECT finds its own.
    pub accepted: HashMap<handshake::Accepted, u32>,
    /// Sessions with something to be released at their server.
    pub unreleased: VecDeque<u32>,
    pub peers: Peers,
    /// Bytes that peers make this endpoint hold.
    pub held_bytes: u64,
    /// Whether any host has most of its share of them.
    pub is_crowded: bool,
    /// Number of sessions whose calls wait for a sign of life from the peer.
    pub silent: u32,
    /// The session that was audited last, and when.
    pub audit_next: u32,
    pub audited_at: u64,
    /// Routes that no session needs any more, to be released by the event loop.
    pub idle_routes: Vec<Route>,

    pub calls: Vec<Call>,
    pub free_calls: Vec<u32>,
    /// Calls whose timeout is not yet converted to a deadline.
    pub fresh_deadlines: Vec<CallRef>,
    /// Windows of multi-packet calls, and the free ones among them.
    pub windows: Vec<Window>,
    pub free_windows: Vec<u32>,
    /// Packets queued since the last transmission, as window and number: the time they leave is not known yet.
    pub unstamped: Vec<(u32, u32)>,
    pub serves: Vec<Serve>,
    pub free_serves: Vec<u32>,
    /// Where [`Core::serves`] is examined next for responses that nobody asks for, and how long a response may rest
    /// while memory is short.
    pub next_kept: u32,
    pub response_patience: u64,
    /// Requests that asynchronous and worker handlers have.
    pub deferred: u32,

    pub congestion: Congestion,
    pub wheel: Wheel,
    pub fired: Vec<u64>,
    /// Timers of the application, and the free entries among them.
    pub alarms: Vec<alarm::Alarm>,
    pub free_alarms: Vec<u32>,
    /// Drives peers and releases while there are sessions.
    pub tick_timer: TimerId,
    /// Ends the time in which guesses are counted.
    pub guess_timer: TimerId,
    pub tx: TxQueue,
    /// What to tell the transport before the next packets leave.
    pub joining_limits: Vec<path::JoiningLimit>,
    /// Wakers to call once nobody borrows this: a waker may run code that calls back into it.
    pub woken: Vec<Waker>,
    /// Memory of the application that is no longer needed, dropped likewise: its owner's `Drop` may call back, too.
    pub discarded: Vec<Payload>,
    /// The wakers to call at the next tick.
    pub ticked: Vec<Waker>,
    pub trimmer: Trimmer,
    /// Whether to wake the future that `block_on` or `poll_once` polls.
    pub root_woken: bool,
    /// Calls that ended and whose continuation has not run yet.
    pub ended: VecDeque<u32>,

    pub random: SecretRandom,
    pub cookie_key: CookieKey,
    /// RESETs that may still be sent before the next tick.
    pub resets_left: u32,
    pub guesses: guess::Guesses,
    pub shutting_down: bool,
    /// When timers are checked next.
    pub timers_at: u64,
    /// Iterations in a row that received packets.
    pub busy_iterations: u32,
    /// Minimum retransmission timeout, in nanoseconds: for sessions across a network, and for those that stay on this
    /// host.
    pub rto_min: [u64; 2],

    pub counters: Counters,
    pub handlers: Handlers,
    /// The request of this receive burst that is being timed.
    pub timed: Option<ServeRef>,
    pub rtt: RttHistogram,
    /// Round trips to be recorded in the histograms once the time has been read.
    pub sampled: Vec<observe::RoundTrip>,
    /// Whether any session was ever observed.
    pub observes_sessions: bool,
}

impl Core {
    /// Minimum MTU: headers, handshake, and some data.
    pub const MTU_MIN: usize = 256;

    pub fn new(config: EndpointConfig, mtu: usize, rx_queue_len: usize, now: u64, secret: [u8; 16]) -> Core {
        let mut random = SecretRandom::new(secret);
        let observes_sessions = config.observe_sessions.is_on();
        let mut wheel = Wheel::new(now);
        let tick_timer = wheel.create(timers::TOKEN_TICK);
        let guess_timer = wheel.create(timers::TOKEN_GUESSES);
        Core {
            congestion: Congestion::new(&config, now),
            rto_min: [config.rto_min, config.rto_min_local.min(config.rto_max)].map(nanos),
            config,
            mtu: mtu.min(u16::MAX as usize),
            now,
            incarnation: random.next_u64(),
            sessions: Vec::new(),
            cold: Vec::new(),
            free_sessions: Vec::new(),
            session_count: 0,
            queue: places::Queue::new(rx_queue_len),
            loans_pending: Vec::new(),
            reclaim_next: 0,
            openings: VecDeque::new(),
            accepted: HashMap::new(),
            unreleased: VecDeque::new(),
            peers: Peers::default(),
            held_bytes: 0,
            is_crowded: false,
            silent: 0,
            audit_next: 0,
            audited_at: now,
            idle_routes: Vec::new(),
            calls: Vec::new(),
            free_calls: Vec::new(),
            fresh_deadlines: Vec::new(),
            windows: Vec::new(),
            free_windows: Vec::new(),
            unstamped: Vec::new(),
            serves: Vec::new(),
            free_serves: Vec::new(),
            next_kept: 0,
            response_patience: u64::MAX,
            deferred: 0,
            wheel,
            fired: Vec::with_capacity(TIMERS_FIRED),
            alarms: Vec::new(),
            free_alarms: Vec::new(),
            tick_timer,
            guess_timer,
            tx: TxQueue::default(),
            joining_limits: Vec::new(),
            woken: Vec::new(),
            discarded: Vec::new(),
            ticked: Vec::new(),
            trimmer: Trimmer::new(),
            root_woken: false,
            ended: VecDeque::new(),
            cookie_key: CookieKey::new(&mut random),
            random,
            resets_left: timers::RESETS_PER_TICK,
            guesses: guess::Guesses::default(),
            shutting_down: false,
            timers_at: 0,
            busy_iterations: 0,
            counters: Counters::default(),
            handlers: Handlers::new(),
            timed: None,
            rtt: RttHistogram::new(),
            sampled: Vec::new(),
            observes_sessions,
        }
    }

    /// Whether something waits for the next iteration of the event loop.
    pub fn has_work(&self) -> bool {
        self.is_iteration_due() || !self.discarded.is_empty()
    }

    /// Whether the next iteration of the event loop has something to do, whenever it looks at timers.
    pub fn is_iteration_due(&self) -> bool {
        self.tx.has_packets() || self.has_begun() || self.has_ended()
    }

    /// Whether the application began something that needs the time or the transport.
    #[inline]
    pub fn has_begun(&self) -> bool {
        !self.openings.is_empty() || !self.fresh_deadlines.is_empty()
    }

    /// Whether something ended that the application must learn.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.root_woken || !self.woken.is_empty() || !self.ended.is_empty()
    }

    /// Frees the memory of a sent message. Message buffers are dropped here; what may run the application's code is
    /// dropped once nobody borrows this.
    #[inline]
    pub fn discard(&mut self, payload: Payload) {
        if payload.is_foreign() {
            self.discarded.push(payload);
        }
    }

    /// Calls in progress or queued.
    pub fn calls_pending(&self) -> u32 {
        (self.calls.len() - self.free_calls.len()) as u32
    }

    /// Server slots in use.
    pub fn requests_held(&self) -> u32 {
        (self.serves.len() - self.free_serves.len()) as u32
    }
}

/// Data bytes that a packet of `mtu` bytes carries: what header and extensions leave, rounded down to a multiple of 16.
pub(crate) const fn packet_data_bytes(mtu: usize) -> usize {
    (mtu - HEADER_BYTES_MAX) & !15
}

#[cfg(test)]
mod loan_tests;
#[cfg(test)]
mod wrap_tests;
