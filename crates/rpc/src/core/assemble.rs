//! The server's side of multi-packet messages: requests are assembled from packets in any order, and packets of
//! responses are sent on request.
//!
//! `Serve::received` counts the packets before the first missing one; those that came out of order are in [`Early`],
//! which exists only once there are some. The first packet of a request to arrive, whichever it is, allocates the
//! buffer for the whole request: a client can claim no more memory with it than with packet 0, that is, a message of
//! the agreed length for each slot.

use dunlin_net::RxPacket;

use super::piece::Piece;
use super::serve::{Dispatch, ServeRef, ServeState};
use super::session::ServerSlot;
use super::window::WINDOW_PACKETS_MAX;
use super::{Core, NONE};
use crate::config::Recovery;
use crate::mutation::{Mutation, is_planted};
use crate::observe::DropReason;
use crate::wire::control::Body;
use crate::wire::packets::{ARRIVALS_BITS, Arrivals, Asked};
use crate::wire::{HEADER_BYTES, Header, Kind, Multi, Status};

/// Most packets that one credit return answers. If it is lost, others for the same window follow, and the client need
/// not wait for a timeout.
const RETURNED_TOGETHER_MAX: u8 = 8;
const WORDS: usize = WINDOW_PACKETS_MAX / u64::BITS as usize;

/// Packets that came out of order: a bit for each of the [`WINDOW_PACKETS_MAX`] after the first missing one.
#[derive(Debug)]
pub(crate) struct Early {
    bits: [u64; WORDS],
    count: u32,
}

impl Default for Early {
    fn default() -> Early {
        Early { bits: [0; WORDS], count: 0 }
    }
}

impl Early {
    fn place(number: u32) -> (usize, u64) {
        let at = number as usize % WINDOW_PACKETS_MAX;
        (at / u64::BITS as usize, 1 << (at % u64::BITS as usize))
    }

    fn contains(&self, number: u32) -> bool {
        let (word, bit) = Early::place(number);
        self.bits[word] & bit != 0
    }

    fn insert(&mut self, number: u32) {
        let (word, bit) = Early::place(number);
        self.count += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    /// Removes the packets that follow on `first`, and returns the first missing one after them.
    fn take_from(&mut self, mut first: u32) -> u32 {
        while self.count > 0 && self.contains(first) {
            let (word, bit) = Early::place(first);
            self.bits[word] &= !bit;
            self.count -= 1;
            first += 1;
        }
        first
    }

    /// Which of the last [`ARRIVALS_BITS`] packets up to `packet`, which has arrived, have arrived; all packets before
    /// `first` have.
    fn mask(&self, packet: u32, first: u32) -> u64 {
        let start = packet.wrapping_sub(ARRIVALS_BITS - 1) as usize % WINDOW_PACKETS_MAX;
        let (word, shift) = (start / u64::BITS as usize, start as u32 % u64::BITS);
        // Two words; the wanted bits are in the middle.
        let pair = self.bits[word] as u128 | (self.bits[(word + 1) % WORDS] as u128) << u64::BITS;
        let early = ((pair >> shift) as u64).reverse_bits();
        let before_first = u64::MAX.checked_shl((packet + 1).saturating_sub(first)).unwrap_or(0);
        early | before_first | 1
    }

    pub fn clear(&mut self) {
        if self.count > 0 {
            *self = Early::default();
        }
    }
}

/// A credit return of the current transmit batch that may still be extended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CreditReturn {
    batch: u32,
    place: u32,
    /// The packet that it answers.
    packet: u32,
    /// Packets by which it may still be extended.
    room: u8,
    ecn_echo: bool,
}

/// The packets that a credit return reports as arrived; `None` if it is malformed.
pub(crate) fn arrivals_of(header: &Header, packet: &RxPacket<'_>) -> Option<Arrivals> {
    match body_of(packet)? {
        // Without a body: all packets up to this one.
        [] => Some(Arrivals { first_missing: header.aux + 1, mask: 1 }),
        body => Arrivals::parse(body).ok(),
    }
}

/// The body after the header; `None` if it is longer than any valid body.
fn body_of<'a>(packet: &RxPacket<'a>) -> Option<&'a [u8]> {
    packet.head().get(HEADER_BYTES..packet.len())
}

impl Core {
    /// Where in its request a packet belongs.
    fn piece_of_request(&self, si: u32, header: &Header) -> Option<Piece> {
        let session = &self.sessions[si as usize];
        Piece::of(header, session.packet_data_max, session.message_bytes_max)
    }

    /// Whether a packet that is not the next one is kept.
    fn keeps_early(&self, next: u32, number: u32) -> bool {
        self.config.recovery == Recovery::Selective && number - next < WINDOW_PACKETS_MAX as u32
    }

    /// Where in its request the first packet to arrive belongs, if a multi-packet request can begin with it. If not,
    /// the packet is counted as dropped.
    #[cold]
    pub fn may_begin(&mut self, si: u32, header: &Header, multi: Multi) -> Option<Piece> {
        let Some(piece) = self.piece_of_request(si, header) else {
            self.drop_on(si, DropReason::Malformed);
            return None;
        };
        if multi.packet > 0 && !self.keeps_early(0, multi.packet) {
            self.drop_on(si, DropReason::OutOfOrder);
            return None;
        }
        Some(piece)
    }

    /// Begins a multi-packet request with its first packet to arrive, after [`Core::may_begin`].
    #[allow(clippy::too_many_arguments, reason = "what the caller has found out of the packet already")]
    pub fn begin_request(
        &mut self,
        si: u32,
        slot: usize,
        index: u32,
        header: &Header,
        packet: &RxPacket<'_>,
        multi: Multi,
        piece: Piece,
    ) {
        let total = multi.message_bytes as usize;
        let serve = &mut self.serves[index as usize];
        serve.request_packets = piece.packets(total);
        serve.request_data = piece.packet_data;
        serve.request_bytes = total as u32;
        serve.received = 0;
        serve.state = ServeState::Receiving;
        serve.credit_return.room = 0;
        if let Some(early) = &mut serve.early {
            early.clear();
        }
        self.sessions[si as usize].server[slot].sequence = serve.sequence;
        if !self.may_receive(si, total) || self.is_crowded && self.is_over_share(si) {
            self.counters.requests_over_memory_share += 1;
            self.refuse_rest(index);
        } else if self.keep_request(index, header, packet, total, piece.offset) {
            self.charge_receiving(si, total);
            // One packet of several does not complete it.
            self.count_packet(index, multi.packet);
            self.return_credit(si, index, multi.packet);
        }
    }

    /// Gives up a request that was not yet handed to a handler: nothing of it ran, and the client is told so whenever
    /// it sends more of it.
    pub fn refuse_rest(&mut self, index: u32) {
        let serve = &mut self.serves[index as usize];
        // From now on every packet of it counts as a duplicate.
        serve.received = serve.request_packets;
        serve.state = ServeState::Executing;
        self.handlers.counts[usize::from(serve.req_type)].requests += 1;
        if let Some(early) = &mut serve.early {
            early.clear();
        }
        let (session, request) = (serve.session, serve.request.take());
        let reference = ServeRef::new(index, serve.generation);
        if let Some(request) = request {
            self.refund_receiving(session, request.len());
        }
        self.respond_status(reference, Status::Busy);
    }

    /// A further packet of the request that is being received.
    pub fn continue_request(
        &mut self,
        si: u32,
        index: u32,
        header: &Header,
        packet: &RxPacket<'_>,
    ) -> Option<Dispatch> {
        if header.cut != self.serves[index as usize].cut && !self.recut_request(si, index, header) {
            return None;
        }
        let serve = &self.serves[index as usize];
        let Some(multi) = header.multi.filter(|multi| multi.packet < serve.request_packets) else {
            self.drop_on(si, DropReason::OutOfOrder);
            return None;
        };
        let number = multi.packet;
        let is_early = || serve.early.as_ref().is_some_and(|early| early.contains(number));
        if number < serve.received || serve.state == ServeState::Receiving && number != serve.received && is_early() {
            // A request that failed, or was given up before it was complete, gets its final answer for whichever packet
            // comes: a credit return would refer to packets that the client has not sent, and the client would reject
            // it.
            let is_over = number + 1 == serve.request_packets || serve.status != Status::Ok;
            if is_over && serve.state != ServeState::Receiving {
                self.answer_again(si, index, header);
            } else {
                self.return_credit(si, index, number);
                self.drop_on(si, DropReason::Duplicate);
            }
            return None;
        }
        if number != serve.received && !self.keeps_early(serve.received, number) {
            self.drop_on(si, DropReason::OutOfOrder);
            return None;
        }
        let piece = self.piece_of_request(si, header);
        let serve = &mut self.serves[index as usize];
        let piece = piece.filter(|piece| piece.packet_data == serve.request_data);
        let buf = serve.request.as_mut().filter(|buf| multi.message_bytes as usize == buf.len());
        let (Some(buf), Some(Piece { offset, .. })) = (buf, piece) else {
            self.drop_on(si, DropReason::Malformed);
            return None;
        };
        packet.copy_to(header.wire_len(), &mut buf[offset..offset + header.payload_len()]);
        if number == 0 {
            serve.set_deadline(header, self.now);
        }
        self.count_packet(index, number);
        let serve = &self.serves[index as usize];
        if serve.received < serve.request_packets {
            self.return_credit(si, index, number);
            return None;
        }
        let total = multi.message_bytes as usize;
        self.refund_receiving(si, total);
        // Others of its host have begun meanwhile. Its own bytes do not count: they go with it.
        if self.is_crowded && self.is_over_share(si) {
            self.counters.requests_over_memory_share += 1;
            self.charge_receiving(si, total);
            self.refuse_rest(index);
            return None;
        }
        let serve = &self.serves[index as usize];
        if number + 1 != serve.request_packets {
            // The response will answer the last packet, not this one.
            self.return_credit(si, index, number);
        }
        self.dispatch(index, None)
    }

    /// Handles a packet that belongs to another cut of its request than the packets before. If the request is
    /// incomplete and the cut is newer, the request starts over in the new cut, since the client counts packets from 0
    /// again. A complete request stays as it is, so only one cut of it ever completes and its handler runs once.
    /// Returns whether to accept the packet.
    #[cold]
    fn recut_request(&mut self, si: u32, index: u32, header: &Header) -> bool {
        let piece = self.piece_of_request(si, header);
        let serve = &mut self.serves[index as usize];
        if header.cut < serve.cut {
            self.drop_on(si, DropReason::Stale);
            return false;
        }
        if serve.state != ServeState::Receiving {
            self.answer_again(si, index, header);
            return false;
        }
        let total = serve.request.as_ref().map(|request| request.len());
        let is_of_it = header.multi.map(|multi| multi.message_bytes as usize) == total;
        let (Some(piece), Some(total)) = (piece.filter(|_| is_of_it), total) else {
            self.drop_on(si, DropReason::Malformed);
            return false;
        };
        serve.received = 0;
        serve.request_packets = piece.packets(total);
        (serve.request_data, serve.cut) = (piece.packet_data, header.cut);
        serve.credit_return.room = 0;
        if let Some(early) = &mut serve.early {
            early.clear();
        }
        self.counters.messages_recut += 1;
        true
    }

    /// Tells the client that the whole request has arrived, in answer to a duplicate packet.
    pub fn confirm_request(&mut self, si: u32, index: u32, header: &Header) {
        let serve = &self.serves[index as usize];
        let session = &mut self.sessions[si as usize];
        let request = serve.sequence as u64 * 8 + serve.slot as u64;
        let packet = header.multi.map_or(0, |multi| multi.packet);
        let mut answer = Header::new(Kind::CreditReturn, packet, session.remote_session, request, session.remote_tag);
        (answer.cut, answer.ecn_echo) = (header.cut, header.ecn_echo);
        session.count_tx(answer.wire_len());
        self.tx.push_bare(session.route, &answer);
    }

    fn count_packet(&mut self, index: u32, number: u32) {
        let serve = &mut self.serves[index as usize];
        serve.heard = self.now;
        if number != serve.received {
            return serve.early.get_or_insert_default().insert(number);
        }
        serve.received += 1;
        if let Some(early) = &mut serve.early {
            serve.received = early.take_from(serve.received);
        }
    }

    /// Answers packet `packet` of a request: by extending the previous credit return in the batch, if possible, or by a
    /// new one.
    fn return_credit(&mut self, si: u32, index: u32, packet: u32) {
        let serve = &mut self.serves[index as usize];
        let session = &mut self.sessions[si as usize];
        // A header alone means that all packets up to its own have arrived, with this one as the last.
        let arrivals = (packet + 1 != serve.received).then(|| Arrivals {
            first_missing: serve.received + u32::from(is_planted(Mutation::HoleReportedFilled)),
            mask: serve.early.as_ref().map_or(u64::MAX, |early| early.mask(packet, serve.received)),
        });
        let request = serve.sequence as u64 * 8 + serve.slot as u64;
        let mut header = Header::new(Kind::CreditReturn, packet, session.remote_session, request, session.remote_tag);
        (header.ecn_echo, header.cut) = (serve.ecn_echo, serve.cut);
        let last = serve.credit_return;
        let tells_of_last = last.packet <= packet && packet - last.packet < ARRIVALS_BITS;
        // A mark is echoed only for the packets that carried it.
        if last.room > 0 && last.batch == self.tx.batch && tells_of_last && last.ecn_echo == header.ecn_echo {
            self.tx.amend(last.place, Some(&header), arrivals.as_ref());
            (serve.credit_return.packet, serve.credit_return.room) = (packet, last.room - 1);
            return;
        }
        session.count_tx(header.wire_len() + if arrivals.is_some() { Arrivals::BYTES } else { 0 });
        let place = self.tx.push_bare(session.route, &header);
        if arrivals.is_some() {
            self.tx.amend(place, None, arrivals.as_ref());
        }
        let is_cumulative = self.config.optimizations.cumulative_credit_returns.is_on();
        let room = if is_cumulative { RETURNED_TOGETHER_MAX - 1 } else { 0 };
        serve.credit_return = CreditReturn { batch: self.tx.batch, place, packet, room, ecn_echo: header.ecn_echo };
    }

    /// The client requests later packets of a response.
    pub fn on_request_for_response(&mut self, si: u32, header: &Header, packet: &RxPacket<'_>) {
        let ServerSlot { sequence, serve: index } = self.sessions[si as usize].server[header.request as usize & 7];
        if index == NONE || sequence as u64 != header.request >> 3 {
            self.drop_on(si, DropReason::Stale);
            return;
        }
        let asked = match body_of(packet) {
            Some([]) => Some(Asked { packets: 1 }),
            body => body.and_then(|body| Asked::parse(body).ok()),
        };
        let Some(Asked { packets: count }) = asked else {
            self.drop_on(si, DropReason::Malformed);
            return;
        };
        // Each of them takes a credit of the client's.
        if count > u32::from(self.cold[si as usize].places.inbound.max(1)) {
            self.drop_on(si, DropReason::OutOfOrder);
            return;
        }
        let packet_data = self.response_data(index);
        let serve = &mut self.serves[index as usize];
        serve.ecn_echo = header.ecn_echo;
        let packets = serve.response.as_ref().map_or(0, |r| r.len().div_ceil(packet_data));
        // Numbers of 24 bits and of 7: their sum does not overflow.
        let (first, end) = (header.aux, header.aux + count);
        if serve.state == ServeState::Responded && serve.status != Status::Ok {
            // The response was given up: the client must learn that, however far it has come.
            return self.send_response_packet(index, 0);
        }
        if serve.state != ServeState::Responded || first == 0 || end as usize > packets {
            self.drop_on(si, DropReason::OutOfOrder);
            return;
        }
        serve.heard = self.now;
        let is_again = first < serve.asked;
        serve.asked = serve.asked.max(end);
        if is_again {
            self.doubt_path(si);
        }
        for number in first..end {
            self.send_response_packet(index, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_packets_are_taken_out_in_order() {
        let mut early = Early::default();
        let base = 3 * WINDOW_PACKETS_MAX as u32 - 2;
        for number in [base + 3, base + 1, base + 2, base + 2, base + WINDOW_PACKETS_MAX as u32 - 1] {
            early.insert(number);
        }
        assert_eq!((early.take_from(base), early.count), (base, 4));
        assert_eq!((early.take_from(base + 1), early.count), (base + 4, 1));
        assert!(!early.contains(base + 2) && early.contains(base + WINDOW_PACKETS_MAX as u32 - 1));
        assert_eq!(early.mask(base + 5, base + 4), u64::MAX << 2 | 1);
        early.insert(base + 7);
        early.insert(base + 8);
        assert_eq!(early.mask(base + 8, base + 5), u64::MAX << 4 | 3);
        assert_eq!(early.mask(base + 70, base), 1 | 1 << 62 | 1 << 63);
        early.clear();
        assert_eq!((early.count, early.bits), (0, [0; WORDS]));
    }
}
