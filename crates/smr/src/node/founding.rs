//! How a replica learns the number of its cluster. Until then it takes part in nothing.
//!
//! The first members are started independently, each with the same list. The one with the lowest id draws the number.
//! The others ask one another in turn for it, and send the list with the question; a member answers if it has the
//! number and the same list. With the number, a first member makes the snapshot that all of them begin with, so it
//! stores both or neither. A member added later has no log until it gets a snapshot, which contains the number.

use std::collections::BTreeSet;

use dunlin_net::Addr;
use dunlin_net::random::Random;
use dunlin_rpc::{CallOptions, ConnectError, MsgBuf, Session};
use raft::eraftpb::{Message, MessageType};

use super::core::{Core, Job};
use super::replica::WeakReplica;
use super::snapshots::{FIRST, first_batch};
use crate::cluster_id::ClusterId;
use crate::config::{NodeConfig, NodeError};
use crate::state::Origin;
use crate::wire::CLIENT;
use crate::wire::members::Members;
use crate::wire::message::Addressed;
use crate::wire::request::Request;
use crate::wire::response::Response;

/// How a group with an empty log begins.
pub(super) enum Begin {
    /// As the first group of one of the first members.
    First(Vec<(u64, Addr)>),
    /// As a further group of one of the first members; it is founded when the first group is.
    WithTheFirst(Members),
    /// The same, when the first group is already founded.
    Told(Origin),
    /// What a replica without a number waits for.
    Join,
}

/// What a replica without a number waits for.
pub(super) enum Waiting {
    /// The first group of this process, which asks for the number.
    FirstGroup(Members),
    /// The other first members.
    Founders(Asking),
    /// The snapshot of a leader.
    Leader,
}

/// A first member that asks the others.
pub(super) struct Asking {
    founders: Members,
    /// The member that was last asked; 0 for none.
    asked: u64,
    is_under_way: bool,
    /// Ticks before the next is asked.
    pause: u32,
    /// Members that refused; they are not logged again.
    refused_by: BTreeSet<u64>,
}

impl Asking {
    pub fn new(founders: Members) -> Asking {
        Asking { founders, asked: 0, is_under_way: false, pause: 0, refused_by: BTreeSet::new() }
    }

    /// Returns the next member to ask, unless a question is in flight or it is too early.
    fn next(&mut self, own: u64, groups: u16) -> Option<Question> {
        self.pause = self.pause.saturating_sub(1);
        if self.is_under_way || self.pause > 0 {
            return None;
        }
        let others = || self.founders.iter().filter(|(id, _)| **id != own);
        let (id, address) = others().find(|(id, _)| **id > self.asked).or_else(|| others().next())?;
        let question = Question { id: *id, addr: address.parse().ok()?, founders: self.founders.clone(), groups };
        (self.is_under_way, self.asked) = (true, question.id);
        Some(question)
    }
}

/// A question to another first member.
pub(super) struct Question {
    id: u64,
    pub addr: Addr,
    founders: Members,
    groups: u16,
}

/// The result of a question.
pub(super) enum Told {
    Number(ClusterId),
    Refused(String),
    /// The member was not reached, or has no number yet.
    Nothing,
}

/// Asks on a session opened for this, and gives the answer to the replica.
pub(super) async fn ask(
    node: WeakReplica,
    question: Question,
    connecting: impl Future<Output = Result<Session, ConnectError>>,
    options: CallOptions,
) {
    let id = question.id;
    let told = match connecting.await {
        Ok(session) => {
            let told = ask_on(&session, question, options).await;
            drop(session.close());
            told
        }
        Err(_) => None,
    };
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.on_told(id, told.unwrap_or(Told::Nothing)));
    }
}

async fn ask_on(session: &Session, question: Question, options: CallOptions) -> Option<Told> {
    let request = Request::Founded { founders: question.founders, groups: question.groups };
    let mut buffer = MsgBuf::with_len(request.encoded_len()).ok()?;
    request.encode(&mut buffer);
    let reply = session.call_with(CLIENT, buffer, options).await.ok()?;
    match Response::parse(&reply.response).ok()? {
        Response::Ok(bytes) => ClusterId::from_bits(u64::from_le_bytes(bytes.try_into().ok()?)).map(Told::Number),
        Response::Refused(why) => Some(Told::Refused(why)),
        _ => None,
    }
}

/// Draws the number of a new cluster.
///
/// # Errors
/// If the system cannot provide random numbers.
pub(super) fn draw(config: &NodeConfig) -> Result<ClusterId, NodeError> {
    if let Some(seed) = config.seed {
        let mut random = Random::new(!seed);
        return Ok(ClusterId::draw(|| random.next()));
    }
    ClusterId::draw_afresh().map_err(|error| NodeError::Random { why: error.to_string() })
}

impl Core {
    /// Returns the number of the cluster; `None` until this replica takes part in one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Asks another first member for the number, if it is not known.
    pub fn ask_for_number(&mut self) {
        if let Some(Waiting::Founders(asking)) = &mut self.waiting
            && let Some(question) = asking.next(self.config.id, self.common.groups)
        {
            self.jobs.push(Job::AskForNumber(question));
        }
    }

    /// A question to another first member for the number has ended.
    fn on_told(&mut self, by: u64, told: Told) {
        let (None, Some(Waiting::Founders(asking))) = (&self.failure, &mut self.waiting) else { return };
        asking.is_under_way = false;
        match told {
            Told::Number(cluster) => self.found(cluster),
            Told::Refused(why) => {
                asking.pause = self.config.election_ticks;
                if asking.refused_by.insert(by) {
                    tracing::warn!(
                        id = self.config.id,
                        by,
                        "a first member does not give the number of the new cluster: {why}"
                    );
                }
            }
            Told::Nothing => asking.pause = self.config.heartbeat_ticks,
        }
    }

    /// Begins as one of the first members of this cluster.
    pub fn found(&mut self, cluster: ClusterId) {
        let founders = match self.waiting.take() {
            Some(Waiting::Founders(Asking { founders, .. }) | Waiting::FirstGroup(founders)) => founders,
            other => return self.waiting = other,
        };
        tracing::info!(id = self.config.id, %cluster, "is a first member of this cluster");
        self.state.members.clone_from(&founders);
        self.state.origin = Some(Origin { cluster, groups: self.common.groups, founders });
        let mut message = Message { from: self.config.id, to: self.config.id, term: FIRST, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.set_snapshot(first_batch(&self.state).snapshot.unwrap_or_default());
        self.cluster = Some(cluster);
        self.common.cluster.set(self.cluster);
        self.common.changes.note();
        // As if a leader had sent it, except that there is none: there is nobody to wait for or to answer.
        let _ = self.raft.step(message);
        self.raft.raft.become_follower(FIRST, raft::INVALID_ID);
        self.raft.raft.msgs.clear();
    }

    /// Answers a first member that asks for the number.
    pub fn tell_number(&mut self, theirs: &Members, groups: u16) -> Result<ClusterId, Response<'static>> {
        let Some(Origin { cluster, founders, .. }) = &self.state.origin else {
            return Err(Response::NotLeader { leader: None });
        };
        let (cluster, is_same) = (*cluster, theirs == founders);
        // It must not forget a number that it has told others.
        if !self.raft.mut_store().durable().is_ok_and(|durable| durable >= self.founded) {
            return Err(Response::NotLeader { leader: None });
        }
        if is_same && groups == self.common.groups {
            return Ok(cluster);
        }
        if is_same {
            let why = format!(
                "replica {} of cluster {cluster} has {} groups, not {groups}: give all members of a cluster the same number of groups",
                self.config.id, self.common.groups
            );
            self.foreign.refused_founder(self.config.id, &why);
            return Err(Response::Refused(why));
        }
        let list = |members: &Members| {
            members.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<String>>().join(",")
        };
        let why = format!(
            "replica {} is of cluster {cluster}, founded by {}, and not by {}: give all first members of a new cluster the same list, with addresses that no other \
             cluster has",
            self.config.id,
            list(founders),
            list(theirs)
        );
        self.foreign.refused_founder(self.config.id, &why);
        Err(Response::Refused(why))
    }

    /// Answers a leader as a replica that has nothing and needs a snapshot. This makes no promise: the answer stays
    /// true whatever happens.
    pub fn answer_while_waiting(&self, message: &Message, theirs: ClusterId) -> Option<Addressed> {
        let own = self.config.id;
        if !self.waits_for(theirs) || message.to != own || message.from == own {
            return None;
        }
        let mut answer = Message { from: own, to: message.from, term: message.term, ..Message::default() };
        match message.get_msg_type() {
            MessageType::MsgAppend => {
                answer.set_msg_type(MessageType::MsgAppendResponse);
                (answer.index, answer.reject) = (message.index, true);
            }
            MessageType::MsgHeartbeat => answer.set_msg_type(MessageType::MsgHeartbeatResponse),
            _ => return None,
        }
        Some(Addressed { group: self.group, asks_to_rest: false, message: answer })
    }

    /// Whether this replica waits for a leader of this cluster.
    pub fn waits_for(&self, theirs: ClusterId) -> bool {
        matches!(self.waiting, Some(Waiting::Leader)) && self.may_join(theirs)
    }

    /// Whether this replica takes snapshots of this cluster. A replica that waits for a leader joins the cluster of the
    /// first snapshot that lists it as a member.
    pub fn takes_snapshots_of(&self, theirs: ClusterId) -> bool {
        match (self.cluster, &self.waiting) {
            (Some(ours), _) => ours == theirs,
            (None, Some(Waiting::Leader)) => self.may_join(theirs),
            (None, _) => false,
        }
    }

    /// Whether a group that has not begun may join this cluster: all groups of a process belong to one cluster.
    pub fn may_join(&self, theirs: ClusterId) -> bool {
        self.common.cluster.get().or(self.config.cluster).is_none_or(|ours| ours == theirs)
    }

    /// Joins the cluster of a snapshot, which is durable and is given to the library next; returns whether it belonged
    /// to none before.
    pub fn join(&mut self, origin: Origin) -> bool {
        if self.cluster.is_some() {
            return false;
        }
        tracing::info!(id = self.config.id, cluster = %origin.cluster, "joins this cluster");
        (self.cluster, self.state.origin, self.waiting) = (Some(origin.cluster), Some(origin), None);
        self.common.cluster.set(self.cluster);
        self.common.changes.note();
        true
    }

    /// Waits for a leader again, since the library did not take the snapshot. `before` is the cluster that the process
    /// belonged to before it.
    pub fn wait_again(&mut self, before: Option<ClusterId>) {
        self.common.cluster.set(before);
        (self.cluster, self.state.origin, self.waiting) = (None, None, Some(Waiting::Leader));
    }
}
