//! The client's side of a request (paper, section 5.1).
//!
//! Packets of a request are numbered consecutively: first its `request_packets` data packets, then one
//! REQUEST_FOR_RESPONSE for each response packet after the first. `sent` counts those transmitted, `received` those
//! answered: request packet *i* is answered by its CREDIT_RETURN, the last one by response packet 0, and each
//! REQUEST_FOR_RESPONSE by its response packet. The difference is the number of the session's credits that the call
//! holds. [`super::pump`] sends the packets, and [`super::end`] ends calls.

use std::task::Waker;

use super::handle::Handle;
use super::pump::{Context, push_packet};
use super::session::{SessionRef, State};
use super::{Core, NONE};
use crate::error::CallError;
use crate::msgbuf::MsgBuf;
use crate::payload::Payload;
use crate::timer::TimerId;

/// No deadline.
pub(crate) const NO_DEADLINE: u64 = u64::MAX;

/// Identifies a call.
pub(crate) type CallRef = Handle<Call>;

/// What waits for the end of a call. A single number, since every call passes it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter(pub(super) u32);

impl Waiter {
    /// A future that polls; [`Call::waker`] wakes its task.
    pub const FUTURE: Waiter = Waiter(u32::MAX);
    /// A future that the endpoint's own `block_on` or `poll_once` polls; a flag wakes it.
    pub const ROOT: Waiter = Waiter(u32::MAX - 1);

    /// A registered continuation.
    #[inline]
    pub fn continuation(number: u32) -> Waiter {
        Waiter(number)
    }
}

/// A call that ended, for its continuation.
pub(crate) struct Ended {
    pub continuation: u32,
    pub tag: u64,
    pub session: SessionRef,
    pub result: Result<MsgBuf, CallError>,
    pub request: Payload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallState {
    Free,
    /// Waits for a slot.
    Queued,
    /// Has a slot.
    InSlot,
    /// Ended; its future has not been polled since, or its continuation has not run.
    Done,
}

pub(crate) struct Call {
    pub generation: u32,
    pub state: CallState,
    pub slot: u8,
    pub req_type: u8,
    /// Timeouts in a row without progress.
    pub retries: u8,
    /// Timeouts in a row without progress and without a confirmation that the server has the whole request.
    pub unanswered: u8,
    /// How often the request was recut into shorter packets.
    pub cut: u8,
    /// Whether the server has confirmed that it has the whole request.
    pub confirmed: bool,
    /// Whether anything was retransmitted, so that round trips are ambiguous (Karn's rule).
    pub sent_again: bool,
    pub session: u32,
    pub session_generation: u32,
    /// Its window, for a multi-packet call that recovers selectively, otherwise `NONE`. See [`super::recovery`].
    pub window: u32,
    pub sequence: u32,
    /// Data bytes of each packet of the request but the last, and of the response once that is known.
    pub packet_data: u16,
    pub response_data: u16,
    pub request_packets: u32,
    /// Zero until response packet 0 gives the number.
    pub response_packets: u32,
    pub sent: u32,
    pub received: u32,
    /// The packet whose round trip is being measured, for a multi-packet call without a window, and when it was sent;
    /// otherwise `NONE`.
    pub timed: u32,
    pub timed_at: u64,
    /// Packets before this one were retransmitted, so that their round trips are ambiguous (Karn's rule).
    pub sent_again_below: u32,
    /// The last transmit batch in which a packet of this call was queued.
    pub tx_batch: u32,
    /// Next call that waits for a slot of the session.
    pub next: u32,
    /// When something was last sent or received.
    pub progress: u64,
    /// When it was first sent.
    pub started: u64,
    /// Absolute, once the event loop has seen the call.
    pub deadline: u64,
    /// Relative, until then: the code that issues a call cannot read the clock.
    pub timeout: u64,
    pub timer: Option<TimerId>,
    pub request: Option<Payload>,
    pub response: Option<MsgBuf>,
    pub waiter: Waiter,
    pub waker: Option<Waker>,
    /// The caller's tag, by which it tells its calls apart.
    pub tag: u64,
    /// For a finished call, its error, if it failed; otherwise its response is complete.
    pub error: Option<CallError>,
}

impl Call {
    fn new() -> Call {
        Call {
            generation: 0,
            state: CallState::Free,
            slot: 0,
            req_type: 0,
            retries: 0,
            unanswered: 0,
            cut: 0,
            confirmed: false,
            sent_again: false,
            session: NONE,
            session_generation: 0,
            window: NONE,
            sequence: 0,
            packet_data: 0,
            response_data: 0,
            request_packets: 0,
            response_packets: 0,
            sent: 0,
            received: 0,
            timed: NONE,
            timed_at: 0,
            sent_again_below: 0,
            tx_batch: 0,
            next: NONE,
            progress: 0,
            started: 0,
            deadline: NO_DEADLINE,
            timeout: NO_DEADLINE,
            timer: None,
            request: None,
            response: None,
            waiter: Waiter::FUTURE,
            waker: None,
            tag: 0,
            error: None,
        }
    }

    /// The result of a finished call; `None` before.
    #[inline]
    pub fn take_result(&mut self) -> Option<Result<MsgBuf, CallError>> {
        if self.state != CallState::Done {
            return None;
        }
        match self.error.take() {
            Some(error) => Some(Err(error)),
            None => self.response.take().map(Ok),
        }
    }

    /// Packets that this call will send in total, as far as is known.
    #[inline]
    pub fn sendable(&self) -> u32 {
        self.request_packets + self.response_packets.saturating_sub(1)
    }

    /// Packets that its request takes at the present packet length.
    pub fn packets_of_request(&self) -> u32 {
        let len = self.request.as_ref().map_or(0, |request| request.len());
        len.div_ceil(usize::from(self.packet_data)).max(1) as u32
    }

    /// Whether anything of it was ever sent, even if a timeout rolled it back.
    #[inline]
    pub fn was_sent(&self) -> bool {
        self.sent > 0 || self.sent_again
    }

    /// Whether the last packet of the request was sent and not answered: the response answers it, once the handler has
    /// produced that.
    #[inline]
    pub fn awaits_handler(&self) -> bool {
        self.sent == self.request_packets && self.response_packets == 0
    }

    /// Measures the round trip of the next packet to send, unless one is being measured, or this one was sent before,
    /// or its answer waits for the handler. One measurement per round trip is enough.
    #[cold]
    pub fn time_next(&mut self, now: u64) {
        let is_last = self.sent + 1 == self.request_packets;
        if self.timed == NONE && !is_last && (self.sent_again_below..self.sendable()).contains(&self.sent) {
            (self.timed, self.timed_at) = (self.sent, now);
        }
    }

    /// The measured round trip in nanoseconds, if `answered` is the timed packet or a later one.
    pub fn take_timing(&mut self, answered: u32, now: u64) -> Option<u64> {
        // `NONE` is greater than every packet number.
        (self.timed <= answered).then(|| {
            self.timed = NONE;
            now.saturating_sub(self.timed_at)
        })
    }

    /// Credits that it holds, if it has no window.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.sent - self.received
    }
}

/// The parameters of a new call.
pub(crate) struct NewCall {
    pub req_type: u8,
    pub request: Payload,
    /// Nanoseconds until the caller gives up; [`NO_DEADLINE`] for never.
    pub timeout: u64,
    pub waiter: Waiter,
    pub tag: u64,
}

impl Core {
    /// Starts a call, or queues it. Returns the request if it cannot even be queued. Inlined, since its arguments and
    /// result are many words.
    #[inline(always)]
    pub fn start_call(&mut self, session: SessionRef, new: NewCall) -> Result<CallRef, (CallError, Payload)> {
        let Some(found) = self.session(session) else {
            return Err((CallError::Closed, new.request));
        };
        let error = if found.state != State::Connected {
            Some(CallError::Closed)
        } else if found.credits_max == 0 {
            Some(CallError::NoReverseCredits)
        } else if new.request.len() > found.message_bytes_max as usize {
            Some(CallError::RequestTooLarge)
        } else if found.free_slots == 0 && found.queued >= self.config.queued_calls_max {
            Some(CallError::QueueFull)
        } else {
            None
        };
        if let Some(error) = error {
            return Err((error, new.request));
        }
        let packet_data = found.packet_data as usize;
        let has_slot = found.free_slots != 0;
        let index = match self.free_calls.pop() {
            Some(index) => index,
            None => self.add_call_entry(),
        };
        let call = &mut self.calls[index as usize];
        let reference = CallRef::new(index, call.generation);
        call.req_type = new.req_type;
        (call.session, call.session_generation) = (session.index, session.generation);
        // Avoids the division where possible: it takes longer than everything else here.
        call.request_packets = match new.request.len() {
            len if len <= packet_data => 1,
            len => len.div_ceil(packet_data) as u32,
        };
        call.packet_data = packet_data as u16;
        call.request = Some(new.request);
        call.deadline = NO_DEADLINE;
        call.timeout = new.timeout;
        (call.waiter, call.tag) = (new.waiter, new.tag);
        call.error = None;
        call.state = CallState::Queued;
        self.counters.calls_started += 1;
        if self.calls_pending() == 1 {
            self.arm_tick();
        }
        if has_slot {
            self.enter_slot(index);
        } else {
            self.push_queued(session.index, index);
        }
        if new.timeout != NO_DEADLINE {
            self.fresh_deadlines.push(reference);
        }
        Ok(reference)
    }

    /// Moves the next call that waits for a slot of a session into one, with the session's present packet length.
    #[inline(never)]
    pub fn enter_next(&mut self, session: u32) {
        let Some(index) = self.pop_queued(session) else { return };
        let packet_data = self.sessions[session as usize].packet_data;
        let call = &mut self.calls[index as usize];
        if call.packet_data != packet_data {
            call.packet_data = packet_data;
            call.request_packets = call.packets_of_request();
        }
        self.enter_slot(index);
    }

    #[inline(never)]
    fn add_call_entry(&mut self) -> u32 {
        self.calls.push(Call::new());
        self.calls.len() as u32 - 1
    }

    /// Turns the timeouts of calls issued since the last iteration into deadlines, now that the time is known.
    pub fn set_deadlines(&mut self) {
        while let Some(reference) = self.fresh_deadlines.pop() {
            let call = &mut self.calls[reference.place()];
            if call.generation == reference.generation() && matches!(call.state, CallState::Queued | CallState::InSlot)
            {
                call.deadline = self.now.saturating_add(call.timeout);
                call.timeout = NO_DEADLINE;
                let (deadline, timer) = (call.deadline, call.timer);
                // A call in a slot is looked at before its deadline: its timer is armed for the retransmission.
                if timer.and_then(|timer| self.wheel.due(timer)).is_none_or(|due| due > deadline) {
                    self.arm_call(reference.index(), deadline);
                }
            }
        }
    }

    /// Gives a call a free slot of its session and sends what credits allow.
    #[inline(always)]
    pub fn enter_slot(&mut self, index: u32) {
        let context = Context { index, now: self.now, adjacent: self.config.optimizations.adjacent_header };
        let call = &mut self.calls[index as usize];
        let session = &mut self.sessions[call.session as usize];
        let slot = session.free_slots.trailing_zeros() as usize;
        session.free_slots &= session.free_slots - 1;
        let sequence = session.client[slot].sequence.wrapping_add(1);
        session.client[slot].sequence = sequence;
        session.client[slot].call = index;
        call.state = CallState::InSlot;
        call.slot = slot as u8;
        call.sequence = sequence;
        (call.retries, call.unanswered, call.cut, call.confirmed) = (0, 0, 0, false);
        call.sent_again = false;
        call.response_packets = 0;
        call.sent = 0;
        call.received = 0;
        (call.progress, call.started) = (self.now, self.now);
        let (si, timer, rto_min) = (call.session, call.timer, self.rto_min[session.timing.place()]);
        let is_known = std::mem::replace(&mut session.unreleased, true);
        if call.request_packets == 1 && !session.limited && session.credits > 0 {
            // The common case: no loop, and nothing is looked up again.
            session.credits -= 1;
            call.sent = 1;
            push_packet(&mut self.tx, context, call, session, 0);
            self.watch_call(index, timer, rto_min);
        } else {
            self.pump_first(index, timer, rto_min);
        }
        if !is_known {
            self.unreleased.push_back(si);
        }
    }

    /// Sends what may be sent of a call that just entered its slot.
    #[inline(never)]
    fn pump_first(&mut self, index: u32, timer: Option<TimerId>, rto_min: u64) {
        let call = &mut self.calls[index as usize];
        let is_long = call.request_packets > 1;
        if is_long {
            (call.timed, call.sent_again_below) = (NONE, 0);
            self.take_window(index);
        }
        self.pump(index);
        if is_long {
            self.watch_long_call(index);
        } else {
            self.watch_call(index, timer, rto_min);
        }
    }

    /// Makes sure that the server of a session learns what it can release, once the session is quiet.
    #[inline]
    pub fn release_later(&mut self, si: u32) {
        if !self.sessions[si as usize].unreleased {
            self.sessions[si as usize].unreleased = true;
            self.unreleased.push_back(si);
        }
    }

    /// When a call must be checked again: at its timeout, or its deadline.
    #[cold]
    pub fn call_due(&self, index: u32) -> u64 {
        let call = &self.calls[index as usize];
        let due = match call.window {
            // Packets sent before the last sign of life keep the timeout they had, without the later back-off.
            NONE if call.progress < self.cold[call.session as usize].silence.ended => {
                call.progress + self.rto_before_backoff(call.session, call.retries)
            }
            NONE => call.progress + self.rto(call.session, call.retries),
            _ => self.window_due(index),
        };
        due.min(call.deadline)
    }

    /// Makes sure that the timer of a single-packet call that was just sent fires in time. In a stream of small calls
    /// it is already armed, for an earlier call of this entry, and nothing needs to be computed.
    #[inline(always)]
    fn watch_call(&mut self, index: u32, timer: Option<TimerId>, rto_min: u64) {
        let armed = timer.and_then(|timer| self.wheel.due(timer));
        if armed.is_none_or(|due| due > self.now + rto_min) {
            self.watch_long_call(index);
        }
    }

    /// The same for a call whose request or response has several packets. It is checked long before its timeout; its
    /// timer may be armed only for the timeout.
    #[inline(never)]
    pub fn watch_long_call(&mut self, index: u32) {
        let due = self.call_due(index);
        self.arm_call(index, due);
    }

    pub fn arm_call(&mut self, index: u32, at: u64) {
        let timer = *self.calls[index as usize]
            .timer
            .get_or_insert_with(|| self.wheel.create(super::timers::token_of_call(index)));
        self.wheel.arm_by(timer, at);
    }
}
