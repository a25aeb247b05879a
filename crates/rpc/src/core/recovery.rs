//! Selective recovery: the client's side of multi-packet calls. The server keeps what has arrived, the client finds
//! holes because later packets were answered (see [`super::window`]), and only holes are retransmitted.
//!
//! When nothing at all is answered for long, one packet is retransmitted, to provoke an answer that shows what is
//! missing: first the last one in flight (a tail-loss probe, RFC 8985), then, at each retransmission timeout, the first
//! one. So a peer that was merely stopped for a while gets a few packets twice, not a whole window.
//!
//! In a call with a window, `received` is the first packet that is not answered, and `sent` the first that was never
//! sent. The packets that [`Window::in_flight`] counts hold credits.

use std::ops::Range;

use dunlin_net::RxPacket;

use super::answer::RTT_SAMPLING;
use super::assemble::arrivals_of;
use super::observe::RoundTrip;
use super::piece::Piece;
use super::window::{Answer, NEVER, Window};
use super::{Core, NONE};
use crate::config::Recovery;
use crate::observe::DropReason;
use crate::wire::control::{Body, SLOTS_MAX};
use crate::wire::packets::{ARRIVALS_BITS, Arrivals, Asked};
use crate::wire::{Header, Kind, Multi};

/// How much longer, in quarters of a round trip, an overtaken packet may take than the one that overtook it: at first,
/// and at most.
pub(crate) const PATIENCE_QUARTERS: u8 = 4;
const PATIENCE_QUARTERS_MAX: u8 = 16;
/// Most packets that one REQUEST_FOR_RESPONSE asks for. If it is lost, others of the same window are answered, which
/// reveals the loss.
const ASKED_TOGETHER_MAX: u32 = 8;
/// A tail-loss probe waits for at least this share of the minimum retransmission timeout.
const PROBE_SHARE_OF_RTO_MIN: u64 = 4;

/// Timeouts in a row after which the peer is also asked whether the session still exists.
const TIMEOUTS_BEFORE_PING: u8 = 2;

/// Empties the window of a call that continues with its response, and returns the number of credits that it held.
#[cold]
pub(crate) fn clear_window(windows: &mut [Window], window: u32) -> u32 {
    let window = &mut windows[window as usize];
    let held = window.in_flight;
    window.clear();
    held
}

/// Milliseconds of a time in nanoseconds, modulo 2^32.
fn millis(nanos: u64) -> u32 {
    (nanos / 1_000_000) as u32
}

/// The silence of a session's peer while calls time out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Silence {
    /// Packets that the session had received at the last timeout.
    pub heard: u64,
    /// Timeouts since it received any.
    timeouts: u8,
    /// When the first of them was, in milliseconds, modulo 2^32.
    since: u32,
    /// How long the answer to what was sent then is awaited.
    until: u64,
    /// Whether calls wait for any packet.
    is_awaited: bool,
    /// When a packet came that calls had waited for. Each call that has sent nothing since then times out on its own.
    pub ended: u64,
}

impl Silence {
    /// Whether this time is later than the first timeout since the session received anything.
    pub fn began_before(&self, nanos: u64) -> bool {
        (millis(nanos).wrapping_sub(self.since) as i32) > 0
    }
}

impl Core {
    /// Whether a call that is due still waits, because the last timeout of its session's calls has brought no sign of
    /// life from the peer yet; if so, returns until when. If the peer is stopped, one packet from all calls of the
    /// session is enough to find out when it runs again.
    pub fn awaits_life(&mut self, session: u32, call: u32) -> Option<u64> {
        let silence = &self.cold[session as usize].silence;
        let is_silent = self.now < silence.until && self.sessions[session as usize].traffic.rx_packets == silence.heard;
        // What was sent before the last sign of life was lost, or its handler is slow: each call then times out on its
        // own.
        if !is_silent || self.calls[call as usize].progress < silence.ended {
            return None;
        }
        let until = silence.until;
        self.silent += u32::from(!std::mem::replace(&mut self.cold[session as usize].silence.is_awaited, true));
        Some(until)
    }

    /// Checks whether a packet that was just processed is the sign of life that calls wait for. Needed only while
    /// [`Core::silent`] is not 0, so packets usually do not pay for it.
    #[cold]
    pub fn find_sign_of_life(&mut self, head: &[u8]) {
        let named = head.first_chunk::<8>().map(|word| u64::from_le_bytes(*word) >> 40);
        let Some((index, session)) = named.and_then(|index| Some((index, self.sessions.get(index as usize)?))) else {
            return;
        };
        let silence = &self.cold[index as usize].silence;
        if silence.is_awaited && session.traffic.rx_packets != silence.heard {
            self.on_sign_of_life(index as u32);
        }
    }

    /// A packet came on a session whose calls waited for one. The peer runs, so everything unanswered is retransmitted,
    /// unless the answers come soon: they may be right behind this packet. What is retransmitted without need costs one
    /// packet of a call without a window, which waits for half of a round trip; it may cost many packets of a call with
    /// one, which waits longer.
    fn on_sign_of_life(&mut self, session: u32) {
        self.end_silence(session);
        self.cold[session as usize].silence.ended = self.now;
        let long = self.probe_timeout(session);
        let short = match u64::from(self.sessions[session as usize].srtt) {
            0 => long,
            round_trip => (round_trip / 2).min(long),
        };
        for slot in 0..SLOTS_MAX {
            let call = self.sessions[session as usize].client[slot].call;
            if call != NONE && self.calls[call as usize].progress < self.now {
                let has_window = self.calls[call as usize].window != NONE;
                self.arm_call(call, self.now + if has_window { long } else { short });
            }
        }
    }

    /// Notes that no call of a session waits for a sign of life any more.
    pub fn end_silence(&mut self, session: u32) {
        self.silent -= u32::from(std::mem::take(&mut self.cold[session as usize].silence.is_awaited));
    }

    /// A call of a session has timed out, for the `retries`th time in a row, and something is retransmitted.
    pub fn note_timeout(&mut self, session: u32, retries: u8) {
        let heard = self.sessions[session as usize].traffic.rx_packets;
        let silence = &mut self.cold[session as usize].silence;
        let timeouts = if silence.heard == heard { silence.timeouts.saturating_add(1) } else { 1 };
        (silence.heard, silence.timeouts) = (heard, timeouts);
        if timeouts == 1 {
            silence.since = millis(self.now);
        }
        let until = self.now + self.rto(session, timeouts);
        self.cold[session as usize].silence.until = until;
        if retries.max(timeouts) >= TIMEOUTS_BEFORE_PING {
            // If the server has lost the session, a ping lets it say so: it may not answer a packet as short as a
            // REQUEST_FOR_RESPONSE.
            self.send_ping_on(session);
            self.doubt_path(session);
        }
    }

    /// A call that was overdue at the last sign of life is retransmitted. Together with the others it counts as one
    /// timeout.
    pub fn note_overdue(&mut self, session: u32) {
        let heard = self.sessions[session as usize].traffic.rx_packets;
        let until = self.now + self.rto(session, 1);
        let now = millis(self.now);
        let silence = &mut self.cold[session as usize].silence;
        (silence.heard, silence.timeouts, silence.since, silence.until) = (heard, 1, now, until);
    }

    /// Gives a multi-packet call its window, if it needs one.
    #[cold]
    pub fn take_window(&mut self, index: u32) {
        if self.config.recovery != Recovery::Selective {
            return;
        }
        let session = self.calls[index as usize].session;
        let span = Window::span(self.cold[session as usize].places.outbound_agreed);
        let window = self.free_windows.pop().unwrap_or_else(|| {
            self.windows.push(Window::new(span));
            self.windows.len() as u32 - 1
        });
        let entry = &mut self.windows[window as usize];
        if entry.capacity() as usize == span {
            entry.clear();
        } else {
            *entry = Window::new(span);
        }
        self.calls[index as usize].window = window;
    }

    /// Takes the window from a call that ends. Returns the number of credits that it held.
    #[cold]
    pub fn drop_window(&mut self, index: u32) -> u32 {
        let window = std::mem::replace(&mut self.calls[index as usize].window, NONE);
        self.free_windows.push(window);
        self.windows[window as usize].in_flight
    }

    /// Queues the packets of a call that may be sent now, up to `granted`: lost ones first.
    pub fn pump_window(&mut self, index: u32, granted: u32) {
        for left in (0..=granted).rev() {
            let call = &mut self.calls[index as usize];
            let window = &mut self.windows[call.window as usize];
            let lost = window.next_lost(call.received..call.sent);
            let has_room = call.sent < call.sendable() && call.sent - call.received < window.capacity();
            if lost.is_none() && !has_room {
                return;
            }
            let session = &mut self.sessions[call.session as usize];
            if session.credits <= 0 || left == 0 {
                session.stalled |= 1 << call.slot;
                return;
            }
            session.credits -= 1;
            let number = lost.unwrap_or(call.sent);
            if lost.is_some() {
                window.send_again(number, self.now);
                self.counters.tx_packets_again += 1;
            } else {
                window.send(number, self.now);
                call.sent += 1;
            }
            self.send_numbered(index, number);
        }
    }

    /// Queues a packet of a call with a window.
    fn send_numbered(&mut self, index: u32, number: u32) {
        let call = &mut self.calls[index as usize];
        self.unstamped.push((call.window, number));
        if number < call.request_packets {
            self.send_packet(index, number);
        } else {
            let packet = number - call.request_packets + 1;
            self.ask_for(index, packet);
        }
    }

    /// Requests a packet of the response: by extending the previous request in the batch, if the packet follows on it.
    fn ask_for(&mut self, index: u32, packet: u32) {
        let call = &self.calls[index as usize];
        let window = &mut self.windows[call.window as usize];
        let session = &mut self.sessions[call.session as usize];
        if let Some((batch, entry, first, packets)) = &mut window.asked
            && *batch == self.tx.batch
            && *first + *packets == packet
            && *packets < ASKED_TOGETHER_MAX
        {
            *packets += 1;
            session.traffic.tx_bytes += if *packets == 2 { Asked::BYTES as u64 } else { 0 };
            return self.tx.amend(*entry, None, Some(&Asked { packets: *packets }));
        }
        let number = call.sequence as u64 * 8 + call.slot as u64;
        let header = Header::new(Kind::RequestForResponse, packet, session.remote_session, number, session.remote_tag);
        session.count_tx(header.wire_len());
        let entry = self.tx.push_bare(session.route, &header);
        if self.config.optimizations.cumulative_requests.is_on() {
            window.asked = Some((self.tx.batch, entry, packet, 1));
        }
    }

    /// Notes when the packets queued since the last transmission left.
    #[cold]
    pub fn stamp_windows(&mut self) {
        for (window, number) in self.unstamped.drain(..) {
            // If the call has ended, its window is empty, or belongs to another call; at worst, one of that call's
            // packets seems to have left a little later.
            self.windows[window as usize].stamp(number, self.now);
        }
    }

    /// A credit return for a call with a window.
    pub fn on_arrivals(&mut self, index: u32, header: &Header, packet: &RxPacket<'_>) {
        let call = &self.calls[index as usize];
        let (si, newest) = (call.session, header.aux);
        let Some(Arrivals { first_missing, mask }) = arrivals_of(header, packet) else {
            self.drop_on(si, DropReason::Malformed);
            return;
        };
        // In the second half of a call, and for packets not yet sent, credit returns are invalid.
        let sent = call.request_packets.min(call.sent);
        if newest >= sent || first_missing > sent || call.response_packets != 0 {
            self.drop_on(si, DropReason::OutOfOrder);
            return;
        }
        if first_missing >= call.request_packets {
            // The server has the whole request, and its handler is still running.
            let call = &mut self.calls[index as usize];
            (call.unanswered, call.confirmed) = (0, true);
        }
        let call = &self.calls[index as usize];
        let before = call.received;
        let below = newest.saturating_sub(ARRIVALS_BITS - 1).max(first_missing).max(before);
        let mut progress = false;
        for number in before..first_missing {
            progress |= self.take_answer(index, number, header, number == newest);
        }
        if newest < before {
            self.note_repetition(index, newest);
        }
        for number in below..=newest {
            if mask >> (newest - number) & 1 == 1 {
                progress |= self.take_answer(index, number, header, number == newest);
            }
        }
        if !progress {
            self.drop_on(si, DropReason::Duplicate);
        }
        self.after_answers(index, progress);
    }

    /// Notes that a packet was answered; returns whether that is new. The round trip of the newest packet is a sample.
    fn take_answer(&mut self, index: u32, number: u32, header: &Header, is_newest: bool) -> bool {
        let call = &mut self.calls[index as usize];
        let window = &mut self.windows[call.window as usize];
        let si = call.session;
        if number + 1 == call.request_packets && call.response_packets == 0 {
            // The response answers it, and until then it holds its credit.
            window.arrive(number, self.now);
            return false;
        }
        match window.answer(number, self.now) {
            Answer::Expected(rtt) => {
                self.sessions[si as usize].credits += 1;
                if let Some(rtt) = rtt.filter(|_| is_newest) {
                    self.on_rtt_sample(si, rtt, header.ecn_echo);
                    if number.is_multiple_of(RTT_SAMPLING) {
                        self.sampled.push(RoundTrip { session: si, since: self.now.saturating_sub(rtt) });
                    }
                }
                true
            }
            Answer::Late => {
                self.grow_patience(si);
                true
            }
            Answer::Repeated => {
                if is_newest {
                    self.note_repetition(index, number);
                }
                false
            }
        }
    }

    /// An answered packet is answered again. If it was retransmitted, that was unnecessary.
    #[cold]
    fn note_repetition(&mut self, index: u32, number: u32) {
        let call = &self.calls[index as usize];
        let window = &self.windows[call.window as usize];
        if call.sent - number <= window.capacity() && window.was_sent_again(number) {
            self.counters.retransmissions_spurious += 1;
            self.grow_patience(call.session);
        }
    }

    /// Something was retransmitted that had not been lost: reordering takes longer here than assumed.
    #[cold]
    fn grow_patience(&mut self, session: u32) {
        let quarters = &mut self.cold[session as usize].patience_quarters;
        *quarters = (*quarters + 1).min(PATIENCE_QUARTERS_MAX);
    }

    /// After answers: moves the window, looks for holes, and sends what credits allow.
    fn after_answers(&mut self, index: u32, progress: bool) {
        let call = &mut self.calls[index as usize];
        let window = &mut self.windows[call.window as usize];
        while call.received < call.sent && window.is_answered(call.received) {
            call.received += 1;
        }
        if progress {
            call.progress = self.now;
            (call.retries, call.unanswered) = (0, 0);
        }
        self.find_lost(index);
        self.pump_in_turn(index);
    }

    /// Finds packets that count as lost now, and makes sure that the others are checked in time.
    fn find_lost(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        let session = call.session;
        let window = &mut self.windows[call.window as usize];
        if window.is_in_order(call.received..call.sent) {
            window.due = NEVER;
            return;
        }
        let srtt = self.sessions[session as usize].srtt as u64;
        let patience = srtt * self.cold[session as usize].patience_quarters as u64 / 4;
        let lost = window.find_lost(call.received..call.sent, self.now, patience);
        let due = window.due;
        if lost > 0 {
            self.sessions[session as usize].credits += lost as i16;
            self.counters.packets_lost += lost as u64;
            self.on_packet_loss(session);
            let cold = &mut self.cold[session as usize];
            cold.retransmissions = cold.retransmissions.saturating_add(1);
        }
        if due != NEVER {
            self.arm_call(index, due);
        }
    }

    /// A later packet of a response, for a call with a window.
    pub fn on_window_response(&mut self, index: u32, header: &Header, packet: &RxPacket<'_>, multi: Multi) {
        let call = &self.calls[index as usize];
        if call.response_packets == 0 {
            let session = call.session;
            return self.drop_on(session, DropReason::OutOfOrder);
        }
        let Some(Piece { offset, .. }) = self.piece_of_response(index, header) else { return };
        let call = &mut self.calls[index as usize];
        let number = call.request_packets - 1 + multi.packet;
        let Some(response) = call.response.as_mut().filter(|_| number < call.sent) else {
            let session = call.session;
            self.drop_on(session, DropReason::OutOfOrder);
            return;
        };
        if number < call.received || self.windows[call.window as usize].is_answered(number) {
            let session = call.session;
            self.drop_on(session, DropReason::Duplicate);
            return self.note_repetition(index, number);
        }
        packet.copy_to(header.wire_len(), &mut response[offset..offset + header.payload_len()]);
        self.take_answer(index, number, header, true);
        self.after_answers(index, true);
        let call = &mut self.calls[index as usize];
        if call.received == call.sendable()
            && let Some(response) = call.response.take()
        {
            let session = call.session;
            self.complete_call(index, response);
            // The server keeps a large response until it learns that it arrived.
            self.send_release(session);
        }
    }

    /// When a call with a window must be checked again.
    pub fn window_due(&self, index: u32) -> u64 {
        let call = &self.calls[index as usize];
        let wait = match call.retries {
            0 => self.probe_timeout(call.session),
            retries => self.rto(call.session, retries - 1),
        };
        (call.progress + wait).min(self.windows[call.window as usize].due)
    }

    /// How long an answer is awaited before the last packet in flight is retransmitted, or others that waited with it.
    fn probe_timeout(&self, session: u32) -> u64 {
        let entry = &self.sessions[session as usize];
        if entry.srtt == 0 {
            return self.rto_before_backoff(session, 0);
        }
        let measured = 2 * entry.srtt as u64 + 4 * entry.rttvar as u64;
        measured.max(self.rto_min[0] / PROBE_SHARE_OF_RTO_MIN).min(self.rto(session, 0))
    }

    /// After a timeout, if the first packet is lost and waits for its turn, lets it go now, whatever the pace: a server
    /// that goes back takes no other, so those on their way may hold all that the pace allows for ever. Without a
    /// credit it takes that of the last packet that holds one.
    fn retake_first(&mut self, index: u32) -> bool {
        let call = &self.calls[index as usize];
        let window = &mut self.windows[call.window as usize];
        if call.received >= call.sent || !window.is_lost(call.received) {
            return false;
        }
        let session = &mut self.sessions[call.session as usize];
        if session.credits <= 0 {
            if !window.lose_last(call.received..call.sent) {
                return false;
            }
            session.credits += 1;
        }
        session.credits -= 1;
        window.send_again(call.received, self.now);
        true
    }

    /// The timer of [`Core::window_due`] has fired.
    #[cold]
    pub fn on_window_timer(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        let window = &self.windows[call.window as usize];
        if self.now >= window.due {
            self.find_lost(index);
            return self.pump_in_turn(index);
        }
        let (session, retries, numbers): (u32, u8, Range<u32>) = (call.session, call.retries, call.received..call.sent);
        let first = numbers.start;
        let probe = if retries > 0 && self.retake_first(index) {
            Some(first)
        } else {
            let window = &self.windows[self.calls[index as usize].window as usize];
            window.to_probe(numbers, retries == 0)
        };
        let call = &mut self.calls[index as usize];
        call.progress = self.now;
        // Without a packet to probe, it waits for credits, which calls with packets in flight will bring back.
        let Some(number) = probe else { return };
        self.windows[call.window as usize].probe(number, self.now);
        self.counters.tx_packets_again += 1;
        if retries == 0 {
            self.counters.tail_probes += 1;
        } else {
            self.on_timeout(index);
            self.counters.retransmissions += 1;
            let cold = &mut self.cold[session as usize];
            cold.retransmissions = cold.retransmissions.saturating_add(1);
        }
        let call = &mut self.calls[index as usize];
        call.retries = retries.saturating_add(1);
        call.unanswered = call.unanswered.saturating_add(1);
        if retries > 0 {
            self.note_timeout(session, retries);
        }
        self.send_numbered(index, number);
    }
}
