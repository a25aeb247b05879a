//! Memory that peers make this endpoint hold, under one budget ([`crate::EndpointConfig::held_bytes_max`]): requests
//! that are arriving, requests that handlers have, and responses that are kept, in memory of any owner.
//!
//! Bytes are charged to the host that causes them; a message buffer counts with all its memory, which is more than its
//! message. A host may hold as much as it leaves free: alone half of the budget, and beside others half of what these
//! leave. So however many hosts hoard memory, the next one finds some, and hosts that all want as much as possible
//! converge to equal shares (Choudhury and Hahne's dynamic thresholds, by which switches share their buffers).
//!
//! Message buffers have one limit for the process. So a host is under two budgets by the same rule: that of the
//! endpoint, and three quarters of that limit for what it holds at all endpoints of the process ([`super::process`]).
//!
//! What exceeds a share is refused as early as possible: a multi-packet request at its first packet, and, while any
//! host has more than three quarters of its share, other requests of that host too, before they run. A response for
//! which there is no room all the same is an error of its call.
//!
//! A response that nobody asks for is kept for [`RESPONSE_KEPT_NANOS`]: a client that wants it may have no credit to
//! ask with, or may wait while another of its calls probes. Only while its host has most of its share are responses
//! dropped earlier, the oldest first ([`Core::tick_kept`]). Later requests for a dropped response get
//! `ResponseTooLarge`.
//!
//! Consecutive single-packet responses of a slot use one buffer, which is charged when it grows: a stream of small
//! calls costs one comparison each. It is freed with its slot's entry.

use dunlin_net::clock::nanos;

use super::Core;
use super::serve::ServeState;
use crate::msgbuf::{self, MsgBuf};
use crate::payload::Payload;
use crate::wire::Status;

/// How long a response that nobody asks for is kept, unless memory is short.
const RESPONSE_KEPT_NANOS: u64 = 30_000_000_000;
/// How long a request that stopped arriving may rest, in multiples of the longer of peer timeout and maximum
/// retransmission timeout; the same for a response while memory is short.
const PATIENCE: u64 = 4;
/// Entries that a tick examines for requests that may have stopped arriving, and responses that nobody asks for.
const LOOKS_PER_TICK: usize = 512;
/// While memory is short, all entries are examined in at most this many ticks.
const TICKS_PER_ROUND: usize = 128;

/// What all hosts may make this process hold: three quarters of what message buffers may take. The rest is for requests
/// and responses of our own calls, and for the caches of threads.
pub(crate) fn process_budget() -> u64 {
    msgbuf::limit_bytes() / 4 * 3
}

/// What a host holds under one budget, and the most it may hold.
#[derive(Debug, Clone, Copy)]
struct Standing {
    held: u64,
    most: u64,
}

impl Standing {
    /// It may hold as much as it leaves free of what all others leave.
    fn under(budget: u64, held: u64, others: u64) -> Standing {
        Standing { held, most: budget.saturating_sub(others) / 2 }
    }

    fn has_room(self, bytes: u64) -> bool {
        self.held + bytes <= self.most
    }

    fn has_most(self) -> bool {
        self.held > self.most / 4 * 3
    }
}

impl Core {
    /// The standing of a host at this endpoint, and in the process.
    fn standings(&self, host: u32) -> [Standing; 2] {
        let (held, part) = self.peers.hosts.held_by(host);
        let in_process = process_budget();
        let budget = self.config.held_bytes_max.min(in_process);
        let mut here = Standing::under(budget, held, self.held_bytes - held);
        here.most = here.most.min(self.config.peer_limits.held_bytes_max);
        let Some(part) = part else { return [here; 2] };
        let (held, others) = part.host_and_others(held);
        [here, Standing::under(in_process, held, others)]
    }

    /// Whether `bytes` more may be held for a host.
    #[inline]
    pub fn may_hold(&self, host: u32, bytes: u64) -> bool {
        self.standings(host).iter().all(|standing| standing.has_room(bytes))
    }

    fn has_most(&self, host: u32) -> bool {
        self.standings(host).iter().any(|standing| standing.has_most())
    }

    /// Charges bytes to a host.
    pub fn hold(&mut self, host: u32, bytes: u64) {
        if self.peers.hosts.set_held(host, |held| held + bytes) {
            self.held_bytes += bytes;
        }
    }

    /// Refunds bytes to a host.
    pub fn let_go(&mut self, host: u32, bytes: u64) {
        if self.peers.hosts.set_held(host, |held| held - bytes) {
            self.held_bytes -= bytes;
        }
    }

    fn host_of_session(&self, session: u32) -> u32 {
        self.peers.host_of(self.sessions[session as usize].peer)
    }

    /// Whether the peer of a session may begin to send a request of `bytes`.
    pub fn may_receive(&self, session: u32, bytes: usize) -> bool {
        self.may_hold(self.host_of_session(session), msgbuf::capacity_for(bytes) as u64)
    }

    /// Charges the buffer of a request that begins to arrive.
    pub fn charge_receiving(&mut self, session: u32, bytes: usize) {
        self.hold(self.host_of_session(session), msgbuf::capacity_for(bytes) as u64);
    }

    /// Refunds it, when the request is complete or given up.
    pub fn refund_receiving(&mut self, session: u32, bytes: usize) {
        self.let_go(self.host_of_session(session), msgbuf::capacity_for(bytes) as u64);
    }

    /// Whether a new request of a session must be refused, because its host has most of its share. Asked only while any
    /// host has.
    #[cold]
    pub fn is_over_share(&self, session: u32) -> bool {
        self.has_most(self.host_of_session(session))
    }

    /// Checks whether any host has most of its share, including what it holds at other endpoints of this process.
    pub fn tick_memory(&mut self) {
        self.peers.hosts.tell_all();
        self.is_crowded = self.peers.hosts.all().any(|host| self.has_most(host));
    }

    /// Charges a response that needs more than its slot was charged so far. Returns whether it may be kept.
    #[cold]
    pub fn charge_response(&mut self, index: u32, response: &Payload) -> bool {
        let bytes = u32::try_from(response.kept_bytes()).unwrap_or(u32::MAX);
        let serve = &self.serves[index as usize];
        let more = u64::from(bytes.saturating_sub(serve.charged));
        let host = self.host_of_session(serve.session);
        let fits = self.may_hold(host, more);
        if fits {
            self.hold(host, more);
            self.serves[index as usize].charged = bytes;
        }
        self.is_crowded |= !fits || self.has_most(host);
        fits
    }

    /// Refunds a response that is gone. The small buffer beside it stays with the slot.
    #[cold]
    pub fn refund_response(&mut self, index: u32) {
        let spare = self.serves[index as usize].spare.as_ref().map_or(0, MsgBuf::capacity) as u32;
        self.refund_down_to(index, spare);
    }

    /// Refunds everything charged for an entry, when its slot gives it up.
    #[cold]
    pub fn refund_all(&mut self, index: u32) {
        self.refund_down_to(index, 0);
    }

    fn refund_down_to(&mut self, index: u32, kept: u32) {
        let serve = &mut self.serves[index as usize];
        let (session, freed) = (serve.session, serve.charged.saturating_sub(kept));
        serve.charged -= freed;
        self.let_go(self.host_of_session(session), u64::from(freed));
    }

    /// Frees requests that stopped arriving, and responses that nobody asks for: clients must not keep this memory for
    /// ever. A client may still want to send such a request, if its other calls blocked it by holding all credits; so
    /// it gets an answer.
    pub fn tick_kept(&mut self) {
        let least = nanos(self.config.peer_timeout.max(self.config.rto_max)).saturating_mul(PATIENCE);
        let most = least.max(RESPONSE_KEPT_NANOS);
        let table = self.serves.len();
        let looks = if self.is_crowded { LOOKS_PER_TICK.max(table.div_ceil(TICKS_PER_ROUND)) } else { LOOKS_PER_TICK };
        for _ in 0..looks.min(table) {
            self.next_kept += 1;
            if self.next_kept as usize >= table {
                self.next_kept = 0;
                // With each round that finds memory short, younger responses may be dropped.
                let less = (self.response_patience.min(most) / 2).max(least);
                self.response_patience = if self.is_crowded { less } else { most };
            }
            let serve = &self.serves[self.next_kept as usize];
            let rests = self.now.saturating_sub(serve.heard);
            if rests <= least {
                continue;
            }
            if serve.state == ServeState::Receiving {
                self.counters.requests_abandoned += 1;
                self.refuse_rest(self.next_kept);
            } else if serve.state == ServeState::Responded && serve.charged != 0 && serve.response.is_some() {
                let is_short = self.is_crowded && self.is_over_share(serve.session);
                if rests > most || is_short && rests > self.response_patience {
                    self.give_up_response(self.next_kept);
                }
            }
        }
    }

    /// Drops a response that nobody has asked for in a long time. Later requests for it get `ResponseTooLarge`.
    fn give_up_response(&mut self, index: u32) {
        let serve = &mut self.serves[index as usize];
        debug_assert!(serve.state == ServeState::Responded);
        if serve.tx_batch == self.tx.batch {
            self.tx.forget_serve(index);
        }
        serve.status = Status::ResponseTooLarge;
        if let Some(response) = serve.response.take() {
            self.counters.responses_expired += 1;
            self.discard(response);
        }
        self.refund_response(index);
    }
}
