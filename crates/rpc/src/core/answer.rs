//! How the client receives the server's answers: credit returns and responses.

use dunlin_net::RxPacket;

use super::assemble::arrivals_of;
use super::observe::RoundTrip;
use super::piece::Piece;
use super::recovery::clear_window;
use super::{Core, NONE};
use crate::error::CallError;
use crate::msgbuf::MsgBuf;
use crate::mutation::{Mutation, is_planted};
use crate::observe::DropReason;
use crate::wire::failure::{BusyReason, FAILURE_BYTES_MAX, Failure};
use crate::wire::{Header, Multi, Status};

/// The error for the caller of a response whose status is not OK.
#[cold]
fn error_of(header: &Header, packet: &RxPacket<'_>) -> CallError {
    let mut bytes = [0; FAILURE_BYTES_MAX];
    // No more than its status allows: the header was checked.
    let payload = &mut bytes[..header.payload_len().min(FAILURE_BYTES_MAX)];
    packet.copy_to(header.wire_len(), payload);
    match header.status {
        Status::Busy => match BusyReason::parse(payload) {
            BusyReason::Overloaded => CallError::Busy,
            BusyReason::ShuttingDown => CallError::ShuttingDown,
        },
        Status::NoHandler => CallError::NoHandler,
        Status::Expired => CallError::DeadlineExceeded,
        Status::ResponseTooLarge => CallError::ResponseTooLarge,
        Status::Overloaded => CallError::Overloaded,
        Status::Application => match Failure::parse(payload) {
            Ok(failure) => CallError::Application(failure.into()),
            Err(_) => CallError::HandlerFailed,
        },
        Status::Ok | Status::HandlerFailed => CallError::HandlerFailed,
    }
}

/// Calls of a slot whose round trip is sampled into the histograms: one in this many.
pub(crate) const RTT_SAMPLING: u32 = 8;

impl Core {
    /// The call that a packet from the server answers, if it is still in progress.
    #[inline]
    fn answered_call(&mut self, session: u32, header: &Header) -> Option<u32> {
        let slot = &self.sessions[session as usize].client[header.request as usize & 7];
        let is_stale = slot.sequence as u64 != header.request >> 3 && !is_planted(Mutation::StaleResponseAccepted);
        if slot.call == NONE || is_stale {
            self.drop_on(session, DropReason::Stale);
            return None;
        }
        Some(slot.call)
    }

    /// A request packet that is not the last has arrived at the server. The server counts packets in order, so an
    /// answer to packet *i* also stands for those before it.
    pub fn on_credit_return(&mut self, session: u32, header: &Header, packet: &RxPacket<'_>) {
        let Some(index) = self.answered_call(session, header) else { return };
        let call = &mut self.calls[index as usize];
        if header.cut != call.cut {
            // It refers to packets of another length.
            self.drop_on(session, DropReason::Stale);
            return;
        }
        if call.window != NONE {
            return self.on_arrivals(index, header, packet);
        }
        let Some(arrivals) = arrivals_of(header, packet) else {
            self.drop_on(session, DropReason::Malformed);
            return;
        };
        if call.was_sent() && header.aux + 1 == call.request_packets && arrivals.first_missing >= call.request_packets {
            // The server has the whole request, and its handler is still running.
            (call.unanswered, call.confirmed) = (0, true);
            if call.request_packets == 1 {
                return;
            }
        }
        if header.aux >= call.sent || arrivals.first_missing == 0 || call.request_packets < 2 {
            self.drop_on(session, DropReason::OutOfOrder);
            return;
        }
        // Only the response answers the last packet of the request, and packets that a timeout rolled back do not count
        // as sent.
        let packet = (arrivals.first_missing - 1).min(call.request_packets - 2).min(call.sent - 1);
        if packet < call.received {
            self.drop_on(session, DropReason::Duplicate);
            return;
        }
        let (is_first, since) = (call.received == 0, call.timed_at);
        if let Some(rtt) = call.take_timing(packet, self.now) {
            self.on_rtt_sample(session, rtt, header.ecn_echo);
            if is_first && self.calls[index as usize].sequence % RTT_SAMPLING == 1 {
                self.sampled.push(RoundTrip { session, since });
            }
        }
        let call = &mut self.calls[index as usize];
        let returned = packet + 1 - call.received;
        call.received += returned;
        call.progress = self.now;
        (call.retries, call.unanswered) = (0, 0);
        self.sessions[session as usize].credits += returned as i16;
        self.pump_in_turn(index);
    }

    /// A packet of a response.
    #[inline]
    pub fn on_response(&mut self, session: u32, header: &Header, packet: &RxPacket<'_>) {
        let Some(index) = self.answered_call(session, header) else { return };
        let total = match header.multi {
            None => header.payload_len(),
            Some(multi) if multi.packet == 0 => multi.message_bytes as usize,
            Some(multi) if self.calls[index as usize].window == NONE => {
                return self.on_later_response(index, header, packet, multi);
            }
            Some(multi) => return self.on_window_response(index, header, packet, multi),
        };
        self.on_first_response(index, header, packet, total);
    }

    /// Response packet 0: the server has the whole request, whichever of its answers were lost, and whether or not the
    /// call was rolled back meanwhile.
    #[inline(always)]
    fn on_first_response(&mut self, index: u32, header: &Header, packet: &RxPacket<'_>, total: usize) {
        let call = &mut self.calls[index as usize];
        let si = call.session as usize;
        let session = &mut self.sessions[si];
        // If the server had to give up the response, the call is over, however much of it has arrived.
        let had_response = call.response_packets != 0;
        if had_response && header.status == Status::Ok {
            return self.on_first_response_again(index, *header);
        }
        let packet_data = match header.multi {
            None => Some(session.packet_data_max),
            Some(_) => {
                Piece::of(header, session.packet_data_max, session.message_bytes_max).map(|piece| piece.packet_data)
            }
        };
        let fits = |packet_data: &u16| {
            header.payload_len() <= usize::from(*packet_data)
                && (total <= session.message_bytes_max as usize || header.status != Status::Ok)
                && call.was_sent()
        };
        let Some(packet_data) = packet_data.filter(fits) else {
            self.drop_on(si as u32, DropReason::Malformed);
            return;
        };
        let held = if call.window == NONE { call.in_flight() } else { clear_window(&mut self.windows, call.window) };
        session.credits += held as i16;
        (call.sent, call.received) = (call.request_packets, call.request_packets);
        // Longer requests were sampled at their first credit return.
        if call.request_packets == 1 && !had_response {
            let since = if call.sent_again { call.started } else { call.progress };
            let sample = self.now.saturating_sub(since);
            let sequence = call.sequence;
            if call.sent_again {
                self.back_off(si as u32, sample);
            } else if header.deferred {
                session.sample_rtt(sample);
            } else {
                self.on_rtt_sample(si as u32, sample, header.ecn_echo);
            }
            if sequence % RTT_SAMPLING == 1 {
                self.sampled.push(RoundTrip { session: si as u32, since });
            }
        }
        let call = &mut self.calls[index as usize];
        call.progress = self.now;
        (call.retries, call.unanswered) = (0, 0);
        if header.status != Status::Ok {
            return self.fail_call(index, error_of(header, packet));
        }
        let Ok(mut response) = MsgBuf::unfilled(total) else {
            return self.fail_call(index, CallError::NoBuffer);
        };
        packet.copy_to(header.wire_len(), &mut response[..header.payload_len()]);
        if header.multi.is_none() {
            return self.complete_call(index, response);
        }
        let call = &mut self.calls[index as usize];
        call.response = Some(response);
        call.response_data = packet_data;
        call.response_packets = total.div_ceil(usize::from(packet_data)) as u32;
        (call.timed, call.sent_again_below) = (NONE, 0);
        if call.window == NONE {
            self.take_window(index);
            self.watch_long_call(index);
        }
        self.pump_in_turn(index);
    }

    /// Response packet 0 again: a duplicate, or the server has recut the response because its packets were too long for
    /// the path.
    #[cold]
    fn on_first_response_again(&mut self, index: u32, header: Header) {
        let si = self.calls[index as usize].session;
        // A packet that does not match the present cut of the response is counted where that is detected.
        if header.multi.is_none_or(|_| self.piece_of_response(index, &header).is_some()) {
            self.drop_on(si, DropReason::Duplicate);
        }
    }

    /// Where in its response a packet belongs, for a call whose response is being received; `None` if the packet must
    /// be dropped. If its packets are shorter than those before, the server has recut the response; the client then
    /// requests the missing part in the new cut. This packet was not requested in that cut, so it is dropped, too.
    pub fn piece_of_response(&mut self, index: u32, header: &Header) -> Option<Piece> {
        let call = &self.calls[index as usize];
        let session = &self.sessions[call.session as usize];
        let si = call.session;
        let total = call.response.as_ref().map(|response| response.len());
        let piece = Piece::of(header, session.packet_data_max, session.message_bytes_max);
        let is_of_it = header.status == Status::Ok && header.multi.map(|multi| multi.message_bytes as usize) == total;
        let Some(piece) = piece.filter(|_| is_of_it) else {
            self.drop_on(si, DropReason::Malformed);
            return None;
        };
        let before = call.response_data;
        if piece.packet_data == before {
            return Some(piece);
        }
        self.drop_on(si, DropReason::OutOfOrder);
        if piece.packet_data < before {
            self.recut_response(index, piece);
        }
        None
    }

    /// Continues with a response that its server has recut into shorter packets. Data received without a gap is kept.
    #[cold]
    fn recut_response(&mut self, index: u32, piece: Piece) {
        let call = &mut self.calls[index as usize];
        let total = call.response.as_ref().map_or(0, |response| response.len());
        let whole = (call.received + 1 - call.request_packets) as usize * usize::from(call.response_data);
        let held = if call.window == NONE { call.in_flight() } else { clear_window(&mut self.windows, call.window) };
        self.sessions[call.session as usize].credits += held as i16;
        call.response_data = piece.packet_data;
        call.response_packets = piece.packets(total);
        call.received = call.request_packets - 1 + (whole / usize::from(piece.packet_data)) as u32;
        call.sent = call.received;
        (call.timed, call.sent_again_below) = (NONE, 0);
        (call.progress, call.retries, call.unanswered) = (self.now, 0, 0);
        self.counters.messages_recut += 1;
        self.pump_in_turn(index);
        self.watch_long_call(index);
    }

    fn on_later_response(&mut self, index: u32, header: &Header, packet: &RxPacket<'_>, multi: Multi) {
        let si = self.calls[index as usize].session;
        if self.calls[index as usize].response_packets == 0 {
            return self.drop_on(si, DropReason::OutOfOrder);
        }
        let Some(Piece { offset, .. }) = self.piece_of_response(index, header) else { return };
        let call = &mut self.calls[index as usize];
        let session = &mut self.sessions[si as usize];
        let expected = (call.received + 1).saturating_sub(call.request_packets);
        let Some(response) = call.response.as_mut().filter(|_| multi.packet == expected && call.received < call.sent)
        else {
            match multi.packet < expected {
                true => self.drop_on(si, DropReason::Duplicate),
                false => self.drop_on(si, DropReason::OutOfOrder),
            }
            return;
        };
        packet.copy_to(header.wire_len(), &mut response[offset..offset + header.payload_len()]);
        session.credits += 1;
        let answered = call.received;
        call.received += 1;
        call.progress = self.now;
        (call.retries, call.unanswered) = (0, 0);
        if let Some(rtt) = call.take_timing(answered, self.now) {
            self.on_rtt_sample(si, rtt, header.ecn_echo);
        }
        let call = &mut self.calls[index as usize];
        if call.received < call.sendable() {
            self.pump_in_turn(index);
        } else if let Some(response) = call.response.take() {
            let session = call.session;
            self.complete_call(index, response);
            // The server keeps a large response until it learns that it arrived.
            self.send_release(session);
        }
    }
}
