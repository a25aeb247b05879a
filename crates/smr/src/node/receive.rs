//! Messages of other replicas, in requests of theirs and in answers to ours.

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_rpc::{Completion, ConnectError, RequestBurst, Session};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::core::{Core, Job};
use super::link::Sent;
use crate::config::NodeError;
use crate::log::{LogStore, Room};
use crate::machine::StateMachine;
use crate::probe::Stage;
use crate::wire::message::{ENVELOPE_BYTES, encode, encoded_len, parse};

/// An envelope of so many bytes is given to the log before the next is looked at.
const LARGE_BYTES: usize = 64 << 10;

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Requests of other replicas. Each is answered when what it brought has had its effect for good: at once, if that takes no flush.
    pub fn on_envelopes(&mut self, burst: &mut RequestBurst<'_>) {
        if self.failure.is_some() {
            return;
        }
        self.room = self.raft.store().room();
        let senders: ArrayVec<Option<u64>, RX_BURST> =
            (0..burst.len()).map(|i| self.on_envelope(burst.payload(i))).collect();
        self.work();
        if self.failure.is_some() {
            return;
        }
        for (i, sender) in senders.into_iter().enumerate() {
            let Some(from) = sender else { continue };
            if !self.all_is_persisted() {
                // Refused if the endpoint holds too many; then the sender knows.
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
            burst.respond_with(i, len, |out| encode(out, self.config.cluster, messages.iter()));
            self.end(Stage::Send);
        }
    }

    /// Takes the messages of an envelope; gives who sent them.
    fn on_envelope(&mut self, bytes: &[u8]) -> Option<u64> {
        if self.holds_too_much() {
            self.counters.left_unread += 1;
            return None;
        }
        self.begin(Stage::Parse);
        let messages = parse(bytes, self.config.cluster);
        self.end(Stage::Parse);
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                tracing::debug!(id = self.config.id, %error, "a replica sent what is none of its messages");
                self.counters.bad += 1;
                return None;
            }
        };
        let from = messages.first()?.from;
        messages.into_iter().for_each(|message| self.receive(from, message));
        if bytes.len() >= LARGE_BYTES {
            // The log has it before the next is let in: beyond its limits come no more than this one, and small ones.
            self.work();
            self.room = self.raft.store().room();
        }
        Some(from)
    }

    /// Takes a message, unless the library would not survive it.
    pub fn receive(&mut self, from: u64, message: Message) {
        if self.failure.is_some() {
            return;
        }
        if message.from != from || message.to != self.config.id || from == self.config.id || !self.is_possible(&message) {
            self.counters.bad += 1;
            return;
        }
        if self.has_lost_log(&message) {
            return self.fail(NodeError::LogLost { id: self.config.id });
        }
        if !message.get_entries().is_empty() && self.room != Room::Free {
            // As if the network had lost it: its sender asks how far this replica is, and sends it again.
            self.counters.left_unread += 1;
            return;
        }
        let kind = message.get_msg_type();
        let asks_for_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        if asks_for_vote && (self.election.is_silent() || self.disk.hangs()) {
            return;
        }
        if kind == MessageType::MsgTimeoutNow && self.is_unfit() {
            return;
        }
        self.begin(Stage::Step);
        // An error says that the message comes late, from a replica that has left, or is of no use.
        let _ = self.raft.step(message);
        self.end(Stage::Step);
    }

    /// Whether a leader remembers more of this replica than there is. Then it may have voted for another, or have acknowledged what it does not know: it must
    /// not go on.
    fn has_lost_log(&self, message: &Message) -> bool {
        let raft = &self.raft.raft;
        let is_leaders = message.get_msg_type() == MessageType::MsgHeartbeat && message.term >= raft.term;
        is_leaders && message.commit > raft.raft_log.last_index()
    }

    /// Whether a message can be true. The library takes some that cannot for a bug of its own, and panics.
    fn is_possible(&self, message: &Message) -> bool {
        let log = &self.raft.raft.raft_log;
        if message.term < self.raft.raft.term {
            return true;
        }
        match message.get_msg_type() {
            MessageType::MsgAppend => {
                let known = message.get_entries().iter().take_while(|entry| entry.index <= log.committed);
                let mut known = known.filter_map(|entry| log.term(entry.index).ok().map(|term| (entry.term, term)));
                // What was compacted has term 0 here.
                known.all(|(theirs, ours)| ours == 0 || theirs == ours)
            }
            MessageType::MsgAppendResponse if !message.reject => message.index <= log.last_index(),
            _ => true,
        }
    }

    /// A request of ours was answered, or was not.
    pub fn on_answer(&mut self, completion: Completion) {
        let Some((id, sent)) = self.links.on_answer(completion.tag) else { return };
        let response = match completion.result {
            Ok(response) => response,
            Err(_) => return self.raft.report_unreachable(id),
        };
        self.begin(Stage::Parse);
        let messages = parse(&response, self.config.cluster);
        self.end(Stage::Parse);
        let Ok(messages) = messages else {
            self.counters.bad += 1;
            return;
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
