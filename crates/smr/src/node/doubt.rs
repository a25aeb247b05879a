//! A leader's message that says that this replica had more of the log than it has. If that is true, the replica has lost what it acknowledged, and must not go on:
//! it may vote for one that lacks it. But a message proves nothing, since anybody may send it. So the replica asks the leader itself, at the address where the members
//! have it, until it answers. Meanwhile the replica takes no part in elections: it neither votes nor asks for votes. If a leader does not answer, that lasts
//! [`UNANSWERED_ELECTIONS_MAX`] election timeouts in all: whoever forges messages in the name of a member that stands still must not keep others from electing a leader.

use std::collections::BTreeMap;

use dunlin_rpc::{CallOptions, MsgBuf, Session};
use raft::eraftpb::{Message, MessageType};

use super::WeakNode;
use super::core::{Core, Job};
use crate::config::NodeError;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire::CLIENT;
use crate::wire::request::Request;
use crate::wire::response::{Response, Role, Status};

/// Election timeouts for which a replica takes no part in elections for one member that does not answer, however many messages come in its name.
const UNANSWERED_ELECTIONS_MAX: u32 = 10;

/// Whether this replica may have lost what it acknowledged.
#[derive(Default)]
pub(super) struct Doubts {
    /// The leader that has to answer.
    of: Option<u64>,
    /// It is being asked.
    is_asked: bool,
    /// Ticks spent in doubt, by the member that did not answer.
    unanswered: BTreeMap<u64, u32>,
}

impl Doubts {
    /// Whether this replica takes no part in elections for it.
    pub fn exist(&self) -> bool {
        self.of.is_some()
    }

    /// A leader is said to remember more. It is not doubted for ever.
    fn begin(&mut self, of: u64, ticks_max: u32) {
        if self.of.is_none() && self.unanswered.get(&of).is_none_or(|ticks| *ticks < ticks_max) {
            self.of = Some(of);
        }
    }

    /// A tick has passed.
    fn tick(&mut self, ticks_max: u32) {
        let Some(of) = self.of else { return };
        let ticks = self.unanswered.entry(of).or_default();
        *ticks += 1;
        if *ticks >= ticks_max {
            self.of = None;
        }
    }

    /// It has answered, and may be doubted again.
    fn answered(&mut self, of: u64) {
        self.unanswered.remove(&of);
        if self.of == Some(of) {
            self.of = None;
        }
    }
}

/// A question to a leader: what it remembers.
pub(super) struct Doubt {
    of: u64,
    session: Session,
}

/// Asks, and tells the replica.
pub(super) async fn resolve<M: StateMachine + 'static, L: LogStore + 'static>(
    node: WeakNode<M, L>,
    doubt: Doubt,
    options: CallOptions,
) {
    let status = ask(&doubt.session, options).await.filter(|status| status.id == doubt.of);
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.on_resolved(doubt.of, status));
    }
}

async fn ask(session: &Session, options: CallOptions) -> Option<Status> {
    let mut buffer = MsgBuf::with_len(Request::Status.encoded_len()).ok()?;
    Request::Status.encode(&mut buffer);
    let reply = session.call_with(CLIENT, buffer, options).await.ok()?;
    match Response::parse(&reply.response).ok()? {
        Response::Ok(bytes) => Status::parse(bytes).ok(),
        _ => None,
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Whether a leader's message says that this replica has entries that it does not have.
    pub fn says_more_than_there_is(&self, message: &Message) -> bool {
        let raft = &self.raft.raft;
        let is_leaders = message.get_msg_type() == MessageType::MsgHeartbeat && message.term >= raft.term;
        is_leaders && message.commit > raft.raft_log.last_index()
    }

    /// Begins to ask who is said to have sent such a message, if that is a member.
    pub fn doubt(&mut self, message: &Message) {
        self.counters.bad += 1;
        if self.state.members.contains_key(&message.from) {
            self.doubts.begin(message.from, self.doubt_ticks_max());
            self.ask_who_is_doubted();
        }
    }

    /// Asks again whoever has not answered, once in a tick.
    pub fn watch_doubts(&mut self) {
        self.doubts.tick(self.doubt_ticks_max());
        self.ask_who_is_doubted();
    }

    fn doubt_ticks_max(&self) -> u32 {
        self.config.election_ticks * UNANSWERED_ELECTIONS_MAX
    }

    fn ask_who_is_doubted(&mut self) {
        if let (Some(of), false) = (self.doubts.of, self.doubts.is_asked)
            && let Some(session) = self.common.links.borrow().session(of)
        {
            self.doubts.is_asked = true;
            self.jobs.push(Job::Resolve(Doubt { of, session }));
        }
    }

    /// Who leads has said what it remembers of this replica, or nothing. In its term it remembers what this replica acknowledged in that term, which
    /// no later leader has replaced.
    fn on_resolved(&mut self, of: u64, status: Option<Status>) {
        self.doubts.is_asked = false;
        let Some(status) = status else { return };
        self.doubts.answered(of);
        let raft = &self.raft.raft;
        let leads = status.role == Role::Leader && status.cluster == self.cluster && status.term >= raft.term;
        let matched = status.voters.iter().chain(&status.learners).zip(&status.matched);
        let remembered = matched.into_iter().find(|(id, _)| **id == self.config.id).map_or(0, |(_, matched)| *matched);
        if leads && remembered > raft.raft_log.last_index() && self.failure.is_none() {
            self.fail(NodeError::LogLost { id: self.config.id });
        }
    }
}
