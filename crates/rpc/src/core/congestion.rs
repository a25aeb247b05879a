//! Congestion control of sessions (paper, section 5.2): round trips and marks of packets go in, and before a packet of
//! a call is sent, its session is asked whether it may be.
//!
//! Nearly all sessions are uncongested nearly always, so the only cost for them is one bit in a cache line that is at
//! hand: `Session::limited` says whether congestion control must be asked at all. State is allocated for a session at
//! the first packet that was slow or marked.
//!
//! A session that may not send yet keeps its calls in `Session::stalled`, as if it had no credits. Either an answer
//! lets it continue, or a timer of the pacing wheel. That wheel is separate from the wheel of timeouts: timeouts wait
//! for a drained receive queue, pacing does not.

use super::session::SessionCold;
use super::{Core, NONE};
use crate::config::EndpointConfig;
use crate::congestion::pacing::Gate;
use crate::congestion::{Algorithm, Allowance, CongestionControl, Controller, Sample};
use crate::mutation::{Mutation, is_planted};
use crate::stats::RttHistogram;
use crate::timer::{TimerId, Wheel};
use crate::wire::HEADER_BYTES;

/// `due` while nothing is paced.
const NEVER: u64 = u64::MAX;

/// Congestion control of an endpoint. See the [module](self).
pub(crate) struct Congestion {
    control: CongestionControl,
    /// Unmarked packets with a shorter round trip change nothing for sessions that are not limited.
    bypass_nanos: u64,
    /// As `bypass_nanos`, or zero if every round trip must be counted.
    look_nanos: u64,
    /// Round trips of all packets, if they are counted.
    packet_rtt: Option<Box<RttHistogram>>,
    /// Whether sessions whose packets stay on this host are never limited.
    spares_local: bool,
    /// Whether sessions ask before sending even if they are not limited.
    limits_all: bool,
    /// By session.
    flows: Vec<Option<Box<Flow>>>,
    wheel: Wheel,
    /// When the first waiting session may send.
    due: u64,
    fired: Vec<u64>,
}

/// The state of one session.
struct Flow {
    controller: Controller,
    gate: Gate,
    timer: TimerId,
    is_waiting: bool,
    /// Slot of the call that sent last.
    turn: u8,
    paced: u64,
}

impl Congestion {
    pub fn new(config: &EndpointConfig, now: u64) -> Congestion {
        let control = config.congestion;
        let is_off = control == CongestionControl::None;
        let bypasses_updates = is_off || config.optimizations.rate_update_bypass.is_on();
        let bypass_nanos = if bypasses_updates { control.bypass_nanos() } else { 0 };
        let counts_all = config.observe_packets.is_on();
        Congestion {
            control,
            bypass_nanos,
            look_nanos: if counts_all { 0 } else { bypass_nanos },
            spares_local: false,
            packet_rtt: counts_all.then(|| Box::new(RttHistogram::new())),
            limits_all: !is_off && !config.optimizations.rate_limiter_bypass.is_on(),
            flows: Vec::new(),
            wheel: Wheel::new(now),
            due: NEVER,
            fired: Vec::new(),
        }
    }

    /// From now on, limits only sessions whose packets leave this host.
    pub fn spare_local(&mut self) {
        self.spares_local = true;
    }

    /// Whether every session asks before it sends, limited or not.
    pub fn limits_all(&self) -> bool {
        self.limits_all
    }

    /// When [`Core::send_paced`] has something to do, on the transport's clock; `u64::MAX` for never.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due
    }

    /// When a waiting session may send next, if one waits.
    pub fn next_send(&self) -> Option<u64> {
        (self.due != NEVER).then_some(self.due)
    }

    fn flow(&self, session: u32) -> Option<&Flow> {
        self.flows.get(session as usize)?.as_deref()
    }

    /// The state of a session, created if it has none yet; `None` if it needs none.
    fn flow_or_new(&mut self, session: u32, credits: u16, cold: &SessionCold, now: u64) -> Option<&mut Flow> {
        let index = session as usize;
        if self.flow(session).is_none() {
            if self.spares_local && cold.path.is_local {
                return None;
            }
            let rtt_min = cold.rtt_min;
            let controller = self.control.controller(credits, rtt_min, now)?;
            if self.flows.len() <= index {
                self.flows.resize_with(index + 1, || None);
            }
            let timer = self.wheel.create(u64::from(session));
            let flow = Flow { controller, gate: Gate::default(), timer, is_waiting: false, turn: 0, paced: 0 };
            self.flows[index] = Some(Box::new(flow));
        }
        self.flows[index].as_deref_mut()
    }

    /// Drops the state of a session that ended.
    pub fn forget(&mut self, session: u32) {
        if let Some(flow) = self.flows.get_mut(session as usize).and_then(Option::take) {
            self.wheel.remove(flow.timer);
        }
    }

    /// Round trips of all packets so far, if they are counted.
    pub fn packet_rtt(&self) -> Option<&RttHistogram> {
        self.packet_rtt.as_deref()
    }

    /// What congestion control allows a session.
    pub fn allowance(&self, session: u32) -> Allowance {
        self.flow(session).map_or(Allowance::Unlimited, |flow| flow.controller.allowance())
    }

    /// How often a session waited for its pacing.
    pub fn sends_paced(&self, session: u32) -> u64 {
        self.flow(session).map_or(0, |flow| flow.paced)
    }

    /// Whether pacing lets a session send now. If not, its timer will fire when it may.
    fn is_time(&mut self, session: u32, now: u64) -> bool {
        let Some(flow) = self.flows.get_mut(session as usize).and_then(Option::as_deref_mut) else { return true };
        if flow.gate.is_open(now) {
            return true;
        }
        if !flow.is_waiting {
            flow.is_waiting = true;
            flow.paced += 1;
            let (timer, at) = (flow.timer, flow.gate.opens_at());
            self.arm(timer, at, now);
        }
        false
    }

    fn arm(&mut self, timer: TimerId, at: u64, now: u64) {
        if self.due == NEVER {
            // Nothing is armed: advance the wheel's time, which stood still while nothing was paced.
            self.wheel.expire(now, &mut self.fired);
        }
        self.wheel.arm(timer, at);
        self.due = self.due.min(self.wheel.due(timer).unwrap_or(NEVER));
    }
}

impl Core {
    /// Processes the round trip of one packet, in nanoseconds. The packet must have been sent only once, to a server
    /// that answered it at once; `is_marked` says whether the network marked the packet or its answer.
    #[inline]
    pub fn on_rtt_sample(&mut self, session: u32, nanos: u64, is_marked: bool) {
        let entry = &mut self.sessions[session as usize];
        entry.sample_rtt(nanos);
        if nanos < self.congestion.look_nanos && !entry.limited && !is_marked {
            return;
        }
        self.look_at_sample(session, nanos, is_marked);
    }

    #[cold]
    fn look_at_sample(&mut self, session: u32, nanos: u64, is_marked: bool) {
        if let Some(histogram) = &mut self.congestion.packet_rtt {
            histogram.record(nanos);
        }
        let limited = self.sessions[session as usize].limited;
        if nanos >= self.congestion.bypass_nanos || limited || is_marked {
            self.update_limit(session, nanos, is_marked);
        }
    }

    fn update_limit(&mut self, session: u32, rtt: u64, is_marked: bool) {
        let entry = &self.sessions[session as usize];
        let (credits, bytes) = (entry.credits_max, u32::from(entry.packet_data));
        let sample = Sample { now: self.now, rtt: rtt.max(1), is_marked, credits, bytes };
        self.control(session, |controller| controller.on_answer(&sample));
    }

    /// A packet of a session was lost while later ones arrived.
    #[cold]
    pub fn on_packet_loss(&mut self, session: u32) {
        let now = self.now;
        self.control(session, |controller| controller.on_loss(now));
    }

    /// A call has timed out, and something of it is about to be retransmitted. This does not count as congestion if the
    /// call waits for the answer to the last packet of its request, since its handler may still be running; nor if the
    /// call has timed out before, since that was reported already.
    #[cold]
    pub fn on_timeout(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        // A call with a window has sent a probe before.
        let first = u8::from(call.window != NONE);
        if call.retries == first && !call.awaits_handler() {
            let now = self.now;
            self.control(call.session, |controller| controller.on_timeout(now));
        }
    }

    /// Passes an event to a session's controller, and notes whether it limits the session from now on.
    fn control(&mut self, session: u32, tell: impl FnOnce(&mut Controller)) {
        let entry = &mut self.sessions[session as usize];
        let cold = &self.cold[session as usize];
        let Some(flow) = self.congestion.flow_or_new(session, entry.credits_max, cold, self.now) else { return };
        let was_limited = !flow.controller.is_unlimited();
        tell(&mut flow.controller);
        let is_limited = !flow.controller.is_unlimited();
        self.counters.congestion_onsets += u64::from(is_limited && !was_limited);
        entry.limited = is_limited || self.congestion.limits_all;
    }

    /// Whether a session may send a packet now.
    #[inline]
    pub fn may_send(&mut self, session: u32) -> bool {
        let entry = &self.sessions[session as usize];
        entry.credits > 0 && (!entry.limited || (self.room(session) > 0 && self.congestion.is_time(session, self.now)))
    }

    /// Packets that still fit into the window of a session.
    fn room(&mut self, session: u32) -> u32 {
        let entry = &self.sessions[session as usize];
        let cold = &self.cold[session as usize];
        let Some(flow) = self.congestion.flow_or_new(session, entry.credits_max, cold, self.now) else {
            return u32::MAX;
        };
        let window = flow.controller.window();
        if window == u32::MAX {
            return window;
        }
        // A request whose handler runs is not in flight. Which handlers run is unknown here, so none of these requests
        // is counted: pacing limits them.
        let calls = entry.client.iter().filter(|slot| slot.call != NONE).map(|slot| &self.calls[slot.call as usize]);
        let at_handlers = calls.filter(|call| call.in_flight() > 0 && call.awaits_handler()).count() as u32;
        let in_flight = (i32::from(entry.credits_max) - i32::from(entry.credits)).max(0) as u32;
        window.saturating_sub(in_flight.saturating_sub(at_handlers))
    }

    /// How many packets a call of a limited session may send now; they count as sent.
    #[cold]
    pub fn grant(&mut self, index: u32) -> u32 {
        let call = &self.calls[index as usize];
        let (session, slot) = (call.session, call.slot);
        let lost = if call.window == NONE { 0 } else { self.windows[call.window as usize].lost() };
        let left = call.sendable() - call.sent + lost;
        let most = self.room(session).min(left).min(self.sessions[session as usize].credits.max(0) as u32);
        let mut granted = 0;
        while granted < most && self.congestion.is_time(session, self.now) {
            let bytes = self.packet_bytes(index, granted);
            if let Some(flow) = self.congestion.flows.get_mut(session as usize).and_then(Option::as_deref_mut) {
                flow.gate.pass(self.now, flow.controller.spacing(bytes));
                flow.turn = slot;
            }
            granted += 1;
        }
        granted
    }

    /// Bytes that a packet of a call puts on the network, in the direction with more bytes, if the packet is sent after
    /// `skipped` others.
    fn packet_bytes(&self, index: u32, skipped: u32) -> u32 {
        let call = &self.calls[index as usize];
        let packet = call.sent + skipped;
        if packet >= call.request_packets {
            return HEADER_BYTES as u32 + u32::from(call.response_data);
        }
        let (len, packet_data) =
            (call.request.as_ref().map_or(0, |request| request.len()) as u32, u32::from(call.packet_data));
        HEADER_BYTES as u32 + (len - packet * packet_data).min(packet_data)
    }

    /// Lets sessions send whose pacing timers are due.
    #[cold]
    pub fn send_paced(&mut self) {
        let mut fired = std::mem::take(&mut self.congestion.fired);
        self.congestion.wheel.expire(self.now, &mut fired);
        self.congestion.due = NEVER;
        for token in fired.drain(..) {
            let session = token as u32;
            if let Some(flow) = self.congestion.flows.get_mut(session as usize).and_then(Option::as_deref_mut) {
                flow.is_waiting = false;
                let turn = flow.turn;
                self.counters.sends_paced += 1;
                if !is_planted(Mutation::PacedSessionForgotten) {
                    self.pump_stalled(session, turn);
                }
            }
        }
        self.congestion.fired = fired;
        self.congestion.due = self.congestion.wheel.next_due().unwrap_or(NEVER);
    }
}
