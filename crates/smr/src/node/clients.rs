//! Requests of clients: commands become entries, and a command's client waits until its entry is executed.

use std::collections::VecDeque;

use bytes::Bytes;
use dunlin_rpc::{DeferredReply, MsgBuf, RequestBurst};
use raft::eraftpb::{Entry, Message, MessageType};

use super::core::Core;
use super::reads::Read;
use crate::log::Room;
use crate::machine::Asked;
use crate::mutation::{Mutation, is_planted};
use crate::probe::Stage;
use crate::state::Outcome;
use crate::wire::command::set_time;
use crate::wire::request::{Change, Request, is_for};
use crate::wire::response::Response;

/// A client that waits for an entry.
struct Waiter {
    index: u64,
    term: u64,
    bytes: usize,
    reply: DeferredReply,
}

/// Commands in progress.
#[derive(Default)]
pub(super) struct Waiters {
    /// Not yet given to the library.
    fresh: Vec<Entry>,
    /// Their lengths, and the replies to their clients.
    fresh_replies: Vec<(usize, DeferredReply)>,
    /// In the log, in log order.
    waiting: VecDeque<Waiter>,
    /// Total bytes of all of them.
    bytes: usize,
}

impl Waiters {
    /// Returns the number of commands that wait.
    pub fn count(&self) -> usize {
        self.fresh.len() + self.waiting.len()
    }

    /// Returns the number of commands not yet given to the library.
    pub fn fresh_len(&self) -> usize {
        self.fresh.len()
    }

    /// Whether a client waits for an entry in the log.
    pub fn has_appended(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Registers a client that waits for an appended entry.
    pub fn wait(&mut self, index: u64, term: u64, bytes: usize, reply: DeferredReply) {
        self.waiting.push_back(Waiter { index, term, bytes, reply });
    }

    /// Returns the reply that waits for the entry being executed. A client whose entry another one has replaced is told
    /// that this replica no longer leads.
    fn executed(&mut self, index: u64, term: u64) -> Option<DeferredReply> {
        while let Some(first) = self.waiting.front()
            && first.index <= index
        {
            let Some(Waiter { index: waited, term: of, bytes, reply }) = self.waiting.pop_front() else { break };
            self.bytes -= bytes;
            if (waited, of) == (index, term) {
                return Some(reply);
            }
            respond(reply, &Response::Deposed { leader: None });
        }
        None
    }

    /// An entry of the library's own is executed.
    pub fn pass(&mut self, index: u64) {
        if let Some(reply) = self.executed(index, u64::MAX) {
            respond(reply, &Response::Deposed { leader: None });
        }
    }

    /// The membership change of this entry was made or refused.
    pub fn changed(&mut self, index: u64, term: u64, response: &Response<'_>) {
        if let Some(reply) = self.executed(index, term) {
            respond(reply, response);
        }
    }

    /// Answers all clients: those whose commands are in the log, and those whose commands were held and are in no log.
    fn answer_all(&mut self, appended: &Response<'_>, held: &Response<'_>) {
        self.bytes = 0;
        std::mem::take(&mut self.waiting).into_iter().for_each(|waiter| respond(waiter.reply, appended));
        self.fresh.clear();
        self.fresh_replies.drain(..).for_each(|(_, reply)| respond(reply, held));
    }

    /// This replica no longer leads. Another may commit the appended commands, and a client that asks that one learns
    /// the outcome.
    pub fn turn_away(&mut self, leader: &Option<(u64, String)>) {
        self.answer_all(&Response::Deposed { leader: leader.clone() }, &Response::NotLeader { leader: leader.clone() });
    }

    pub fn fail_all(&mut self) {
        self.answer_all(&Response::Failed, &Response::Failed);
    }
}

/// Answers a client.
pub(super) fn respond(reply: DeferredReply, response: &Response<'_>) {
    // Without a buffer, the client learns that its request failed, and retries. If the client is gone, the response is
    // dropped.
    let Ok(buffer) = MsgBuf::written(response.encoded_len(), |out| response.encode(out)) else { return };
    let _ = reply.enqueue_response(buffer);
}

/// Answers a client with a reply.
pub(super) fn respond_reply(reply: DeferredReply, bytes: &[u8]) {
    respond(reply, &Response::Ok(bytes));
}

impl Core {
    /// Handles a request of a client.
    pub fn on_client_request(&mut self, burst: &mut RequestBurst<'_>, i: usize) {
        let bytes = burst.payload(i);
        if let Err(response) = self.on_client(burst, i, bytes) {
            self.counters.pushed_back += u64::from(response == Response::Busy);
            burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
        }
    }

    /// Handles one request. An error is its response.
    fn on_client(&mut self, burst: &mut RequestBurst<'_>, i: usize, bytes: &[u8]) -> Result<(), Response<'static>> {
        if self.failure.is_some() {
            return Err(Response::Failed);
        }
        self.begin(Stage::Request);
        let request = Request::parse(bytes);
        self.end(Stage::Request);
        let request = request.map_err(|_| Response::Bad)?;
        let own = match &request {
            Request::Status => Some(self.status().encode()),
            Request::Founded { founders, groups } => {
                Some(self.tell_number(founders, *groups)?.bits().to_le_bytes().to_vec())
            }
            _ => None,
        };
        if let Some(reply) = own {
            let response = Response::Ok(&reply);
            burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
            return Ok(());
        }
        if let Some(ours) = self.cluster()
            && !is_for(bytes, ours)
        {
            return Err(Response::OtherCluster { ours });
        }
        match request {
            Request::Piece { least, index, offset } => return self.on_piece_request(burst, i, [least, index, offset]),
            Request::ReadHere(query) if !self.is_leader() => return self.on_read_here(burst, i, query),
            _ if !self.is_leader() => return Err(Response::NotLeader { leader: self.leader_hint() }),
            _ => self.wake(),
        }
        match request {
            Request::Command(command) if command.body.len() > self.config.command_bytes_max => Err(Response::TooLarge),
            Request::Command(_) => {
                let is_full = self.waiters.count() >= self.config.proposals_max
                    || self.waiters.bytes + bytes.len() > self.config.proposal_bytes_max;
                // During a transfer of leadership the library takes no commands.
                if is_full || self.room() != Room::Free || self.raft.raft.lead_transferee.is_some() {
                    return Err(Response::Busy);
                }
                let reply = burst.defer_reply(i).map_err(|_| Response::Busy)?;
                self.propose(bytes, reply);
                Ok(())
            }
            Request::Read(query) | Request::ReadHere(query) => self.on_read(burst, i, query),
            Request::Index => self.on_index_request(burst, i),
            Request::Change(_) if self.room() != Room::Free => Err(Response::Busy),
            Request::Change(change) => {
                if matches!(change, Change::Move { .. }) {
                    self.stay_awake();
                }
                let proposal = self.check_change(&change).map_err(Response::Refused)?;
                let reply = burst.defer_reply(i).map_err(|_| Response::Busy)?;
                self.propose_change(proposal, reply);
                Ok(())
            }
            Request::Transfer { to } => {
                self.transfer_to(to).map_err(Response::Refused)?;
                burst.respond_written(i, Response::Ok(&[]).encoded_len(), |out| Response::Ok(&[]).encode(out));
                Ok(())
            }
            Request::Status | Request::Founded { .. } | Request::Piece { .. } => Ok(()),
        }
    }

    fn on_read(&mut self, burst: &mut RequestBurst<'_>, i: usize, query: &[u8]) -> Result<(), Response<'static>> {
        if query.len() > self.config.read_bytes_max {
            return Err(Response::TooLarge);
        }
        if self.may_read_now() {
            let (mut out, number) = (Vec::new(), self.next_read());
            if self.read_now(number, query, &mut out) == Asked::Kept {
                let Ok(reply) = burst.defer_reply(i) else {
                    self.state.machine.forget(number);
                    return Err(Response::Busy);
                };
                self.keep_question(Read { number, query: Bytes::copy_from_slice(query), reply });
                return Ok(());
            }
            let response = Response::Ok(&out);
            burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
            return Ok(());
        }
        if !self.may_wait_to_read(query) {
            return Err(Response::Busy);
        }
        let reply = burst.defer_reply(i).map_err(|_| Response::Busy)?;
        self.wait_to_read(query, reply);
        Ok(())
    }

    /// Answers with the commit index, for a follower's reads or for a backup.
    fn on_index_request(&mut self, burst: &mut RequestBurst<'_>, i: usize) -> Result<(), Response<'static>> {
        if self.may_read_now() {
            let index = self.raft.raft.raft_log.committed.to_le_bytes();
            let response = Response::Ok(&index);
            burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
            return Ok(());
        }
        if !self.may_wait_for_index() {
            return Err(Response::Busy);
        }
        let reply = burst.defer_reply(i).map_err(|_| Response::Busy)?;
        self.wait_for_index(reply);
        Ok(())
    }

    /// A read of a client that may ask any replica, while this replica follows.
    fn on_read_here(&mut self, burst: &mut RequestBurst<'_>, i: usize, query: &[u8]) -> Result<(), Response<'static>> {
        if query.len() > self.config.read_bytes_max {
            return Err(Response::TooLarge);
        }
        if is_planted(Mutation::FollowerReadsAtOnce) {
            let (mut out, number) = (Vec::new(), self.next_read());
            self.read_now(number, query, &mut out);
            let response = Response::Ok(&out);
            burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
            return Ok(());
        }
        if !self.may_ask_leader() {
            return Err(Response::NotLeader { leader: self.leader_hint() });
        }
        if !self.may_wait_to_read(query) {
            return Err(Response::Busy);
        }
        let reply = burst.defer_reply(i).map_err(|_| Response::Busy)?;
        self.wait_to_read(query, reply);
        Ok(())
    }

    /// Proposes a command, as its client sent it: the bytes are copied once, and the time is written into them.
    fn propose(&mut self, bytes: &[u8], reply: DeferredReply) {
        let mut data = bytes.to_vec();
        set_time(&mut data, self.cluster_time());
        self.waiters.bytes += data.len();
        self.gather.came();
        self.waiters.fresh_replies.push((data.len(), reply));
        self.waiters.fresh.push(Entry { data: data.into(), ..Entry::default() });
    }

    /// Gives the library all commands that arrived since, unless they are held; returns whether it did.
    pub fn submit(&mut self) -> bool {
        // If this replica was deposed while it held commands, the library would forward them to the new leader; their
        // clients are turned away instead.
        if self.waiters.fresh.is_empty() || !self.is_leader() || self.holds() {
            return false;
        }
        let entries = std::mem::take(&mut self.waiters.fresh);
        let (first, term) = (self.raft.raft.raft_log.last_index() + 1, self.raft.raft.term);
        let mut message = Message { entries: entries.into(), from: self.config.id, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        self.begin(Stage::Step);
        let result = self.raft.step(message);
        self.end(Stage::Step);
        let Waiters { fresh_replies, waiting, bytes: all_bytes, .. } = &mut self.waiters;
        for (index, (bytes, reply)) in (first..).zip(fresh_replies.drain(..)) {
            if result.is_ok() {
                waiting.push_back(Waiter { index, term, bytes, reply });
            } else {
                *all_bytes -= bytes;
                respond(reply, &Response::Busy);
            }
        }
        if result.is_ok() {
            self.prefetch_later();
        }
        self.counters.proposed += u64::from(result.is_ok()) * (self.raft.raft.raft_log.last_index() + 1 - first);
        true
    }

    /// Executes the command of an entry, and answers its client.
    pub fn execute(&mut self, entry: &Entry) {
        self.begin(Stage::Machine);
        let outcome = self.state.apply(entry.index, &entry.data);
        if let Some(probe) = &self.config.probe {
            probe.end(Stage::Machine);
        }
        let Some(reply) = self.waiters.executed(entry.index, entry.term) else { return };
        self.gather.answered();
        let response = match outcome {
            Outcome::Reply(bytes) => Response::Ok(bytes),
            Outcome::NoSession => Response::NoSession,
            Outcome::Old => Response::Old,
            Outcome::Busy => Response::Busy,
        };
        if let Some(probe) = &self.config.probe {
            probe.begin(Stage::Send);
        }
        respond(reply, &response);
        if let Some(probe) = &self.config.probe {
            probe.end(Stage::Send);
        }
    }
}
