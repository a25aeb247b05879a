//! The way to other replicas.
//!
//! Messages to a replica wait in a queue. They leave in the response to a request of that replica, if one waits to be answered, and else in requests
//! of our own, all that wait together, as long as not too many are unanswered. So an append and its answer are one call. A request of
//! more than one packet goes alone: smaller ones would overtake it, and the library would take that for a loss.

use std::collections::VecDeque;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, ConnectError, ContinuationId, DeferredReply, MsgBuf, Session};
use raft::eraftpb::{Message, MessageType};

use super::Counters;
use super::core::Job;
use super::transfer::Outgoing;
use crate::wire::PEER;
use crate::wire::members::Members;
use crate::wire::message::{ENVELOPE_BYTES, MESSAGES_MAX, encode, encoded_len};

/// Messages that wait for one replica. Further ones are dropped, as a network drops them.
const QUEUE_MAX: usize = 4096;
/// Bytes of them.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Unanswered requests to one replica: the slots of a session.
const CALLS_MAX: usize = 8;
/// Bytes of messages that leave together, unless a single one is longer.
const ENVELOPE_BYTES_MAX: usize = 512 << 10;
/// Messages that leave in a response, in bytes; longer ones leave in requests, whose losses are noticed.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// A request up to so long goes beside others: one packet over any transport.
const SMALL_BYTES_MAX: usize = 1024;
/// Requests of one replica that wait to be answered.
const AWAITED_MAX: usize = 64;
/// Replicas that are known by their messages only.
const STRANGERS_MAX: usize = 16;

/// A request that is unanswered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// When it was handed over at the earliest, by the replica's clock, and as leader of which term it spoke; 0 if as none.
    pub at: u64,
    pub leader_of: u64,
    is_large: bool,
}

/// What is known of another replica.
pub(super) struct Link {
    pub id: u64,
    /// Unique: answers to calls of a link that is gone find none.
    number: u32,
    addr: Option<Addr>,
    session: Option<Session>,
    is_connecting: bool,
    queue: VecDeque<Message>,
    queue_bytes: usize,
    sent: [Option<Sent>; CALLS_MAX],
    large_in_flight: bool,
    /// Requests of that replica, each with what must be durable before it is answered.
    awaited: VecDeque<(u64, DeferredReply)>,
    /// The latest time at which something was sent that it answered, and in which term.
    pub heard: (u64, u64),
}

/// All of them.
pub(super) struct Links {
    own: u64,
    links: Vec<Link>,
    next_number: u32,
    clock_now: u64,
    is_stopped: bool,
}

impl Links {
    pub fn new(own: u64) -> Links {
        Links { own, links: Vec::new(), next_number: 0, clock_now: 0, is_stopped: false }
    }

    pub fn get(&self, id: u64) -> Option<&Link> {
        self.links.iter().find(|link| link.id == id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    /// What is sent from now on is sent at this time, or later by less than a tick.
    pub fn set_now(&mut self, now: u64) {
        self.clock_now = now;
    }

    /// Has a link to each of these, where it is reached now, and to none that has left.
    pub fn follow(&mut self, members: &Members) {
        self.links.retain(|link| link.addr.is_none() || members.contains_key(&link.id));
        let own = self.own;
        for (id, address) in members.iter().filter(|(id, _)| **id != own) {
            let addr: Option<Addr> = address.parse().ok();
            let link = self.find_or_add(*id);
            if link.addr != addr {
                link.addr = addr;
                // It ends at once; nobody need wait until the other side knows.
                drop(link.session.take().map(|session| session.close()));
            }
        }
    }

    fn find_or_add(&mut self, id: u64) -> &mut Link {
        let place = self.links.iter().position(|link| link.id == id).unwrap_or_else(|| {
            let strangers = self.links.iter().filter(|link| link.addr.is_none()).count();
            if strangers >= STRANGERS_MAX {
                self.links.retain(|link| link.addr.is_some());
            }
            let number = self.next_number;
            self.next_number += 1;
            self.links.push(Link::new(id, number));
            self.links.len() - 1
        });
        &mut self.links[place]
    }

    /// A message is to be sent.
    pub fn route(&mut self, message: Message, jobs: &mut Vec<Job>) {
        if self.is_stopped {
            return;
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            return jobs.push(Job::SendSnapshot(Outgoing::new(message)));
        }
        self.find_or_add(message.to).push(message);
    }

    /// A request of a replica is to be answered when `ready` is done for good.
    pub fn await_persisted(&mut self, from: u64, ready: u64, reply: DeferredReply) {
        let link = self.find_or_add(from);
        // The oldest is dropped, which tells its sender that nothing came of it.
        if link.awaited.len() >= AWAITED_MAX {
            link.awaited.pop_front();
        }
        link.awaited.push_back((ready, reply));
    }

    /// Messages for a replica that fit in a response to it.
    pub fn for_response(&mut self, id: u64) -> Vec<Message> {
        self.get_mut(id).map_or_else(Vec::new, |link| link.take(RESPONSE_BYTES_MAX, TakeLast::Leave))
    }

    /// Sends what waits; gives those who cannot be reached.
    pub fn flush(
        &mut self,
        cluster: u64,
        persisted: u64,
        continuation: Option<ContinuationId>,
        timeout: Duration,
        counters: &mut Counters,
    ) -> Vec<u64> {
        let mut unreachable = Vec::new();
        let now = self.clock_now;
        for link in &mut self.links {
            link.answer(cluster, persisted, counters);
            let Some(continuation) = continuation else { continue };
            while link.may_send() {
                if link.send(cluster, continuation, timeout, now, counters).is_err() {
                    unreachable.push(link.id);
                    break;
                }
            }
        }
        unreachable
    }

    /// Links without a session that should have one.
    pub fn unconnected(&mut self) -> Vec<(u32, Addr)> {
        let mut found = Vec::new();
        for link in &mut self.links {
            if link.session.as_ref().is_some_and(|session| !session.is_open()) {
                link.session = None;
            }
            if let (Some(addr), None, false) = (&link.addr, &link.session, link.is_connecting) {
                link.is_connecting = true;
                found.push((link.number, addr.clone()));
            }
        }
        found
    }

    /// A session was opened, or was not.
    pub fn on_connected(&mut self, number: u32, result: Result<Session, ConnectError>) {
        let Some(link) = self.links.iter_mut().find(|link| link.number == number) else { return };
        link.is_connecting = false;
        match result {
            Ok(session) => link.session = Some(session),
            // What waited is old by now; the library will say it again.
            Err(_) => link.clear(),
        }
    }

    /// The request that an answer is to, and whose it was.
    pub fn on_answer(&mut self, tag: u64) -> Option<(u64, Sent)> {
        let link = self.links.iter_mut().find(|link| u64::from(link.number) == tag >> 8)?;
        let sent = link.sent.get_mut(tag as usize & 0xff)?.take()?;
        link.large_in_flight &= !sent.is_large;
        Some((link.id, sent))
    }

    /// The session to a replica, for what is sent beside messages.
    pub fn session(&self, id: u64) -> Option<Session> {
        self.get(id)?.session.clone()
    }

    /// Nothing is sent or answered any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        for link in &mut self.links {
            link.clear();
            link.awaited.clear();
        }
    }

    /// When each of these was last heard of as a follower in `term`: the time at which was sent what it answered.
    pub fn heard(&self, ids: impl Iterator<Item = u64>, term: u64, own: u64, now: u64) -> Vec<u64> {
        let heard = |id: u64| match self.get(id) {
            _ if id == own => now,
            Some(link) if link.heard.1 == term => link.heard.0,
            _ => 0,
        };
        ids.map(heard).collect()
    }
}

/// What becomes of a first message that is too long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakeLast {
    /// It is taken alone.
    Take,
    /// It stays.
    Leave,
}

impl Link {
    fn new(id: u64, number: u32) -> Link {
        Link {
            id,
            number,
            addr: None,
            session: None,
            is_connecting: false,
            queue: VecDeque::new(),
            queue_bytes: 0,
            sent: [None; CALLS_MAX],
            large_in_flight: false,
            awaited: VecDeque::new(),
            heard: (0, 0),
        }
    }

    fn push(&mut self, message: Message) {
        let len = encoded_len(&message);
        if self.queue.len() >= QUEUE_MAX || self.queue_bytes + len > QUEUE_BYTES_MAX {
            return;
        }
        self.queue_bytes += len;
        self.queue.push_back(message);
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.queue_bytes = 0;
    }

    /// The first messages of the queue, as many as fit.
    fn take(&mut self, bytes_max: usize, last: TakeLast) -> Vec<Message> {
        let mut bytes = ENVELOPE_BYTES;
        let mut taken = Vec::new();
        while let Some(message) = self.queue.front()
            && taken.len() < MESSAGES_MAX
        {
            let len = encoded_len(message);
            if bytes + len > bytes_max && !(taken.is_empty() && last == TakeLast::Take) {
                break;
            }
            bytes += len;
            self.queue_bytes -= len;
            taken.extend(self.queue.pop_front());
        }
        taken
    }

    /// Answers requests of that replica whose effect is there for good: the first with all that is to be said.
    fn answer(&mut self, cluster: u64, persisted: u64, counters: &mut Counters) {
        while self.awaited.front().is_some_and(|(ready, _)| *ready <= persisted) {
            let Some((_, reply)) = self.awaited.pop_front() else { break };
            let messages = self.take(RESPONSE_BYTES_MAX, TakeLast::Leave);
            // Without a buffer the sender learns that nothing came, and asks again.
            if let Some(envelope) = envelope(&messages, cluster, counters) {
                // It may have given up, or be gone.
                let _ = reply.enqueue_response(envelope);
            }
        }
    }

    fn may_send(&self) -> bool {
        // Of a session that has ended, the next attempt says so.
        let has_room = |session: &Session| session.room() > 0 || !session.is_open();
        !self.queue.is_empty()
            && !self.large_in_flight
            && self.sent.iter().any(Option::is_none)
            && self.session.as_ref().is_some_and(has_room)
    }

    fn send(
        &mut self,
        cluster: u64,
        continuation: ContinuationId,
        timeout: Duration,
        now: u64,
        counters: &mut Counters,
    ) -> Result<(), ()> {
        let messages = self.take(ENVELOPE_BYTES_MAX, TakeLast::Take);
        let (Some(session), Some(slot)) = (&self.session, self.sent.iter().position(Option::is_none)) else {
            return Err(());
        };
        let envelope = envelope(&messages, cluster, counters).ok_or(())?;
        let is_large = envelope.len() > SMALL_BYTES_MAX;
        let is_leaders =
            |message: &&Message| matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
        let leader_of = messages.iter().find(is_leaders).map_or(0, |message| message.term);
        let tag = u64::from(self.number) << 8 | slot as u64;
        let options = CallOptions::timeout(timeout);
        session.enqueue_request_with(PEER, envelope, continuation, tag, options).map_err(|_| ())?;
        self.sent[slot] = Some(Sent { at: now, leader_of, is_large });
        self.large_in_flight |= is_large;
        Ok(())
    }
}

/// Messages in a buffer; `None` if there is none.
pub(super) fn envelope(messages: &[Message], cluster: u64, counters: &mut Counters) -> Option<MsgBuf> {
    let len = ENVELOPE_BYTES + messages.iter().map(encoded_len).sum::<usize>();
    let buffer = MsgBuf::written(len, |out| encode(out, cluster, messages.iter())).ok()?;
    counters.envelopes += 1;
    counters.messages += messages.len() as u64;
    Some(buffer)
}
