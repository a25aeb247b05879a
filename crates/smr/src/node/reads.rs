//! Linearizable reads.
//!
//! By a follower: it asks its leader for the read index, which is the same question as the leader's own, and answers when it
//! has executed so much. One question is on its way at a time, for all reads that came before it.
//!
//! By read index (Raft dissertation, section 6.4): a leader notes how far the log is committed, makes sure that a majority still follows it, and answers
//! when it has executed so much. All reads that come while others wait for their majority share the next one.
//!
//! By lease (section 6.4.1): a follower that heard a leader votes for nobody else for an election timeout, by its own clock. So a leader that knows when it
//! sent what a majority answered knows until when no other can have been elected. The library's own lease does not hold back long enough (it looks at
//! activity once in an election timeout, so that it may believe in a majority of up to two before); so it is not used.

use std::collections::VecDeque;

use bytes::Bytes;
use dunlin_rpc::{CallOptions, DeferredReply, MsgBuf, Session};
use raft::ReadState;

use super::WeakNode;
use super::clients::{respond, respond_reply};
use super::core::{Core, Job};
use crate::cluster_id::ClusterId;
use crate::config::Reads;
use crate::log::LogStore;
use crate::machine::{Asked, StateMachine};
use crate::mutation::{Mutation, is_planted};
use crate::probe::Stage;
use crate::wire::CLIENT;
use crate::wire::request::{Request, set_cluster, set_group};
use crate::wire::response::Response;

/// What a read wants.
enum Wanted {
    /// An answer of the state machine.
    Answer(Bytes),
    /// How much is committed.
    Index,
}

impl Wanted {
    fn len(&self) -> usize {
        match self {
            Wanted::Answer(query) => query.len(),
            Wanted::Index => 0,
        }
    }
}

/// Bytes of answers that are given in one turn of the event loop, unless a single one is longer, and what each counts
/// beside its own. Urgent reads do not count.
const TURN_BYTES_MAX: usize = 1 << 20;
const ANSWER_BYTES: usize = 1 << 10;

/// A read and who asked.
struct Waiting {
    wanted: Wanted,
    reply: DeferredReply,
}

/// A question for the state machine as it is now.
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
    fresh: Vec<Waiting>,
    /// For the answer to one, by its number.
    asked: VecDeque<(u64, Vec<Waiting>)>,
    /// Until so much is executed.
    granted: VecDeque<(u64, Vec<Waiting>)>,
    /// For their turn: so much is executed.
    ready: VecDeque<Read>,
    next: u64,
    /// The question of a follower that its leader has not answered, by its number.
    under_way: Option<u64>,
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

    /// A leader has said how much is committed, or nothing: gives the reads that have no answer.
    fn on_index(&mut self, number: u64, index: Option<u64>) -> Vec<Waiting> {
        self.under_way.take_if(|asked| *asked == number);
        // They may have been turned away meanwhile, or granted by this replica as leader.
        let Some(place) = self.asked.iter().position(|(asked, _)| *asked == number) else { return Vec::new() };
        let Some((_, reads)) = self.asked.remove(place) else { return Vec::new() };
        match index {
            Some(index) => {
                self.granted.push_back((index, reads));
                Vec::new()
            }
            None => self.without(reads),
        }
    }

    /// Reads that do not wait any more.
    fn without(&mut self, reads: Vec<Waiting>) -> Vec<Waiting> {
        self.count -= reads.len();
        self.bytes -= reads.iter().map(|read| read.wanted.len()).sum::<usize>();
        reads
    }

    pub fn give_up_lease(&mut self, term: u64) {
        self.given_up = term;
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn drain(&mut self) -> impl Iterator<Item = DeferredReply> + use<> {
        (self.count, self.bytes, self.under_way) = (0, 0, None);
        let waiting = std::mem::take(&mut self.asked).into_iter().chain(std::mem::take(&mut self.granted));
        let asked = waiting.flat_map(|(_, reads)| reads).chain(std::mem::take(&mut self.fresh));
        std::mem::take(&mut self.ready).into_iter().map(|read| read.reply).chain(asked.map(|read| read.reply))
    }

    pub fn turn_away(&mut self, leader: &Option<(u64, String)>) {
        self.drain().for_each(|reply| respond(reply, &Response::NotLeader { leader: leader.clone() }));
    }

    pub fn fail_all(&mut self) {
        self.drain().for_each(|reply| respond(reply, &Response::Failed));
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
        // Who follows keeps no question: it would not know when it is to be asked anew.
        let asked = match self.is_leader() {
            true => self.state.machine.ask(number, query, out),
            false => {
                self.state.machine.query(query, out);
                Asked::Answered
            }
        };
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
        self.wait_for(Wanted::Answer(Bytes::copy_from_slice(query)), reply);
    }

    /// Answers with the last entry that is committed, when a majority has confirmed that this replica leads.
    pub fn wait_for_index(&mut self, reply: DeferredReply) {
        self.wait_for(Wanted::Index, reply);
    }

    fn wait_for(&mut self, wanted: Wanted, reply: DeferredReply) {
        self.reads.count += 1;
        self.reads.bytes += wanted.len();
        self.reads.fresh.push(Waiting { wanted, reply });
    }

    /// Whether this follower can answer reads when it has asked its leader.
    pub fn may_ask_leader(&self) -> bool {
        let leader = self.raft.raft.leader_id;
        self.own_restoring.is_none() && self.common.links.borrow().session(leader).is_some()
    }

    /// Asks the leader for all reads that wait for that.
    fn ask_leader(&mut self) {
        if self.reads.fresh.is_empty() || self.reads.under_way.is_some() {
            return;
        }
        let session = self.common.links.borrow().session(self.raft.raft.leader_id);
        let Some(session) = session else {
            let fresh = std::mem::take(&mut self.reads.fresh);
            let fresh = self.reads.without(fresh);
            return self.send_away(fresh);
        };
        self.reads.next += 1;
        let number = self.reads.next;
        self.reads.under_way = Some(number);
        let fresh = std::mem::take(&mut self.reads.fresh);
        self.counters.index_questions += 1;
        self.counters.follower_reads += fresh.len() as u64;
        self.reads.asked.push_back((number, fresh));
        self.jobs.push(Job::AskIndex { session, number });
    }

    /// The leader has said how much is committed, or nothing.
    fn on_index(&mut self, number: u64, index: Option<u64>) {
        let unanswered = self.reads.on_index(number, index);
        self.send_away(unanswered);
    }

    fn send_away(&self, reads: Vec<Waiting>) {
        let leader = self.leader_hint();
        reads.into_iter().for_each(|read| respond(read.reply, &Response::NotLeader { leader: leader.clone() }));
    }

    /// Asks the majority for all reads that wait for that.
    pub fn ask_to_read(&mut self) {
        if !self.is_leader() {
            return self.ask_leader();
        }
        // The library forgets what it is asked before an entry of its leader's term is committed.
        if self.reads.fresh.is_empty() || !self.raft.raft.commit_to_current_term() {
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
            let Some((index, reads)) = self.reads.granted.pop_front() else { break };
            for Waiting { wanted, reply } in reads {
                match wanted {
                    Wanted::Index => {
                        self.reads.count -= 1;
                        respond_reply(reply, &index.to_le_bytes());
                    }
                    Wanted::Answer(query) => self.begin_answer(query, reply),
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

    /// Answers a read for which enough is executed: at once if it is urgent, and else in its turn.
    fn begin_answer(&mut self, query: Bytes, reply: DeferredReply) {
        let read = Read { number: self.next_read(), query, reply };
        if self.state.machine.is_urgent(&read.query) {
            self.answer_waiting(read);
        } else {
            self.reads.ready.push_back(read);
        }
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

/// Asks a leader how much is committed, and tells the replica.
pub(super) async fn ask_index<M: StateMachine + 'static, L: LogStore + 'static>(
    node: WeakNode<M, L>,
    session: Session,
    number: u64,
    options: CallOptions,
) {
    let cluster = node.upgrade().and_then(|node| node.core().cluster());
    let index = match cluster {
        Some(cluster) => read_index(&session, node.group, cluster, options).await,
        None => None,
    };
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.on_index(number, index));
    }
}

async fn read_index(session: &Session, group: u16, cluster: ClusterId, options: CallOptions) -> Option<u64> {
    let mut buffer = MsgBuf::written(Request::Index.encoded_len(), |out| Request::Index.encode(out)).ok()?;
    set_group(&mut buffer, group);
    set_cluster(&mut buffer, cluster);
    let reply = session.call_with(CLIENT, buffer, options).await.ok()?;
    match Response::parse(&reply.response).ok()? {
        Response::Ok(index) => index.try_into().map(u64::from_le_bytes).ok(),
        _ => None,
    }
}
