//! The way to one other process: what waits for it, what it was sent, and what it waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, DeferredReply, MsgBuf, Session};
use raft::eraftpb::MessageType;

use super::pace::{Pace, SMALL_BYTES_MAX};
use super::{Sending, Traffic};
use crate::node::transfer::Outgoing;
use crate::wire::PEER;
use crate::wire::message::{Addressed, ENVELOPE_BYTES, MESSAGES_MAX, Sender, encode, encoded_len, envelope_len};

/// Messages that may wait for one replica. Further ones are dropped, like on a network.
const QUEUE_MAX: usize = 4096;
/// Total bytes of these messages.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Unanswered requests to one replica: the slots of a session.
const CALLS_MAX: usize = 8;
/// Bytes of messages that may leave in a response; longer ones leave in requests, whose loss is noticed.
pub(super) const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// An unanswered request.
#[derive(Debug)]
pub(in crate::node) struct Sent {
    /// The earliest time at which it was handed over, by the replica's clock.
    pub at: u64,
    /// The groups that it spoke for as leader, with their terms, in group order.
    pub(super) leads: Vec<(u16, u64)>,
    /// Its length.
    pub(super) bytes: usize,
}

impl Sent {
    pub(super) fn is_large(&self) -> bool {
        self.bytes > SMALL_BYTES_MAX
    }

    /// Returns the term in which it spoke for a group as leader; 0 if it did not.
    pub fn leader_of(&self, group: u16) -> u64 {
        let place = self.leads.binary_search_by_key(&group, |(led, _)| *led);
        place.map_or(0, |place| self.leads[place].1)
    }

    /// Returns the groups that it spoke for as leader.
    pub fn led(&self) -> impl Iterator<Item = u16> {
        self.leads.iter().map(|(group, _)| *group)
    }
}

/// A request of another process that waits for its response.
pub(super) struct Awaited {
    /// Groups, each with what must be durable first.
    pub needs: Vec<(u16, u64)>,
    pub reply: DeferredReply,
}

/// The state of the link to another process.
pub(in crate::node) struct Link {
    /// The id of its replicas.
    pub id: u64,
    /// Groups that the process has a replica of, each with the address that the group has for it.
    pub(super) groups: BTreeMap<u16, Option<Addr>>,
    /// Unique: answers to calls of a removed link find nothing.
    pub(super) number: u32,
    /// The address in use. If groups disagree, some have not heard yet that the process moved.
    pub(super) addr: Option<Addr>,
    pub(super) session: Option<Session>,
    pub(super) is_connecting: bool,
    /// Its session has ended since the last tick.
    pub(super) is_lost: bool,
    queue: VecDeque<Addressed>,
    queue_bytes: usize,
    /// Waiting snapshots: one for each group, from its leader here.
    pub(super) snapshots: VecDeque<Outgoing>,
    /// A task is sending them, one after the other.
    pub(super) sends_snapshots: bool,
    pub(super) sent: [Option<Sent>; CALLS_MAX],
    pub(super) large_in_flight: bool,
    pub(super) pace: Pace,
    /// Requests of that process that wait for their response.
    pub(super) awaited: VecDeque<Awaited>,
    /// Ticks since anything came from the process, and since anything was sent to it.
    pub(super) silent: u32,
    pub(super) quiet: u32,
    /// Nothing came from the process for an election timeout, or since its session ended.
    pub(super) is_missed: bool,
    /// The process must hear from this one, even if there is no message for it.
    pub(super) wants_beat: bool,
}

/// What to do with a first message that is too long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeLast {
    /// Take it alone.
    Take,
    /// Leave it in the queue.
    Leave,
}

impl Link {
    pub(super) fn new(id: u64, number: u32) -> Link {
        Link {
            id,
            number,
            addr: None,
            session: None,
            is_connecting: false,
            is_lost: false,
            queue: VecDeque::new(),
            queue_bytes: 0,
            snapshots: VecDeque::new(),
            sends_snapshots: false,
            groups: BTreeMap::new(),
            sent: [const { None }; CALLS_MAX],
            large_in_flight: false,
            pace: Pace::FULL,
            awaited: VecDeque::new(),
            silent: 0,
            quiet: 0,
            is_missed: false,
            wants_beat: false,
        }
    }

    pub(super) fn push(&mut self, addressed: Addressed) {
        let len = encoded_len(&addressed.message);
        if self.queue.len() >= QUEUE_MAX || self.queue_bytes + len > QUEUE_BYTES_MAX {
            return;
        }
        self.queue_bytes += len;
        self.queue.push_back(addressed);
    }

    /// Uses this address for the process from now on.
    pub(super) fn go_to(&mut self, addr: Option<Addr>) {
        if self.addr != addr {
            // A session being opened to the old address is not waited for, and the pace of the old path does not apply
            // to the new one.
            (self.addr, self.is_connecting, self.pace) = (addr, false, Pace::FULL);
            close(self.session.take());
        }
    }

    /// Tries the next address, in order, if groups disagree.
    pub(super) fn look_elsewhere(&mut self) {
        let known = || self.groups.values().flatten();
        let next = known().filter(|addr| Some(*addr) > self.addr.as_ref()).min().or_else(|| known().min());
        if let Some(next) = next.cloned() {
            self.go_to(Some(next));
        }
    }

    /// Forgets a session that has ended.
    pub(super) fn note_end(&mut self) {
        if self.session.take_if(|session| !session.is_open()).is_some() {
            self.is_lost = true;
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.queue_bytes = 0;
    }

    /// For the groups that a request spoke for as leader, drops queued appends, since the leader starts again where its
    /// follower is. Also drops heartbeats, except the last one and the last one that confirms reads, which confirms
    /// those before it, too. The answer to each would trigger another append.
    pub(super) fn drop_old(&mut self, sent: &Sent) {
        let mut later = BTreeSet::new();
        let mut stays = |Addressed { group, message, asks_to_rest }: &Addressed| match message.get_msg_type() {
            _ if sent.leader_of(*group) == 0 || *asks_to_rest => true,
            MessageType::MsgAppend => false,
            MessageType::MsgHeartbeat => later.insert((*group, message.context.is_empty())),
            _ => true,
        };
        let waiting = std::mem::take(&mut self.queue);
        waiting
            .into_iter()
            .rev()
            .filter(|addressed| stays(addressed))
            .for_each(|addressed| self.queue.push_front(addressed));
        self.queue_bytes = self.queue.iter().map(|addressed| encoded_len(&addressed.message)).sum();
    }

    /// Lends the first messages of the queue, as many as fit, and removes them.
    pub(super) fn take<R>(&mut self, bytes_max: usize, last: TakeLast, take: impl FnOnce(&[Addressed]) -> R) -> R {
        let (mut count, mut bytes) = (0, ENVELOPE_BYTES);
        for addressed in self.queue.iter().take(MESSAGES_MAX) {
            let len = encoded_len(&addressed.message);
            if bytes + len > bytes_max && !(count == 0 && last == TakeLast::Take) {
                break;
            }
            (count, bytes) = (count + 1, bytes + len);
        }
        if self.queue.as_slices().0.len() < count {
            self.queue.make_contiguous();
        }
        let taken = take(&self.queue.as_slices().0[..count]);
        self.queue.drain(..count);
        self.queue_bytes -= bytes - ENVELOPE_BYTES;
        taken
    }

    /// Answers requests of that process whose effect is persistent: the first response takes all waiting messages.
    pub(super) fn answer(&mut self, sender: Sender, persisted: &impl Fn(u16) -> u64, traffic: &mut Traffic) {
        let mut place = 0;
        while let Some(awaited) = self.awaited.get_mut(place) {
            awaited.needs.retain(|(group, ready)| *ready > persisted(*group));
            if !awaited.needs.is_empty() {
                place += 1;
                continue;
            }
            let Some(Awaited { reply, .. }) = self.awaited.remove(place) else { break };
            let envelope =
                self.take(RESPONSE_BYTES_MAX, TakeLast::Leave, |messages| envelope(messages, sender, traffic));
            // Without a buffer, the sender learns that its request failed, and sends again.
            if let Some(envelope) = envelope {
                // The sender may have given up, or be gone.
                let _ = reply.enqueue_response(envelope);
            }
        }
    }

    /// Returns the number of waiting messages, and their bytes.
    #[cfg(test)]
    pub(super) fn queued(&self) -> (usize, usize) {
        (self.queue.len(), self.queue_bytes)
    }

    pub(super) fn may_send(&self) -> bool {
        // If the session has ended, the next attempt reports that.
        let has_room = |session: &Session| session.room() > 0 || !session.is_open();
        (self.wants_beat || !self.queue.is_empty())
            && !self.large_in_flight
            && self.sent.iter().any(Option::is_none)
            && self.session.as_ref().is_some_and(has_room)
    }

    pub(super) fn send(
        &mut self,
        sending: Sending,
        spare: &mut Vec<Vec<(u16, u64)>>,
        traffic: &mut Traffic,
    ) -> Result<(), ()> {
        let Sending { sender, continuation, timeout, now } = sending;
        let mut leads = spare.pop().unwrap_or_default();
        let envelope = self.take(self.pace.bytes_max, TakeLast::Take, |messages| {
            leads.extend(messages.iter().filter_map(led));
            envelope(messages, sender, traffic)
        });
        let (Some(session), Some(slot)) = (&self.session, self.sent.iter().position(Option::is_none)) else {
            return Err(());
        };
        (self.wants_beat, self.quiet) = (false, 0);
        let envelope = envelope.ok_or(())?;
        let bytes = envelope.len();
        leads.sort_unstable();
        // Of two terms, keep the first: what it says of followers counts for no later one.
        leads.dedup_by_key(|(group, _)| *group);
        let tag = u64::from(self.number) << 8 | slot as u64;
        let sent = Sent { at: now, leads, bytes };
        let patience = if sent.is_large() { self.pace.patience } else { 1 };
        let options = CallOptions::timeout(timeout * patience);
        session.enqueue_request_with(PEER, envelope, continuation, tag, options).map_err(|_| ())?;
        self.large_in_flight |= sent.is_large();
        self.sent[slot] = Some(sent);
        Ok(())
    }
}

/// Closes a session at once; there is no need to wait until the other side knows. Dropping a handle closes nothing.
pub(super) fn close(session: Option<Session>) {
    drop(session.map(|session| session.close()));
}

/// Returns the group and term that a message speaks for as leader.
fn led(Addressed { group, message, .. }: &Addressed) -> Option<(u16, u64)> {
    let is_leaders = matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
    is_leaders.then_some((*group, message.term))
}

/// Encodes messages into a buffer; `None` if there is no buffer.
fn envelope(messages: &[Addressed], sender: Sender, traffic: &mut Traffic) -> Option<MsgBuf> {
    let buffer = MsgBuf::written(envelope_len(messages), |out| encode(out, sender, messages)).ok()?;
    traffic.count(messages);
    Some(buffer)
}
