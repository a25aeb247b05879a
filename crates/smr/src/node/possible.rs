//! Checks whether a message can be true. Anybody may send one, but the library expects messages of replicas only: it
//! takes some impossible ones for its own bug and panics, and believes others. So those are dropped before they reach
//! it.
//!
//! Every log begins with the entry of the first snapshot, so each entry that a message names has an index and a term
//! above zero. The library reports term 0 for every index that is not in its log, so with term 0 an entry that no
//! replica has would look like a match.

use raft::eraftpb::{Message, MessageType};

use super::core::Core;

/// Terms that a replica may have missed. If a message's term is further ahead, it is not believed: its sender is asked
/// ([`super::doubt`]).
const TERMS_MISSED_MAX: u64 = 1 << 16;
/// The highest term accepted: there must be room for more. If each message advances the term by as many as may be
/// missed, it takes 2^46 messages to get there.
const TERM_MAX: u64 = 1 << 62;
/// The highest term of a new member's first snapshot: a new member may have missed any number of terms, and can ask
/// nobody.
const FIRST_TERM_MAX: u64 = 1 << 61;

impl Core {
    /// Whether a message can be true.
    pub fn is_possible(&self, message: &Message) -> bool {
        let kind = message.get_msg_type();
        let has_entries = !message.get_entries().is_empty();
        if message.from == raft::INVALID_ID || has_entries && kind != MessageType::MsgAppend {
            return false;
        }
        if !self.is_possible_term(message.term, kind) {
            return false;
        }
        // The library reads nothing else of a late message.
        message.term < self.raft.raft.term
            || match kind {
                MessageType::MsgAppend => self.is_possible_append(message),
                MessageType::MsgAppendResponse => self.is_possible_response(message),
                MessageType::MsgHeartbeatResponse => message.commit <= self.raft.raft.raft_log.last_index(),
                MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => is_possible_candidate(message),
                // The request was for the next term.
                MessageType::MsgRequestPreVoteResponse if !message.reject => message.term <= self.raft.raft.term + 1,
                _ => true,
            }
    }

    /// Whether a message of this kind can have this term.
    pub fn is_possible_term(&self, term: u64, kind: MessageType) -> bool {
        // A new member may have missed any number of terms.
        let is_first = self.raft.raft.raft_log.committed == 0 && kind == MessageType::MsgSnapshot;
        let own = self.raft.raft.term;
        let term_max = if is_first { FIRST_TERM_MAX } else { TERM_MAX.min(own.saturating_add(TERMS_MISSED_MAX)) };
        // The library takes a message without a term for its own, and believes it.
        (1..=term_max).contains(&term)
    }

    /// Checks an append. Leaders have no entries of later terms than their own, terms only rise, and committed entries
    /// are the same everywhere: so the entry that an append follows is not of an earlier term than the entries
    /// committed before it.
    fn is_possible_append(&self, message: &Message) -> bool {
        let log = &self.raft.raft.raft_log;
        let entries = message.get_entries();
        let terms = entries.iter().map(|entry| entry.term);
        if message.log_term == 0 || ![message.log_term].into_iter().chain(terms).chain([message.term]).is_sorted() {
            return false;
        }
        if message.index >= log.committed && log.term(log.committed).is_ok_and(|term| message.log_term < term) {
            return false;
        }
        let known = entries.iter().take_while(|entry| entry.index <= log.committed);
        let mut known = known.filter_map(|entry| log.term(entry.index).ok().map(|term| (entry.term, term)));
        // Compacted entries have term 0 here.
        known.all(|(theirs, ours)| ours == 0 || theirs == ours)
    }

    /// Checks a response. A follower responds to what its leader has sent. If it rejects that, it names an entry no
    /// later than the one rejected, of no later term.
    fn is_possible_response(&self, message: &Message) -> bool {
        let last = self.raft.raft.raft_log.last_index();
        let names_a_place = message.reject_hint <= message.index && message.log_term <= message.term;
        message.index <= last && message.commit <= last && (!message.reject || names_a_place)
    }
}

/// Whether a term is so far ahead of this replica's that it is not taken from a message, but may still be a member's.
pub(super) fn is_far_ahead(term: u64, own: u64) -> bool {
    term > own.saturating_add(TERMS_MISSED_MAX) && term <= TERM_MAX
}

/// Checks a candidate: its log is of earlier terms than the one it stands for, and its commit index is within its log.
fn is_possible_candidate(message: &Message) -> bool {
    let has_log = message.index > 0 && (1..message.term).contains(&message.log_term);
    has_log && message.commit <= message.index && message.commit_term <= message.log_term
}
