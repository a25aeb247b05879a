//! Messages of other replicas, in requests of theirs and in answers to ours.

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_rpc::{Completion, ConnectError, RequestBurst, Session};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::core::{Core, Job};
use super::link::Sent;
use crate::cluster_id::{ClusterId, bits};
use crate::log::{LogStore, Room};
use crate::machine::StateMachine;
use crate::probe::Stage;
use crate::wire::message::{ENVELOPE_BYTES, encode, encoded_len, parse, sender_of};
use crate::wire::{WireError, cluster_of};

/// What came of an envelope.
enum Came {
    /// Nothing that is answered.
    Nothing,
    /// Messages of this replica.
    From(u64),
    /// One of another cluster, or of any while this replica has no number: it is answered at once, in the name of this cluster, with these messages.
    Foreign(u64, Vec<Message>),
}

/// An envelope of so many bytes is given to the log before the next is looked at.
const LARGE_BYTES: usize = 64 << 10;

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Requests of other replicas. Each is answered when what it brought has had its effect for good: at once, if that takes no flush.
    pub fn on_envelopes(&mut self, burst: &mut RequestBurst<'_>) {
        if self.failure.is_some() {
            return;
        }
        self.room = self.raft.store().room();
        let all: ArrayVec<Came, RX_BURST> = (0..burst.len()).map(|i| self.on_envelope(burst.payload(i))).collect();
        self.work();
        if self.failure.is_some() {
            return;
        }
        for (i, came) in all.into_iter().enumerate() {
            let from = match came {
                Came::From(from) => from,
                Came::Nothing => continue,
                Came::Foreign(cluster, messages) => {
                    let len = ENVELOPE_BYTES + messages.iter().map(encoded_len).sum::<usize>();
                    burst.respond_written(i, len, |out| encode(out, cluster, messages.iter()));
                    continue;
                }
            };
            if !self.all_is_persisted() {
                // If the endpoint holds too many, the sender gets an error, and sends anew what is not acknowledged.
                if let Ok(reply) = burst.defer_reply(i) {
                    self.answer_later(from, reply);
                }
                continue;
            }
            self.begin(Stage::Send);
            let messages = self.links.for_response(from);
            let len = ENVELOPE_BYTES + messages.iter().map(encoded_len).sum::<usize>();
            self.counters.envelopes += 1;
            self.counters.messages += messages.len() as u64;
            burst.respond_written(i, len, |out| encode(out, bits(self.cluster()), messages.iter()));
            self.end(Stage::Send);
        }
    }

    /// Takes the messages of an envelope.
    fn on_envelope(&mut self, bytes: &[u8]) -> Came {
        let Some(ours) = self.cluster() else { return self.on_envelope_while_waiting(bytes) };
        if self.holds_too_much() {
            self.counters.left_unread += 1;
            return Came::Nothing;
        }
        self.begin(Stage::Parse);
        let messages = parse(bytes, ours.bits());
        self.end(Stage::Parse);
        match messages {
            Ok(messages) => {
                let Some(from) = messages.first().map(|message| message.from) else { return Came::Nothing };
                messages.into_iter().for_each(|message| self.receive(from, message));
                if bytes.len() >= LARGE_BYTES {
                    // The log has it before the next is let in: beyond its limits come no more than this one, and small ones.
                    self.work();
                    self.room = self.raft.store().room();
                }
                Came::From(from)
            }
            Err(WireError::OtherCluster { theirs, .. }) => {
                let sender = sender_of(bytes);
                self.note_foreign(sender, theirs);
                Came::Foreign(ours.bits(), Vec::new())
            }
            Err(error) => {
                tracing::debug!(id = self.config.id, %error, "a replica sent what is none of its messages");
                self.counters.bad += 1;
                Came::Nothing
            }
        }
    }

    /// The same while this replica has no number.
    fn on_envelope_while_waiting(&mut self, bytes: &[u8]) -> Came {
        let Some(theirs) = cluster_of(bytes).ok().and_then(ClusterId::from_bits) else {
            self.counters.bad += 1;
            return Came::Nothing;
        };
        match self.answer_while_waiting(bytes, theirs) {
            Some(messages) => Came::Foreign(theirs.bits(), messages),
            None => Came::Foreign(bits(self.config.cluster), Vec::new()),
        }
    }

    /// A replica of another cluster has sent something.
    fn note_foreign(&mut self, sender: Option<u64>, theirs: u64) {
        self.counters.foreign += 1;
        if let (Some(id), Some(ours), Some(theirs)) = (sender, self.cluster(), ClusterId::from_bits(theirs)) {
            self.foreign.note(self.config.id, ours, id, theirs);
        }
    }

    /// Takes a message, unless the library would not survive it.
    pub fn receive(&mut self, from: u64, mut message: Message) {
        if self.failure.is_some() || self.cluster().is_none() {
            return;
        }
        if message.from != from || message.to != self.config.id || from == self.config.id {
            self.counters.bad += 1;
            return;
        }
        if !self.is_possible(&message) {
            self.counters.bad += 1;
            return self.doubt_term(&message);
        }
        if self.says_more_than_there_is(&message) {
            return self.doubt(&message);
        }
        if !message.get_entries().is_empty() && self.room != Room::Free {
            // As if the network had lost it: its sender asks how far this replica is, and sends it again.
            self.counters.left_unread += 1;
            return;
        }
        let kind = message.get_msg_type();
        let asks_for_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        if asks_for_vote && (self.election.is_silent() || self.doubts.exist() || self.disk.hangs()) {
            return;
        }
        if kind == MessageType::MsgTimeoutNow && self.is_unfit() {
            return;
        }
        self.shorten_search(&mut message);
        self.begin(Stage::Step);
        // An error says that the message comes late, from a replica that has left, or is of no use.
        let _ = self.raft.step(message);
        self.end(Stage::Step);
    }

    /// A request of ours was answered, or was not.
    pub fn on_answer(&mut self, completion: Completion) {
        let Some((id, sent)) = self.links.on_answer(completion.tag) else { return };
        let response = match completion.result {
            Ok(response) => response,
            Err(_) => return self.raft.report_unreachable(id),
        };
        self.begin(Stage::Parse);
        let messages = parse(&response, bits(self.cluster()));
        self.end(Stage::Parse);
        let messages = match messages {
            Ok(messages) => messages,
            Err(WireError::OtherCluster { theirs, .. }) => {
                // One without a number has not begun yet.
                if theirs != 0 {
                    self.note_foreign(Some(id), theirs);
                }
                return self.raft.report_unreachable(id);
            }
            Err(_) => return self.counters.bad += 1,
        };
        self.note_heard(id, sent, &messages);
        if messages.iter().any(|message| !message.get_entries().is_empty()) {
            self.room = self.raft.store().room();
        }
        messages.into_iter().for_each(|message| self.receive(id, message));
    }

    /// Notes that a follower followed when it answered, and therefore, by its own clock, from no earlier than the request was sent.
    fn note_heard(&mut self, id: u64, sent: Sent, messages: &[Message]) {
        let term = self.raft.raft.term;
        let follows = |message: &Message| {
            let is_followers =
                matches!(message.get_msg_type(), MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse);
            is_followers && message.from == id && message.term == term
        };
        if self.raft.raft.state != StateRole::Leader || sent.leader_of != term || !messages.iter().any(follows) {
            return;
        }
        if let Some(link) = self.links.get_mut(id) {
            let before = if link.heard.1 == term { link.heard.0 } else { 0 };
            link.heard = (before.max(sent.at), term);
        }
    }

    /// Opens sessions to those without.
    pub fn reconnect(&mut self) {
        let unconnected = self.links.unconnected();
        self.jobs.extend(unconnected.into_iter().map(|(link, addr)| Job::Connect { link, addr }));
    }

    /// A session was opened, or was not.
    pub fn on_connected(&mut self, link: u32, result: Result<Session, ConnectError>) {
        self.links.on_connected(link, result);
    }
}
