//! Linearizable reads.
//!
//! By a follower: it asks its leader for the read index, as the leader does for its own reads, and answers when it has
//! executed that entry. One question is in flight at a time, for all reads that arrived before it.
//!
//! By read index (Raft dissertation, section 6.4): a leader notes its commit index, makes sure that a majority still
//! follows it, and answers when it has executed that entry. All reads that arrive during one round share the next one.
//!
//! By lease (section 6.4.1): a follower that heard a leader votes for no other for an election timeout, by its own
//! clock. So from the time when it sent what a majority acknowledged, a leader knows until when no other can have been
//! elected. The library's own lease is not used because it does not end early enough: the library checks activity once
//! in an election timeout, so it may believe in a majority from up to two timeouts ago.

use std::collections::VecDeque;

use bytes::Bytes;
use dunlin_rpc::{CallOptions, DeferredReply, MsgBuf, Session};
use raft::ReadState;

use super::clients::{respond, respond_reply};
use super::core::{Core, Job};
use super::later::BEHIND_MAX;
use super::replica::WeakReplica;
use crate::cluster_id::ClusterId;
use crate::config::Reads;
use crate::machine::Asked;
use crate::mutation::{Mutation, is_planted};
use crate::probe::Stage;
use crate::wire::CLIENT;
use crate::wire::request::{Request, set_cluster, set_group};
use crate::wire::response::Response;

/// What a read asks for.
enum Wanted {
    /// An answer of the state machine.
    Answer(Bytes),
    /// The commit index.
    Index,
}

/// Bytes of answers that are given in one turn of the event loop, unless a single one is longer, and the overhead that
/// each answer counts for. Urgent reads do not count.
const TURN_BYTES_MAX: usize = 1 << 20;
const ANSWER_BYTES: usize = 1 << 10;

/// A leader's answer to a follower's question for the commit index.
enum Told {
    Committed(u64),
    /// It is busy.
    Busy,
    /// None: it may no longer lead.
    Nothing,
}

/// A read, and the reply to its client.
struct Waiting {
    wanted: Wanted,
    reply: DeferredReply,
}

/// A question for the state machine as it is now.
pub(super) struct Read {
    /// Its unique number.
    pub number: u64,
    pub query: Bytes,
    pub reply: DeferredReply,
}

/// Reads that wait.
#[derive(Default)]
pub(super) struct PendingReads {
    /// Reads for the next round to the majority.
    fresh: Vec<Waiting>,
    /// Reads of rounds in flight, by number of the round.
    asked: VecDeque<(u64, Vec<Waiting>)>,
    /// Reads that wait until this entry is executed.
    granted: VecDeque<(u64, Vec<Waiting>)>,
    /// Reads that wait for their turn: enough is executed.
    ready: VecDeque<Read>,
    next: u64,
    /// The entry that a follower's granted reads wait for, and for how many ticks.
    stuck: (u64, u32),
    /// The number of the last read.
    last: u64,
    /// Reads that want an answer, and reads that want the commit index.
    count: usize,
    index_count: usize,
    /// Total bytes of the queries.
    bytes: usize,
    /// The latest term in which this leader asked another to take over: there is no lease in that term any more.
    given_up: u64,
}

impl PendingReads {
    /// The library allows these reads once enough is executed.
    pub fn granted(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Ok(number) = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes) else { continue };
            // A granted round grants all earlier ones.
            while let Some((first, _)) = self.asked.front()
                && *first <= number
            {
                let Some((_, reads)) = self.asked.pop_front() else { break };
                self.granted.push_back((state.index, reads));
            }
        }
    }

    /// Returns the reads of a question that has ended. They may have been turned away meanwhile, or granted by this
    /// replica as leader.
    fn take_asked(&mut self, number: u64) -> Option<Vec<Waiting>> {
        let place = self.asked.iter().position(|(asked, _)| *asked == number)?;
        self.asked.remove(place).map(|(_, reads)| reads)
    }

    /// A tick has passed. Returns the granted reads, if they have waited for the same entry for this many ticks.
    fn tick(&mut self, ticks_max: u32) -> Vec<Waiting> {
        let Some((index, _)) = self.granted.front() else { return Vec::new() };
        let waited = if self.stuck.0 == *index { self.stuck.1 + 1 } else { 0 };
        self.stuck = (*index, waited);
        if waited < ticks_max {
            return Vec::new();
        }
        std::mem::take(&mut self.granted).into_iter().flat_map(|(_, reads)| reads).collect()
    }

    /// Counts a read that begins to wait.
    fn count_in(&mut self, wanted: &Wanted) {
        match wanted {
            Wanted::Answer(query) => (self.count, self.bytes) = (self.count + 1, self.bytes + query.len()),
            Wanted::Index => self.index_count += 1,
        }
    }

    /// Uncounts reads that no longer wait.
    fn without(&mut self, reads: Vec<Waiting>) -> Vec<Waiting> {
        for read in &reads {
            match &read.wanted {
                Wanted::Answer(query) => (self.count, self.bytes) = (self.count - 1, self.bytes - query.len()),
                Wanted::Index => self.index_count -= 1,
            }
        }
        reads
    }

    pub fn give_up_lease(&mut self, term: u64) {
        self.given_up = term;
    }

    /// Whether no read waits.
    pub fn is_empty(&self) -> bool {
        self.count + self.index_count == 0
    }

    fn drain(&mut self) -> impl Iterator<Item = DeferredReply> + use<> {
        (self.count, self.index_count, self.bytes) = (0, 0, 0);
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

impl Core {
    /// Whether a read can be answered at once.
    pub fn may_read_now(&mut self) -> bool {
        self.config.reads == Reads::Lease && self.has_lease() && self.applied >= self.raft.raft.raft_log.committed
    }

    /// Whether no other leader can have been elected by now.
    fn has_lease(&mut self) -> bool {
        let raft = &self.raft.raft;
        // Before a leader has committed an entry of its own term, it does not know the commit index (section 6.4).
        if !self.is_leader() || !raft.commit_to_current_term() || self.reads.given_up == raft.term {
            return false;
        }
        let now = self.now();
        let voters = raft.prs().conf().voters().ids();
        let mut heard = self.heard(voters.iter(), now);
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let lease = self.config.lease_nanos() * if is_planted(Mutation::LeaseTooLong) { 4 } else { 1 };
        // At least this many, a majority, were heard then or later.
        heard.get(heard.len() / 2).is_some_and(|since| *since > 0 && now < since + lease)
    }

    /// Answers a read with the current state, unless the machine keeps it, under this number.
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
        // A follower keeps no question: it would not know when to ask it again.
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

    /// Whether there is room for a read. The second share is for urgent reads only.
    pub fn may_wait_to_read(&self, query: &[u8]) -> bool {
        self.has_room_for_read(1, query.len())
            || (self.has_room_for_read(2, query.len()) && self.state.machine.is_urgent(query))
    }

    /// Whether there is room for a follower's question, which many reads may depend on there. Anybody may send one, so
    /// it takes no room from reads.
    pub fn may_wait_for_index(&self) -> bool {
        self.reads.index_count < self.config.reads_max
    }

    fn has_room_for_read(&self, shares: usize, bytes: usize) -> bool {
        let bytes_max = self.config.read_bytes_max.saturating_mul(shares);
        self.reads.count < self.config.reads_max.saturating_mul(shares) && self.reads.bytes + bytes <= bytes_max
    }

    pub fn wait_to_read(&mut self, query: &[u8], reply: DeferredReply) {
        self.wait_for(Wanted::Answer(Bytes::copy_from_slice(query)), reply);
    }

    /// Answers with the commit index, once a majority has confirmed that this replica leads.
    pub fn wait_for_index(&mut self, reply: DeferredReply) {
        self.wait_for(Wanted::Index, reply);
    }

    fn wait_for(&mut self, wanted: Wanted, reply: DeferredReply) {
        self.reads.count_in(&wanted);
        self.reads.fresh.push(Waiting { wanted, reply });
    }

    /// Whether this follower can answer reads after asking its leader.
    pub fn may_ask_leader(&self) -> bool {
        !self.is_too_far_behind() && self.leader_session().is_some()
    }

    /// Returns the session to the leader, if this replica heard from it recently. A removed replica remembers its last
    /// leader for ever, and executes nothing more.
    fn leader_session(&self) -> Option<Session> {
        let raft = &self.raft.raft;
        let is_heard = self.is_resting() || raft.election_elapsed < self.config.election_ticks as usize;
        if is_heard { self.common.links.borrow().session(raft.leader_id) } else { None }
    }

    /// Whether it may take long until this replica has executed what is committed now.
    fn is_too_far_behind(&self) -> bool {
        self.own_restoring.is_some() || self.has_backlog() || self.disk.hangs()
    }

    /// Asks the leader on behalf of all reads that wait for that.
    fn ask_leader(&mut self) {
        // One question at a time.
        if self.reads.fresh.is_empty() || !self.reads.asked.is_empty() {
            return;
        }
        let Some(session) = self.leader_session() else {
            let fresh = std::mem::take(&mut self.reads.fresh);
            return self.send_away(fresh);
        };
        self.reads.next += 1;
        let number = self.reads.next;
        self.counters.index_questions += 1;
        self.reads.asked.push_back((number, std::mem::take(&mut self.reads.fresh)));
        self.jobs.push(Job::AskIndex { session, number });
    }

    /// The question for the commit index has ended.
    fn on_index_told(&mut self, number: u64, told: Told) {
        let Some(reads) = self.reads.take_asked(number) else { return };
        match told {
            Told::Committed(index) if index <= self.applied => self.reads.granted.push_back((index, reads)),
            Told::Committed(index) if index <= self.applied + BEHIND_MAX && !self.is_too_far_behind() => {
                // The leader is active, so this replica does not rest either.
                self.wake();
                self.reads.granted.push_back((index, reads));
            }
            Told::Committed(_) | Told::Nothing => self.send_away(reads),
            Told::Busy => {
                self.counters.pushed_back += reads.len() as u64;
                self.reads.without(reads).into_iter().for_each(|read| respond(read.reply, &Response::Busy));
            }
        }
    }

    /// A tick has passed. If this follower makes no progress for an election timeout, its reads are turned away: others
    /// answer sooner.
    pub fn watch_granted(&mut self) {
        if !self.is_leader() {
            let stuck = self.reads.tick(self.config.election_ticks);
            self.send_away(stuck);
        }
    }

    fn send_away(&mut self, reads: Vec<Waiting>) {
        let response = Response::NotLeader { leader: self.leader_hint() };
        self.reads.without(reads).into_iter().for_each(|read| respond(read.reply, &response));
    }

    /// Asks the majority on behalf of all reads that wait for that.
    pub fn ask_to_read(&mut self) {
        if !self.is_leader() {
            return self.ask_leader();
        }
        // The library drops a read index request that comes before an entry of the leader's term is committed.
        if self.reads.fresh.is_empty() || !self.raft.raft.commit_to_current_term() {
            return;
        }
        self.reads.next += 1;
        let number = self.reads.next;
        self.reads.asked.push_back((number, std::mem::take(&mut self.reads.fresh)));
        self.raft.read_index(number.to_le_bytes().to_vec());
    }

    /// Answers reads for which enough is executed: first the urgent ones, then as many others as a turn may take, kept
    /// questions first.
    pub fn answer_reads(&mut self) {
        self.wake_kept();
        while let Some((index, _)) = self.reads.granted.front()
            && *index <= self.applied
        {
            let Some((index, reads)) = self.reads.granted.pop_front() else { break };
            for Waiting { wanted, reply } in reads {
                match wanted {
                    Wanted::Index => {
                        self.reads.index_count -= 1;
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

    /// Answers a read for which enough is executed: at once if it is urgent, otherwise in its turn.
    fn begin_answer(&mut self, query: Bytes, reply: DeferredReply) {
        let read = Read { number: self.next_read(), query, reply };
        if self.state.machine.is_urgent(&read.query) {
            self.answer_waiting(read);
        } else {
            self.reads.ready.push_back(read);
        }
    }

    /// Answers a read that waited for its majority, unless its client no longer waits.
    fn answer_waiting(&mut self, read: Read) -> usize {
        self.reads.count -= 1;
        self.reads.bytes -= read.query.len();
        if !read.reply.is_waited_for() {
            return 0;
        }
        self.counters.reads += 1;
        self.counters.follower_reads += u64::from(!self.is_leader());
        self.answer(read)
    }

    /// Answers a read, or keeps it. Returns the length of the answer.
    fn answer(&mut self, read: Read) -> usize {
        let mut out = Vec::new();
        match self.ask_machine(read.number, &read.query, &mut out) {
            Asked::Answered => respond_reply(read.reply, &out),
            Asked::Kept => self.keep_question(read),
        }
        out.len()
    }
}

/// Asks a leader for the commit index, and gives the answer to the replica.
pub(super) async fn ask_index(node: WeakReplica, session: Session, number: u64, options: CallOptions) {
    let cluster = node.upgrade().and_then(|node| node.core().cluster());
    let told = match cluster {
        Some(cluster) => read_index(&session, node.group, cluster, options).await.unwrap_or(Told::Nothing),
        None => Told::Nothing,
    };
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.on_index_told(number, told));
    }
}

/// Asks for the commit index; `None` if there is no answer.
async fn read_index(session: &Session, group: u16, cluster: ClusterId, options: CallOptions) -> Option<Told> {
    let mut buffer = MsgBuf::written(Request::Index.encoded_len(), |out| Request::Index.encode(out)).ok()?;
    set_group(&mut buffer, group);
    set_cluster(&mut buffer, cluster);
    let reply = session.call_with(CLIENT, buffer, options).await.ok()?;
    match Response::parse(&reply.response).ok()? {
        Response::Ok(index) => index.try_into().map(u64::from_le_bytes).map(Told::Committed).ok(),
        Response::Busy => Some(Told::Busy),
        _ => Some(Told::Nothing),
    }
}
