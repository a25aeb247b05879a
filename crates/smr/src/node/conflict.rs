//! Finds where a follower's log diverges from the leader's. The library searches back from the entry that a rejection
//! names, one entry at a time, for one whose term is not later than the follower's. Anybody may send a rejection that
//! makes it walk the whole log, and as many as fit in an envelope. So the search is done here first, and the library
//! then finds the place at once.
//!
//! A follower searches its own log in the same way for an append that does not fit. But it goes back no further than
//! its commit index, since an append of an earlier term than that is impossible ([`super::possible`]).

use raft::eraftpb::{Message, MessageType};

use super::core::Core;

impl Core {
    /// Makes a rejection name the entry that the library would find.
    pub fn shorten_search(&self, message: &mut Message) {
        let is_rejection = message.get_msg_type() == MessageType::MsgAppendResponse && message.reject;
        // The library drops a message of an earlier term, of which nothing else was checked. Without the term of an
        // entry it does not search.
        if is_rejection && message.log_term > 0 && message.term >= self.raft.raft.term {
            message.reject_hint = self.last_of_term(message.log_term, message.reject_hint);
        }
    }

    /// Returns the last entry up to `index` whose term is not later. Terms only rise.
    fn last_of_term(&self, term: u64, index: u64) -> u64 {
        let log = &self.raft.raft.raft_log;
        let (mut low, mut high) = (log.first_index().saturating_sub(1), index.saturating_add(1));
        while low < high {
            let middle = low.midpoint(high);
            match log.term(middle).is_ok_and(|found| found > term) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low.saturating_sub(1).min(index)
    }
}
