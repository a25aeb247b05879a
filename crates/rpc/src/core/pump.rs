//! What a call sends, and when: as many packets as its session's credits and congestion control allow.
//!
//! A timeout sets [`Call::sent`] back to [`Call::received`]: that is all of go-back-N. Multi-packet calls that recover
//! selectively have a window instead, see [`super::recovery`].

use super::call::Call;
use super::session::Session;
use super::transmit::{Owner, Source, TxQueue};
use super::{Core, NONE};
use crate::config::Switch;
use crate::mutation::{Mutation, is_planted};
use crate::payload::Payload;
use crate::wire::control::SLOTS_MAX;
use crate::wire::{Header, Kind, Multi};

/// The header cannot say so long a time to a deadline: its microseconds have 32 bits.
const DEADLINE_NANOS_END: u64 = (u32::MAX as u64 + 1) * 1000;

impl Core {
    /// Queues every packet of a call that may be sent now.
    pub fn pump(&mut self, index: u32) {
        let mut granted = u32::MAX;
        if self.sessions[self.calls[index as usize].session as usize].limited {
            granted = self.grant(index);
        }
        if self.calls[index as usize].window != NONE {
            return self.pump_window(index, granted);
        }
        let context = Context { index, now: self.now, adjacent: self.config.optimizations.adjacent_header };
        let call = &mut self.calls[index as usize];
        let session = &mut self.sessions[call.session as usize];
        let sendable = call.sendable();
        if sendable > 1 && session.credits > 0 && granted > 0 {
            call.time_next(context.now);
        }
        while call.sent < sendable {
            if session.credits <= 0 || granted == 0 {
                session.stalled |= 1 << call.slot;
                return;
            }
            session.credits -= 1;
            granted -= 1;
            let number = call.sent;
            call.sent += 1;
            push_packet(&mut self.tx, context, call, session, number);
        }
    }

    /// Queues one packet of a call.
    pub fn send_packet(&mut self, index: u32, number: u32) {
        let context = Context { index, now: self.now, adjacent: self.config.optimizations.adjacent_header };
        let call = &mut self.calls[index as usize];
        push_packet(&mut self.tx, context, call, &mut self.sessions[call.session as usize], number);
    }

    /// Continues a call whose credits came back; if others wait for credits, they get their turn.
    #[inline]
    pub fn pump_in_turn(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        let (session, slot) = (call.session, call.slot);
        if self.sessions[session as usize].stalled == 0 {
            return self.pump(index);
        }
        self.sessions[session as usize].stalled |= 1 << slot;
        self.pump_stalled(session, slot);
    }

    /// Lets calls that wait for credits send, after credits came back from the call in slot `from`: those in the slots
    /// after it first, so that none starves.
    #[inline(never)]
    pub fn pump_stalled(&mut self, session: u32, mut from: u8) {
        let entry = &self.sessions[session as usize];
        if entry.stalled != 0 && entry.may_borrow && !entry.limited {
            self.borrow(session);
        }
        while self.sessions[session as usize].stalled != 0 && self.may_send(session) {
            let entry = &mut self.sessions[session as usize];
            let first = (from + 1) % SLOTS_MAX as u8;
            let slot = (entry.stalled.rotate_right(first as u32).trailing_zeros() as u8 + first) % SLOTS_MAX as u8;
            entry.stalled &= !(1 << slot);
            let call = entry.client[slot as usize].call;
            if call != NONE {
                self.pump(call);
            }
            from = slot;
        }
    }

    /// Go-back-N: what is not answered counts as unsent.
    pub fn roll_back(&mut self, index: u32) {
        self.on_timeout(index);
        let call = &mut self.calls[index as usize];
        let was_overdue = call.progress < self.cold[call.session as usize].silence.ended;
        let in_flight = call.in_flight();
        let lost = u32::from(is_planted(Mutation::CreditNotReturned));
        self.sessions[call.session as usize].credits += in_flight.saturating_sub(lost) as i16;
        (call.timed, call.sent_again_below) = (NONE, call.sent_again_below.max(call.sent));
        call.sent = call.received;
        call.sent_again = true;
        call.retries = call.retries.saturating_add(1);
        call.unanswered = call.unanswered.saturating_add(1);
        call.progress = self.now;
        self.counters.retransmissions += 1;
        self.counters.tx_packets_again += in_flight as u64;
        let (session, retries) = (call.session, call.retries);
        let cold = &mut self.cold[session as usize];
        cold.retransmissions = cold.retransmissions.saturating_add(1);
        if was_overdue {
            self.note_overdue(session);
        } else {
            self.note_timeout(session, retries);
        }
        self.pump(index);
    }
}

/// What a packet of a call depends on besides call and session.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub index: u32,
    pub now: u64,
    pub adjacent: Switch,
}

/// Queues one packet of a call.
#[inline(always)]
pub(super) fn push_packet(tx: &mut TxQueue, context: Context, call: &mut Call, session: &mut Session, number: u32) {
    call.tx_batch = tx.batch;
    let request = call.sequence as u64 * 8 + call.slot as u64;
    let mut header = Header::new(Kind::Request, 0, session.remote_session, request, session.remote_tag);
    if number >= call.request_packets {
        header.kind = Kind::RequestForResponse;
        header.aux = number - call.request_packets + 1;
        session.count_tx(header.wire_len());
        return tx.push(session.route, &header, Source::NOTHING);
    }
    let packet_data = call.packet_data as usize;
    // A call in a slot has its request.
    let total = call.request.as_ref().map_or(0, |r| r.len());
    let offset = number as usize * packet_data;
    let len = (total - offset).min(packet_data);
    header.aux = Header::data_aux(call.req_type, len);
    if call.request_packets > 1 {
        header.multi = Some(Multi { message_bytes: total as u32, packet: number });
        (header.is_last, header.cut) = (number + 1 == call.request_packets, call.cut);
    }
    // A longer one is this end's to watch: the server would give up before. No deadline is the longest of all.
    let left = call.timeout.min(call.deadline.saturating_sub(context.now));
    if number == 0 && left < DEADLINE_NANOS_END {
        header.deadline_us = Some((left / 1000) as u32);
    }
    let is_adjacent = offset == 0 && context.adjacent.is_on();
    let source = match call.request.as_mut().and_then(Payload::as_msgbuf_mut) {
        Some(buf) if is_adjacent => Source::start(Owner::Call, context.index, buf, &header, len),
        _ => Source::piece(Owner::Call, context.index, offset, len),
    };
    session.count_tx(header.wire_len() + len);
    tx.push(session.route, &header, source);
}
