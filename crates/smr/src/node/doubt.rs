//! A leader's message that says that this replica had more of the log than it has. If that is true, the replica has lost what it acknowledged, and must not go on:
//! it may vote for one that lacks it. But a message proves nothing, since anybody may send it. So the replica asks the leader itself, at the address where the members
//! have it.

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
        node.enter(|core| core.on_resolved(status));
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

    /// Begins to ask who is said to have sent such a message. Meanwhile this replica votes for nobody.
    pub fn doubt(&mut self, message: &Message) {
        self.counters.bad += 1;
        if let (false, Some(session)) = (self.is_in_doubt, self.links.session(message.from)) {
            self.is_in_doubt = true;
            self.jobs.push(Job::Resolve(Doubt { of: message.from, session }));
        }
    }

    /// Who leads has said what it remembers of this replica, or nothing. In its term it remembers what this replica acknowledged in that term, which
    /// no later leader has replaced.
    fn on_resolved(&mut self, status: Option<Status>) {
        self.is_in_doubt = false;
        let Some(status) = status else { return };
        let raft = &self.raft.raft;
        let leads = status.role == Role::Leader && status.cluster == self.cluster && status.term >= raft.term;
        let matched = status.voters.iter().chain(&status.learners).zip(&status.matched);
        let remembered = matched.into_iter().find(|(id, _)| **id == self.config.id).map_or(0, |(_, matched)| *matched);
        if leads && remembered > raft.raft_log.last_index() && self.failure.is_none() {
            self.fail(NodeError::LogLost { id: self.config.id });
        }
    }
}
