//! The server's side of a request: receiving it, at most one execution, and the response.
//!
//! The server is passive: each packet it sends answers one of the client. A slot's sequence number only grows, and a
//! request whose number is not greater never starts a handler; that is all it takes for at-most-once execution. The
//! response is kept until the next request of the slot, or until the client releases it.

use std::sync::Arc;
use std::task::Waker;

use dunlin_net::RxPacket;

use super::assemble::{CreditReturn, Early};
use super::handle::Handle;
use super::mtu_search::BASE_MTU;
use super::session::{ServerSlot, Session, State};
use super::transmit::{Owner, Source, TxQueue};
use super::{Core, NONE, packet_data_bytes};
use crate::context::{self, RequestContext, SharedTime};
use crate::error::RespondError;
use crate::msgbuf::MsgBuf;
use crate::mutation::{Mutation, is_planted};
use crate::observe::DropReason;
use crate::payload::{Payload, RequestBuffer};
use crate::wire::control::{Release, SLOTS_MAX};
use crate::wire::failure::{BusyReason, Failure};
use crate::wire::{Header, Kind, Multi, Status};

/// Identifies a request that a handler has. When the client gives the request up, the generation changes.
pub(crate) type ServeRef = Handle<Serve>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServeState {
    Free,
    /// Packets are missing.
    Receiving,
    /// The handler has it.
    Executing,
    /// The response is kept.
    Responded,
}

/// A request being received, executed or answered. Entries are pooled. An entry that belongs to a slot keeps its small
/// response buffer for the slot's next request (the paper's preallocated responses, section 4.3); a free entry keeps
/// nothing, since no host is charged for it.
#[repr(align(64))]
pub(crate) struct Serve {
    pub generation: u32,
    pub state: ServeState,
    pub slot: u8,
    pub req_type: u8,
    pub status: Status,
    /// Whether the network marked the packet that is answered next.
    pub ecn_echo: bool,
    /// Whether the handler kept the request for later.
    pub deferred: bool,
    pub session: u32,
    pub sequence: u32,
    pub request_packets: u32,
    /// Bytes of the whole request.
    pub request_bytes: u32,
    /// Bytes charged to its client's host for the response and its buffer: see [`super::memory`].
    pub charged: u32,
    pub received: u32,
    /// Data bytes of each packet of the request but the last, if it has several, and of the response.
    pub request_data: u16,
    pub response_data: u16,
    /// How often the client had recut the request when its packets were accepted.
    pub cut: u8,
    /// The response packet after the last one ever requested.
    pub asked: u32,
    /// The last transmit batch in which a packet of the response was queued.
    pub tx_batch: u32,
    /// When a packet of the request, or a request for the response, was last accepted, or the response was produced.
    pub heard: u64,
    /// Nanoseconds; [`super::call::NO_DEADLINE`] for none.
    pub deadline: u64,
    pub request: Option<MsgBuf>,
    /// Set once its handler has asked for it, until the client no longer waits.
    pub context: Option<RequestContext>,
    pub response: Option<Payload>,
    pub spare: Option<MsgBuf>,
    /// The last credit return, for a multi-packet request.
    pub credit_return: CreditReturn,
    /// Packets of the request that came out of order; the box is kept for later requests of the slot.
    pub early: Option<Box<Early>>,
}

impl Serve {
    /// Sets the deadline from packet 0 of a request.
    #[inline]
    pub fn set_deadline(&mut self, header: &Header, now: u64) {
        self.deadline = header.deadline_us.map_or(super::call::NO_DEADLINE, |us| now + us as u64 * 1000);
    }

    #[cold]
    fn end_context(&mut self, woken: &mut Vec<Waker>) {
        if let Some(context) = self.context.take() {
            context.end(woken);
        }
    }
}

/// A complete request, for the event loop to hand to its handler. Two words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dispatch {
    pub serve: ServeRef,
    /// Request type, then, if the payload lies in the received packet, 1, where it starts there, and its length: 16
    /// bits each.
    word: u64,
}

impl Dispatch {
    #[inline]
    fn new(serve: ServeRef, req_type: u8, in_packet: Option<(u16, u16)>) -> Dispatch {
        let place = in_packet.map_or(0, |(start, len)| 1 << 16 | (start as u64) << 32 | (len as u64) << 48);
        Dispatch { serve, word: req_type as u64 | place }
    }

    #[inline]
    pub fn req_type(self) -> u8 {
        self.word as u8
    }

    /// Where in the received packet the payload starts, and its length; `None` if it is in the serve's buffer.
    #[inline]
    pub fn in_packet(self) -> Option<(usize, usize)> {
        let (start, len) = ((self.word >> 32) as u16 as usize, (self.word >> 48) as usize);
        (self.word & 1 << 16 != 0).then_some((start, len))
    }
}

/// Of the requests that are answered in their receive burst, one in this many is timed.
const TIME_SAMPLING: u64 = 16;

/// Data bytes of a packet that every path is expected to carry.
const BASE_DATA: usize = packet_data_bytes(BASE_MTU as usize);

impl Core {
    fn take_serve(&mut self) -> u32 {
        self.free_serves.pop().unwrap_or_else(|| {
            self.serves.push(Serve {
                generation: 0,
                state: ServeState::Free,
                slot: 0,
                req_type: 0,
                status: Status::Ok,
                ecn_echo: false,
                deferred: false,
                session: NONE,
                sequence: 0,
                request_packets: 0,
                request_bytes: 0,
                charged: 0,
                received: 0,
                request_data: 0,
                response_data: 0,
                cut: 0,
                asked: 0,
                tx_batch: 0,
                heard: 0,
                deadline: super::call::NO_DEADLINE,
                request: None,
                context: None,
                response: None,
                spare: None,
                credit_return: CreditReturn::default(),
                early: None,
            });
            self.serves.len() as u32 - 1
        })
    }

    /// Releases what a server entry holds. A handler that still runs becomes an orphan: its response is dropped.
    #[inline]
    fn clear_serve(&mut self, index: u32) {
        let serve = &mut self.serves[index as usize];
        if serve.state != ServeState::Responded {
            return self.clear_unanswered(index);
        }
        if serve.tx_batch == self.tx.batch {
            self.tx.forget_serve(index);
        }
        serve.generation = serve.generation.wrapping_add(1);
        serve.state = ServeState::Free;
        if serve.charged as usize > self.mtu {
            return self.clear_large(index);
        }
        // No larger than what is charged for it.
        match serve.response.take() {
            Some(response) if response.is_foreign() => self.discard(response),
            Some(response) if self.config.optimizations.preallocated_responses.is_on() => {
                serve.spare = MsgBuf::from_payload(response);
            }
            _ => {}
        }
    }

    /// Releases the response of a slot that was charged for a large one, and refunds the charge.
    #[cold]
    fn clear_large(&mut self, index: u32) {
        if let Some(response) = self.serves[index as usize].response.take() {
            self.discard(response);
        }
        self.refund_response(index);
    }

    /// The same for a request without a response: it has no packets that wait to be sent.
    #[cold]
    fn clear_unanswered(&mut self, index: u32) {
        let serve = &mut self.serves[index as usize];
        serve.generation = serve.generation.wrapping_add(1);
        let state = std::mem::replace(&mut serve.state, ServeState::Free);
        serve.end_context(&mut self.woken);
        let (session, request) = (serve.session, serve.request.take());
        if state == ServeState::Receiving
            && let Some(request) = request
        {
            self.refund_receiving(session, request.len());
        }
    }

    /// The context of a request, for its handler to ask for while it runs: later the entry may belong to another
    /// request. Created on first use.
    pub fn context_of(&mut self, reference: ServeRef, time: &Arc<SharedTime>) -> RequestContext {
        time.tell(self.now);
        if let Ok(Serve { context: Some(context), .. }) = self.waiting(reference) {
            return context.clone();
        }
        let serve = &self.serves[reference.place()];
        let (req_type, session, deadline) = (serve.req_type, self.session_ref(serve.session), serve.deadline);
        let peer = self.peers.addr(self.sessions[serve.session as usize].peer).cloned();
        let request = context::Request { req_type, session, peer, deadline };
        let context = RequestContext::new(request, time);
        match self.waiting(reference) {
            Ok(serve) => serve.context = Some(context.clone()),
            Err(_) => context.end(&mut self.woken),
        }
        context
    }

    /// Frees the server entry of a slot, if it has one.
    pub fn drop_serve_of(&mut self, session: u32, slot: usize) {
        let index = std::mem::replace(&mut self.sessions[session as usize].server[slot].serve, NONE);
        if index != NONE {
            self.clear_serve(index);
            let serve = &mut self.serves[index as usize];
            (serve.spare, serve.early) = (None, None);
            if serve.charged != 0 {
                self.refund_all(index);
            }
            self.free_serves.push(index);
        }
    }

    /// A packet of a request. Returns the request if it is complete now.
    #[inline]
    pub fn on_request(&mut self, si: u32, header: &Header, packet: &RxPacket<'_>) -> Option<Dispatch> {
        let session = &self.sessions[si as usize];
        let slot = header.request as usize & 7;
        let sequence = (header.request >> 3) as u32;
        let ServerSlot { sequence: last, serve } = session.server[slot];
        if header.request >> 35 != 0 || slot >= self.sessions[si as usize].slots as usize {
            self.drop_on(si, DropReason::Malformed);
            return None;
        }
        // Sequence numbers wrap around; a number less than half the circle ahead is newer.
        let ahead = sequence.wrapping_sub(last) as i32;
        if ahead < 0 {
            self.drop_on(si, DropReason::Stale);
            return None;
        }
        let runs_again = is_planted(Mutation::RequestRunsAgain) && header.multi.is_none();
        if ahead == 0 && !runs_again {
            return self.on_request_again(si, serve, *header, packet);
        }
        let packet_data_max = session.packet_data_max as usize;
        match header.multi {
            None if header.payload_len() > packet_data_max => {
                self.drop_on(si, DropReason::Malformed);
                return None;
            }
            _ => {}
        }
        let piece = match header.multi {
            None => None,
            Some(multi) => Some(self.may_begin(si, header, multi)?),
        };
        let index = if serve == NONE {
            let index = self.take_serve();
            self.sessions[si as usize].server[slot].serve = index;
            index
        } else {
            self.clear_serve(serve);
            serve
        };
        let now = self.now;
        let entry = &mut self.serves[index as usize];
        entry.session = si;
        entry.slot = slot as u8;
        entry.sequence = sequence;
        entry.req_type = header.req_type();
        entry.status = Status::Ok;
        entry.ecn_echo = header.ecn_echo;
        entry.deferred = false;
        entry.set_deadline(header, now);
        entry.received = 1;
        (entry.cut, entry.asked) = (header.cut, 0);
        if let (Some(multi), Some(piece)) = (header.multi, piece) {
            self.begin_request(si, slot, index, header, packet, multi, piece);
            return None;
        }
        entry.request_packets = 1;
        entry.request_bytes = header.payload_len() as u32;
        self.sessions[si as usize].server[slot].sequence = sequence;
        if self.is_crowded && self.is_over_share(si) {
            self.counters.requests_over_memory_share += 1;
            self.refuse_rest(index);
            return None;
        }
        let in_place = packet.bytes().is_some() && self.config.optimizations.zero_copy_requests.is_on();
        if !in_place && !self.keep_request(index, header, packet, header.payload_len(), 0) {
            return None;
        }
        let at = (header.wire_len() as u16, header.payload_len() as u16);
        self.dispatch(index, in_place.then_some(at))
    }

    pub fn dispatch(&mut self, index: u32, in_packet: Option<(u16, u16)>) -> Option<Dispatch> {
        let serve = &mut self.serves[index as usize];
        serve.state = ServeState::Executing;
        self.handlers.counts[usize::from(serve.req_type)].requests += 1;
        Some(Dispatch::new(ServeRef::new(index, serve.generation), serve.req_type, in_packet))
    }

    /// Copies the data of the first packet to arrive into a buffer for the whole request, where it belongs. If there is
    /// no memory, the packet counts as lost, and the client retransmits it.
    pub fn keep_request(
        &mut self,
        index: u32,
        header: &Header,
        packet: &RxPacket<'_>,
        total: usize,
        offset: usize,
    ) -> bool {
        let Ok(mut buf) = MsgBuf::unfilled(total) else {
            let (session, slot) = (self.serves[index as usize].session, self.serves[index as usize].slot);
            self.drop_on(session, DropReason::NoMemory);
            let entry = &mut self.sessions[session as usize].server[slot as usize];
            // As if the packet had never come.
            entry.sequence = self.serves[index as usize].sequence.wrapping_sub(1);
            self.drop_serve_of(session, slot as usize);
            return false;
        };
        packet.copy_to(header.wire_len(), &mut buf[offset..offset + header.payload_len()]);
        self.serves[index as usize].request = Some(buf);
        true
    }

    /// Another packet of the slot's present request.
    #[cold]
    fn on_request_again(&mut self, si: u32, index: u32, header: Header, packet: &RxPacket<'_>) -> Option<Dispatch> {
        if index == NONE {
            // Released: the client has its response, or wants none.
            self.drop_on(si, DropReason::Stale);
            return None;
        }
        let serve = &mut self.serves[index as usize];
        serve.ecn_echo = header.ecn_echo;
        if serve.request_packets > 1 || header.cut != serve.cut {
            return self.continue_request(si, index, &header, packet);
        }
        if header.multi.is_some() {
            self.drop_on(si, DropReason::OutOfOrder);
            return None;
        }
        self.answer_again(si, index, &header);
        None
    }

    /// A packet of a complete request came again: resends the response, or confirms that the handler has the request.
    #[cold]
    pub fn answer_again(&mut self, si: u32, index: u32, header: &Header) {
        let serve = &mut self.serves[index as usize];
        serve.heard = self.now;
        if serve.state == ServeState::Responded {
            self.response_data(index);
            let serve = &self.serves[index as usize];
            // The first packet of the response may have been too long for the path.
            if serve.response.as_ref().is_some_and(|response| response.len() > BASE_DATA) {
                self.doubt_path(si);
            }
            self.send_response_packet(index, 0);
        } else {
            self.confirm_request(si, index, header);
        }
        self.drop_on(si, DropReason::Duplicate);
    }

    /// Data bytes of the packets in which a response is resent: what its session had when it was produced, or less if
    /// that has shrunk.
    pub fn response_data(&mut self, index: u32) -> usize {
        let serve = &mut self.serves[index as usize];
        serve.response_data = serve.response_data.min(self.sessions[serve.session as usize].packet_data);
        serve.response_data as usize
    }

    /// Sends a packet of a response. If any was sent before, call [`Core::response_data`] first.
    pub fn send_response_packet(&mut self, index: u32, packet: u32) {
        let is_adjacent = self.config.optimizations.adjacent_header.is_on();
        let serve = &mut self.serves[index as usize];
        let session = &mut self.sessions[serve.session as usize];
        push_packet(&mut self.tx, is_adjacent, index, serve, session, packet);
    }

    /// The entry that a handler's reference names, if the client still waits.
    #[inline]
    pub fn waiting(&mut self, reference: ServeRef) -> Result<&mut Serve, RespondError> {
        match self.serves.get_mut(reference.place()) {
            Some(serve) if serve.generation == reference.generation() && serve.state == ServeState::Executing => {
                Ok(serve)
            }
            _ => Err(RespondError::Orphaned),
        }
    }

    /// The handler keeps a request for later, so the time of its response says nothing about network delay.
    pub fn note_deferred(&mut self, reference: ServeRef) {
        if let Ok(serve) = self.waiting(reference) {
            serve.deferred = true;
        }
    }

    /// A handler that kept a request since `began` is about to answer it.
    pub fn note_late_answer(&mut self, reference: ServeRef, began: u64) {
        if self.config.time_handlers.is_on()
            && let Ok(serve) = self.waiting(reference)
        {
            let req_type = serve.req_type;
            self.handlers.note_in_handler(req_type, self.now.saturating_sub(began));
        }
    }

    /// Chooses the request of a receive burst that is timed, one in [`TIME_SAMPLING`] of all. `handled` is the number
    /// of requests before the burst.
    #[inline]
    pub fn choose_timed(&mut self, handled: u64, dispatches: &[(u8, Dispatch)]) {
        let crosses = (handled + dispatches.len() as u64) / TIME_SAMPLING != handled / TIME_SAMPLING;
        if crosses && self.config.time_handlers.is_on() {
            // The distance to the next chosen one must be less than the number of requests.
            let next = (TIME_SAMPLING - 1 - handled % TIME_SAMPLING) as usize;
            self.timed = dispatches.get(next).map(|(_, dispatch)| dispatch.serve);
        }
    }

    /// Records the time of the chosen request, which was received `nanos` ago, if its handler has answered at once.
    #[cold]
    pub fn note_timed(&mut self, reference: ServeRef, nanos: u64) {
        let serve = &self.serves[reference.place()];
        let is_answered = serve.generation == reference.generation() && serve.state == ServeState::Responded;
        if is_answered && !serve.deferred && serve.status != Status::NoHandler {
            let req_type = serve.req_type;
            self.handlers.note_in_handler(req_type, nanos);
        }
    }

    /// A buffer of `len` bytes for the response, which the caller overwrites: the slot's own if it is large enough.
    #[inline]
    pub fn response_buffer(&mut self, reference: ServeRef, len: usize) -> Result<MsgBuf, RespondError> {
        if self.config.optimizations.preallocated_responses.is_on()
            && let Some(spare) = self.waiting(reference)?.spare.take_if(|spare| spare.try_expose(len))
        {
            return Ok(spare);
        }
        Ok(MsgBuf::unfilled(len)?)
    }

    /// Sends the response of a request.
    #[inline]
    pub fn respond(&mut self, reference: ServeRef, response: Payload) -> Result<(), RespondError> {
        let len = response.len();
        let Ok(serve) = self.waiting(reference) else {
            self.counters.responses_orphaned += 1;
            self.discard(response);
            return Err(RespondError::Orphaned);
        };
        let (session, charged) = (serve.session, serve.charged as usize);
        let max = self.sessions[session as usize].message_bytes_max as usize;
        if len > max {
            self.respond_status(reference, Status::ResponseTooLarge);
            self.discard(response);
            return Err(RespondError::TooLarge { len, max });
        }
        // The slot is charged for one buffer.
        self.serves[reference.index() as usize].spare = None;
        if response.kept_bytes() > charged && !self.charge_response(reference.index(), &response) {
            self.counters.responses_over_memory_share += 1;
            self.respond_status(reference, Status::ResponseTooLarge);
            self.discard(response);
            return Err(RespondError::OverShare { len });
        }
        self.finish_serve(reference.index(), Some(response), Status::Ok);
        Ok(())
    }

    /// Ends a request with a status other than OK, and the reason if it is busy.
    #[cold]
    pub fn respond_status(&mut self, reference: ServeRef, status: Status) {
        if self.waiting(reference).is_ok() {
            let is_leaving = status == Status::Busy && self.shutting_down;
            // If there is no memory for the reason, the caller only learns that nothing ran.
            let reason = is_leaving.then(|| MsgBuf::copy_from(BusyReason::ShuttingDown.payload()).ok()).flatten();
            self.finish_serve(reference.index(), reason.map(Payload::from), status);
        }
    }

    /// Ends a request with an error of the application; the caller gets as much of it as fits one packet.
    ///
    /// # Errors
    /// As [`Core::respond`]; the caller, if it still waits, then gets the error that the handler failed.
    #[cold]
    pub fn respond_failure(&mut self, reference: ServeRef, code: u32, message: &str) -> Result<(), RespondError> {
        let Ok(serve) = self.waiting(reference) else {
            self.counters.responses_orphaned += 1;
            return Err(RespondError::Orphaned);
        };
        let session = serve.session;
        let failure = Failure::fitting(code, message, self.sessions[session as usize].packet_data.into());
        match self.keep_failure(reference, &failure) {
            Ok(payload) => self.finish_serve(reference.index(), Some(payload), Status::Application),
            Err(error) => {
                self.respond_status(reference, Status::HandlerFailed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The payload of a failure, in the form that its slot keeps.
    fn keep_failure(&mut self, reference: ServeRef, failure: &Failure<'_>) -> Result<Payload, RespondError> {
        let len = failure.bytes();
        let mut buffer = self.response_buffer(reference, len)?;
        failure.write(&mut buffer);
        let payload = Payload::from(buffer);
        let charged = self.serves[reference.place()].charged as usize;
        if payload.kept_bytes() > charged && !self.charge_response(reference.index(), &payload) {
            self.counters.responses_over_memory_share += 1;
            return Err(RespondError::OverShare { len });
        }
        Ok(payload)
    }

    #[inline]
    fn finish_serve(&mut self, index: u32, response: Option<Payload>, status: Status) {
        let is_adjacent = self.config.optimizations.adjacent_header.is_on();
        let serve = &mut self.serves[index as usize];
        serve.state = ServeState::Responded;
        serve.status = status;
        serve.response = response;
        self.handlers.counts[usize::from(serve.req_type)].answers[status as usize] += 1;
        serve.request = None;
        serve.heard = self.now;
        if serve.context.is_some() {
            serve.end_context(&mut self.woken);
        }
        let session = &mut self.sessions[serve.session as usize];
        serve.response_data = session.packet_data;
        if session.state == State::Connected {
            push_packet(&mut self.tx, is_adjacent, index, serve, session, 0);
        }
    }

    /// The client no longer needs the requests up to these sequence numbers.
    pub fn on_release(&mut self, si: u32, release: &Release) {
        for slot in 0..SLOTS_MAX {
            let ServerSlot { sequence, serve } = self.sessions[si as usize].server[slot];
            if serve != NONE && release.sequences[slot].wrapping_sub(sequence) as i32 >= 0 {
                self.drop_serve_of(si, slot);
            }
        }
    }

    /// Tells the server which requests of this session are over: cancelled calls and responses that have arrived.
    pub fn send_release(&mut self, si: u32) {
        let session = &self.sessions[si as usize];
        if session.state != State::Connected {
            return;
        }
        let mut sequences = [0; SLOTS_MAX];
        for (slot, sequence) in sequences.iter_mut().enumerate() {
            let client = session.client[slot];
            *sequence = if client.call == NONE { client.sequence } else { client.sequence.wrapping_sub(1) };
        }
        self.send_control(si, Kind::Release, &Release { sequences });
    }
}

/// Queues a packet of a response. Inlined with what its caller has at hand: to find the entry and its session again
/// would be a twentieth of an answer.
#[inline(always)]
fn push_packet(tx: &mut TxQueue, is_adjacent: bool, index: u32, serve: &mut Serve, session: &mut Session, packet: u32) {
    let packet_data = usize::from(serve.response_data);
    let total = serve.response.as_ref().map_or(0, |r| r.len());
    let offset = packet as usize * packet_data;
    let len = (total - offset).min(packet_data);
    let number = serve.sequence as u64 * 8 + serve.slot as u64;
    let aux = Header::data_aux(serve.req_type, len);
    let mut header = Header::new(Kind::Response, aux, session.remote_session, number, session.remote_tag);
    header.status = serve.status;
    header.ecn_echo = serve.ecn_echo;
    header.deferred = serve.deferred;
    if total > packet_data {
        header.multi = Some(Multi { message_bytes: total as u32, packet });
        header.is_last = offset + len == total;
    }
    let source = match &mut serve.response {
        Some(response) => match response.as_msgbuf_mut() {
            Some(buf) if packet == 0 && is_adjacent => Source::start(Owner::Serve, index, buf, &header, len),
            _ => Source::piece(Owner::Serve, index, offset, len),
        },
        None => Source::NOTHING,
    };
    serve.tx_batch = tx.batch;
    session.count_tx(header.wire_len() + len);
    tx.push(session.route, &header, source);
}
