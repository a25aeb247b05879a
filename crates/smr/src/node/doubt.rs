//! Claims that only their sender can confirm, since anybody may send messages in the name of a member: that this
//! replica had more of the log than it has, or that the sender is many terms ahead. The replica asks the member itself,
//! at the address that the membership records, until it answers.
//!
//! **Lost entries.** If a leader remembers more than this replica has, the replica has lost acknowledged entries and
//! must not go on: it might vote for a candidate that lacks them. Until the leader has answered, the replica takes no
//! part in elections: it neither votes nor stands. A forger must not be able to block elections. So this lasts
//! [`DOUBT_ELECTIONS_MAX`] election timeouts for each member, whether it answers or not, plus a little as time passes.
//!
//! **Terms.** If a term is further ahead than a replica can plausibly have missed, it is not taken from a message
//! ([`super::possible`]), but from the status of a member in that term. So replicas whose terms are far apart converge,
//! and nobody can use up the available terms.

use std::collections::BTreeMap;

use dunlin_rpc::{CallOptions, MsgBuf, Session};
use raft::INVALID_ID;
use raft::eraftpb::{Message, MessageType};

use super::core::{Core, Job};
use super::possible::is_far_ahead;
use super::replica::WeakReplica;
use crate::config::NodeError;
use crate::wire::CLIENT;
use crate::wire::request::{Request, set_group};
use crate::wire::response::{Response, Role, Status};

/// Election timeouts for which claims in the name of one member keep a replica out of elections, however many messages
/// arrive.
const DOUBT_ELECTIONS_MAX: u32 = 10;
/// After this many ticks without doubt, one spent tick is returned.
const REFILL_TICKS: u32 = 32;

/// Claims made in the names of members.
#[derive(Default)]
pub(super) struct Doubts {
    of: BTreeMap<u64, Doubt>,
    ticks: u32,
}

/// Claims made in the name of one member.
#[derive(Default)]
struct Doubt {
    /// The member is said to remember more than this replica has, and has not answered: this replica takes no part in
    /// elections.
    is_open: bool,
    /// A claim was made since the member was last asked.
    is_new: bool,
    is_asked: bool,
    /// Ticks for which this was open, less those returned.
    spent: u32,
}

impl Doubts {
    /// Whether a member still has to answer, so that this replica must not rest.
    pub fn are_open(&self) -> bool {
        self.of.values().any(|doubt| doubt.is_open || doubt.is_new || doubt.is_asked)
    }

    /// Whether any doubt keeps this replica out of elections.
    pub fn exist(&self) -> bool {
        self.of.values().any(|doubt| doubt.is_open)
    }

    /// A member is said to remember more. It is asked in any case, but the wait for its answer is limited.
    fn begin(&mut self, of: u64, ticks_max: u32) {
        let doubt = self.of.entry(of).or_default();
        doubt.is_new = true;
        doubt.is_open |= doubt.spent < ticks_max;
    }

    /// Another claim was made that the member is asked to confirm.
    fn note(&mut self, of: u64) {
        self.of.entry(of).or_default().is_new = true;
    }

    /// A tick has passed.
    fn tick(&mut self, ticks_max: u32) {
        self.ticks = self.ticks.wrapping_add(1);
        let given_back = u32::from(self.ticks.is_multiple_of(REFILL_TICKS));
        for doubt in self.of.values_mut() {
            match doubt.is_open {
                true => doubt.spent += 1,
                false => doubt.spent = doubt.spent.saturating_sub(given_back),
            }
            doubt.is_open &= doubt.spent < ticks_max;
        }
        self.of.retain(|_, doubt| doubt.is_open || doubt.is_new || doubt.is_asked || doubt.spent > 0);
    }

    /// A question has ended. A member that answered is no longer doubted until another claim arrives.
    fn asked(&mut self, of: u64, has_answered: bool) {
        if let Some(doubt) = self.of.get_mut(&of) {
            doubt.is_asked = false;
            doubt.is_open &= !has_answered;
        }
    }
}

/// A question to a member: its status, and what it remembers.
pub(super) struct Question {
    of: u64,
    session: Session,
}

/// Asks the member, and gives the answer to the replica.
pub(super) async fn resolve(node: WeakReplica, question: Question, options: CallOptions) {
    let status = ask(&question.session, node.group, options).await.filter(|status| status.id == question.of);
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.on_resolved(question.of, status));
    }
}

async fn ask(session: &Session, group: u16, options: CallOptions) -> Option<Status> {
    let mut buffer = MsgBuf::with_len(Request::Status.encoded_len()).ok()?;
    Request::Status.encode(&mut buffer);
    set_group(&mut buffer, group);
    let reply = session.call_with(CLIENT, buffer, options).await.ok()?;
    match Response::parse(&reply.response).ok()? {
        Response::Ok(bytes) => Status::parse(bytes).ok(),
        _ => None,
    }
}

impl Core {
    /// Whether a leader's message claims that this replica has entries that it does not have.
    pub fn says_more_than_there_is(&self, message: &Message) -> bool {
        let raft = &self.raft.raft;
        let is_leaders = message.get_msg_type() == MessageType::MsgHeartbeat && message.term >= raft.term;
        is_leaders && message.commit > raft.raft_log.last_index()
    }

    /// Takes no part in elections until the supposed sender of such a message has answered, if that is a member.
    pub fn doubt(&mut self, message: &Message) {
        self.counters.bad += 1;
        if self.state.members.contains_key(&message.from) {
            self.wake();
            self.doubts.begin(message.from, self.doubt_ticks_max());
        }
    }

    /// Has a member asked for its term, if a message in its name has a term too far ahead to be believed.
    pub fn doubt_term(&mut self, message: &Message) {
        if is_far_ahead(message.term, self.raft.raft.term) && self.state.members.contains_key(&message.from) {
            self.wake();
            self.doubts.note(message.from);
        }
    }

    /// Asks the members that have to answer, each at most once per tick.
    pub fn watch_doubts(&mut self) {
        self.doubts.tick(self.doubt_ticks_max());
        let links = self.common.links.borrow();
        for (of, doubt) in &mut self.doubts.of {
            if (doubt.is_open || doubt.is_new)
                && !doubt.is_asked
                && let Some(session) = links.session(*of)
            {
                (doubt.is_asked, doubt.is_new) = (true, false);
                self.jobs.push(Job::Resolve(Question { of: *of, session }));
            }
        }
    }

    fn doubt_ticks_max(&self) -> u32 {
        self.config.election_ticks.saturating_mul(DOUBT_ELECTIONS_MAX)
    }

    /// A member has answered with its status, or has not answered.
    fn on_resolved(&mut self, of: u64, status: Option<Status>) {
        self.doubts.asked(of, status.is_some());
        if let Some(status) = status.filter(|status| status.cluster == self.cluster && self.failure.is_none()) {
            self.check_remembered(&status);
            self.adopt_term(&status);
        }
    }

    /// Stops the replica if a leader remembers more than the replica has. A leader remembers what this replica
    /// acknowledged in the leader's own term; no later leader has replaced that.
    fn check_remembered(&mut self, status: &Status) {
        let raft = &self.raft.raft;
        let matched = status.voters.iter().chain(&status.learners).zip(&status.matched);
        let remembered = matched.into_iter().find(|(id, _)| **id == self.config.id).map_or(0, |(_, matched)| *matched);
        let leads = status.role == Role::Leader && status.term >= raft.term;
        if leads && remembered > raft.raft_log.last_index() {
            self.fail(NodeError::LogLost { id: self.config.id });
        }
    }

    /// Adopts the term of a member whose messages have a term too far ahead.
    fn adopt_term(&mut self, status: &Status) {
        let own = self.raft.raft.term;
        if is_far_ahead(status.term, own) {
            let (id, of, term) = (self.config.id, status.id, status.term);
            tracing::warn!(id, own, of, term, "a member is in a term far ahead, in which this replica goes on");
            let promised = self.promised();
            self.raft.raft.become_follower(status.term, INVALID_ID);
            self.keep_promise(promised);
        }
    }
}
