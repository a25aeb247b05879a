//! Linearizable reads.
//!
//! By read index (Raft dissertation, section 6.4): a leader notes how far the log is committed, makes sure that a majority still follows it, and answers
//! when it has executed so much. All reads that come while others wait for their majority share the next one.
//!
//! By lease (section 6.4.1): a follower that heard a leader votes for nobody else for an election timeout, by its own clock. So a leader that knows when it
//! sent what a majority answered knows until when no other can have been elected. The library's own lease does not hold back long enough (it looks at
//! activity once in an election timeout, so that it may believe in a majority of up to two before); so it is not used.

use std::collections::VecDeque;

use bytes::Bytes;
use dunlin_rpc::DeferredReply;
use raft::ReadState;

use super::clients::{respond, respond_reply};
use super::core::Core;
use crate::config::Reads;
use crate::log::LogStore;
use crate::machine::{Asked, StateMachine};
use crate::mutation::{Mutation, is_planted};
use crate::probe::Stage;
use crate::wire::response::Response;

/// Bytes of answers that are given in one turn of the event loop, unless a single one is longer, and what each counts beside its own. Urgent reads do not count.
const TURN_BYTES_MAX: usize = 1 << 20;
const ANSWER_BYTES: usize = 1 << 10;

/// A read and who asked.
pub(super) struct Read {
    /// Tells it from all others.
    pub number: u64,
    pub query: Bytes,
    pub reply: DeferredReply,
}

/// Reads that wait.
#[derive(Default)]
pub(super) struct PendingReads {
    /// For the next question to the majority.
    fresh: Vec<Read>,
    /// For the answer to one, by its number.
    asked: VecDeque<(u64, Vec<Read>)>,
    /// Until so much is executed.
    granted: VecDeque<(u64, Vec<Read>)>,
    /// For their turn: so much is executed.
    ready: VecDeque<Read>,
    next: u64,
    /// The last number of a read.
    last: u64,
    count: usize,
    /// Bytes of what is asked.
    bytes: usize,
    /// The latest term in which another was asked to take over: from then on there is no lease.
    given_up: u64,
}

impl PendingReads {
    /// The library says that these may be answered when so much is executed.
    pub fn granted(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Ok(number) = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes) else { continue };
            // One that was granted grants all before it.
            while let Some((first, _)) = self.asked.front()
                && *first <= number
            {
                let Some((_, reads)) = self.asked.pop_front() else { break };
                self.granted.push_back((state.index, reads));
            }
        }
    }

    pub fn give_up_lease(&mut self, term: u64) {
        self.given_up = term;
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn drain(&mut self) -> impl Iterator<Item = Read> + use<> {
        (self.count, self.bytes) = (0, 0);
        let waiting = std::mem::take(&mut self.asked).into_iter().chain(std::mem::take(&mut self.granted));
        let asked = waiting.flat_map(|(_, reads)| reads);
        std::mem::take(&mut self.ready).into_iter().chain(asked).chain(std::mem::take(&mut self.fresh))
    }

    pub fn turn_away(&mut self, leader: &Option<(u64, String)>) {
        self.drain().for_each(|read| respond(read.reply, &Response::NotLeader { leader: leader.clone() }));
    }

    pub fn fail_all(&mut self) {
        self.drain().for_each(|read| respond(read.reply, &Response::Failed));
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Whether a read can be answered at once.
    pub fn may_read_now(&mut self) -> bool {
        self.config.reads == Reads::Lease && self.has_lease() && self.applied >= self.raft.raft.raft_log.committed
    }

    /// Whether no other can have been elected by now.
    fn has_lease(&mut self) -> bool {
        let raft = &self.raft.raft;
        // Before it has committed an entry of its own term it does not know what is committed (section 6.4).
        if !self.is_leader() || !raft.commit_to_current_term() || self.reads.given_up == raft.term {
            return false;
        }
        let now = self.now();
        let voters = raft.prs().conf().voters().ids();
        let mut heard = self.heard(voters.iter(), now);
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let lease = self.config.lease_nanos() * if is_planted(Mutation::LeaseTooLong) { 4 } else { 1 };
        // So many at least, which is a majority, were heard then or later.
        heard.get(heard.len() / 2).is_some_and(|since| *since > 0 && now < since + lease)
    }

    /// Answers a read with the state as it is, unless the machine keeps it, under this number.
    pub fn read_now(&mut self, number: u64, query: &[u8], out: &mut Vec<u8>) -> Asked {
        self.counters.reads += 1;
        self.counters.lease_reads += 1;
        self.ask_machine(number, query, out)
    }

    pub fn next_read(&mut self) -> u64 {
        self.reads.last += 1;
        self.reads.last
    }

    fn ask_machine(&mut self, number: u64, query: &[u8], out: &mut Vec<u8>) -> Asked {
        self.begin(Stage::Machine);
        let asked = self.state.machine.ask(number, query, out);
        self.end(Stage::Machine);
        asked
    }

    /// Whether there is a place for a read. Those of the second share are for urgent ones alone.
    pub fn may_wait_to_read(&self, query: &[u8]) -> bool {
        let has_room = |shares: usize| {
            let bytes_max = self.config.read_bytes_max.saturating_mul(shares);
            self.reads.count < self.config.reads_max.saturating_mul(shares) && self.reads.bytes + query.len() <= bytes_max
        };
        has_room(1) || (has_room(2) && self.state.machine.is_urgent(query))
    }

    pub fn wait_to_read(&mut self, query: &[u8], reply: DeferredReply) {
        self.reads.count += 1;
        self.reads.bytes += query.len();
        let read = Read { number: self.next_read(), query: Bytes::copy_from_slice(query), reply };
        self.reads.fresh.push(read);
    }

    /// Asks the majority for all reads that wait for that.
    pub fn ask_to_read(&mut self) {
        // The library forgets what it is asked before an entry of its leader's term is committed.
        if self.reads.fresh.is_empty() || !self.is_leader() || !self.raft.raft.commit_to_current_term() {
            return;
        }
        self.reads.next += 1;
        let number = self.reads.next;
        self.reads.asked.push_back((number, std::mem::take(&mut self.reads.fresh)));
        self.raft.read_index(number.to_le_bytes().to_vec());
    }

    /// Answers reads for which enough is executed: first the urgent ones, then as many others as a turn may take, and first those that were kept.
    pub fn answer_reads(&mut self) {
        self.wake_kept();
        while let Some((index, _)) = self.reads.granted.front()
            && *index <= self.applied
        {
            let Some((_, reads)) = self.reads.granted.pop_front() else { break };
            for read in reads {
                match self.state.machine.is_urgent(&read.query) {
                    true => _ = self.answer_waiting(read),
                    false => self.reads.ready.push_back(read),
                }
            }
        }
        let mut bytes = 0;
        while bytes < TURN_BYTES_MAX {
            bytes += ANSWER_BYTES
                + if let Some(read) = self.kept.next_ready() {
                    self.answer(read)
                } else if let Some(read) = self.reads.ready.pop_front() {
                    self.answer_waiting(read)
                } else {
                    return;
                };
        }
        self.later.set_due();
    }

    /// Answers one of those that wait for their majority.
    fn answer_waiting(&mut self, read: Read) -> usize {
        self.reads.count -= 1;
        self.counters.reads += 1;
        self.reads.bytes -= read.query.len();
        self.answer(read)
    }

    /// Answers a read, or keeps it. Gives the length of the answer.
    fn answer(&mut self, read: Read) -> usize {
        let mut out = Vec::new();
        match self.ask_machine(read.number, &read.query, &mut out) {
            Asked::Answered => respond_reply(read.reply, &out),
            Asked::Kept => self.keep_question(read),
        }
        out.len()
    }
}
