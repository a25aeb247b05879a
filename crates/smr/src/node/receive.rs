//! Messages of other replicas of a group, and what they reveal about their senders.

use raft::StateRole;
use raft::eraftpb::MessageType;

use super::core::{Core, Job};
use super::link::Sent;
use crate::cluster_id::ClusterId;
use crate::log::Room;
use crate::probe::Stage;
use crate::wire::message::Addressed;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// It was read.
    Read,
    /// It was left unread: the replica holds back as many messages as it may for its disk.
    Unread,
}

impl Core {
    /// A replica of another cluster has sent something.
    pub fn note_foreign(&mut self, sender: Option<u64>, theirs: u64) {
        self.counters.foreign += 1;
        if let (Some(id), Some(ours), Some(theirs)) = (sender, self.cluster(), ClusterId::from_bits(theirs)) {
            self.foreign.note(self.config.id, ours, id, theirs);
        }
    }

    /// Takes a message of a request. A replica whose disk hangs may leave it unread.
    pub fn receive_request(&mut self, from: u64, addressed: Addressed) -> Received {
        if self.holds_too_much() {
            self.counters.left_unread += 1;
            return Received::Unread;
        }
        self.receive(from, addressed);
        Received::Read
    }

    /// Takes a message, unless the library could not handle it.
    pub fn receive(&mut self, from: u64, Addressed { mut message, asks_to_rest, .. }: Addressed) {
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
        let kind = message.get_msg_type();
        if !asks_to_rest && kind != MessageType::MsgHeartbeatResponse {
            self.wake();
        }
        if !message.get_entries().is_empty() && self.room() != Room::Free {
            // Its sender asks later how far this replica is, and sends them again. The rest is read: the sender counts
            // on it that this replica follows since then, as soon as it is answered.
            self.counters.left_unread += 1;
            message.clear_entries();
        }
        let asks_for_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        if asks_for_vote && (self.election.is_silent() || self.doubts.exist() || self.disk.hangs()) {
            return;
        }
        if kind == MessageType::MsgTimeoutNow && self.is_unfit() {
            return;
        }
        let (term, commit) = (message.term, message.commit);
        // By sending these, a leader has given up its lease, unless the lease is over: then there is no promise left.
        let ends_lease = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgTimeoutNow);
        let promised = if ends_lease { 0 } else { self.promised() };
        self.shorten_search(&mut message);
        self.begin(Stage::Step);
        // An error means that the message is late, useless, or from a replica that has left.
        let _ = self.raft.step(message);
        self.end(Stage::Step);
        self.keep_promise(promised);
        if asks_to_rest {
            self.rest_with_leader(from, term, commit);
        }
    }

    /// Notes that a follower followed when it answered. By its own clock, its promise therefore starts no earlier than
    /// the request was sent.
    pub fn note_heard(&mut self, id: u64, sent: &Sent, message: &Addressed) {
        let (term, message) = (self.raft.raft.term, &message.message);
        let kind = message.get_msg_type();
        let is_followers = matches!(kind, MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse);
        if !is_followers
            || message.from != id
            || message.term != term
            || self.raft.raft.state != StateRole::Leader
            || sent.leader_of(self.group) != term
        {
            return;
        }
        let heard = self.heard.entry(id).or_default();
        let before = if heard.1 == term { heard.0 } else { 0 };
        *heard = (before.max(sent.at), term);
    }

    /// Returns when each of these was last heard as a follower in this term: the time when the request that it answered
    /// was sent.
    pub fn heard(&self, ids: impl Iterator<Item = u64>, now: u64) -> Vec<u64> {
        let heard = |id: u64| match self.heard.get(&id) {
            _ if id == self.config.id => now,
            Some((at, term)) if *term == self.raft.raft.term => *at,
            _ => 0,
        };
        ids.map(heard).collect()
    }

    /// Opens sessions for links without one.
    pub fn reconnect(&mut self) {
        let unconnected = self.common.links.borrow_mut().unconnected();
        self.jobs.extend(unconnected.into_iter().map(|(link, addr)| Job::Connect { link, addr }));
    }
}
