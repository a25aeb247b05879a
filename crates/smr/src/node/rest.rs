//! Idle groups rest: no timers, no messages. A resting group relies on hearing from its leader's process, which the
//! host watches for all groups. `docs/replication-groups.md` says why that is enough.

use dunlin_net::clock::nanos;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::core::Core;
use crate::wire::message::Addressed;

/// Whether a group rests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    is_resting: bool,
    /// Ticks for which a leader had nothing to do.
    idle: u32,
    /// When it last woke, by the replica's clock.
    woke: u64,
    /// It does not rest before this time.
    awake_until: u64,
}

/// Election timeouts for which a leader stays awake to find out which members are there.
const AWAKE_ELECTIONS: u64 = 10;

impl Core {
    /// Whether this replica's timers are stopped.
    pub fn is_resting(&self) -> bool {
        self.rest.is_resting
    }

    fn rest(&mut self) {
        if !std::mem::replace(&mut self.rest.is_resting, true) {
            self.common.links.borrow_mut().resting += 1;
        }
    }

    /// Wakes the group: a message came that is more than a heartbeat.
    pub fn wake(&mut self) {
        self.rest.idle = 0;
        if std::mem::replace(&mut self.rest.is_resting, false) {
            self.common.links.borrow_mut().resting -= 1;
            self.rest.woke = self.now();
        }
    }

    /// Whether this leader has led, awake, for so long that it would have heard from every reachable member.
    pub fn knows_who_is_there(&self) -> bool {
        self.rest.woke.max(self.time_base.1) + self.election_nanos() < self.now()
    }

    /// Stays awake for a while, if it leads, to hear from the other members, whether there is work or not.
    pub fn stay_awake(&mut self) {
        self.wake();
        self.rest.awake_until = self.now() + AWAKE_ELECTIONS * self.election_nanos();
    }

    fn election_nanos(&self) -> u64 {
        nanos(self.config.tick) * u64::from(self.config.election_ticks)
    }

    /// A process is missed. Nothing came from it for this many ticks, so nothing came from its replica of this group.
    pub fn wake_without(&mut self, missed: u64, ticks: u32) {
        if !self.is_resting() || !self.state.members.contains_key(&missed) {
            return;
        }
        self.wake();
        let raft = &mut self.raft.raft;
        if raft.leader_id == missed {
            // The host has counted time for this group. Until an election timeout is over, this replica votes for
            // nobody: the leader's lease rests on that, whatever became of its session.
            raft.election_elapsed = raft.election_elapsed.max(ticks as usize);
        }
    }

    /// A process is back: a leader that rests without it tells it so.
    pub fn wake_for(&mut self, back: u64) {
        if self.is_leader() && self.state.members.contains_key(&back) {
            self.wake();
        }
    }

    /// As leader, after some ticks without work, asks the others to rest, and rests itself; returns whether it does.
    /// Nothing may be sent after these requests.
    pub fn rest_if_idle(&mut self) -> bool {
        let Some(idle_ticks) = self.config.idle_ticks else { return false };
        if !self.is_idle() || self.now() < self.rest.awake_until {
            self.rest.idle = 0;
            return false;
        }
        self.rest.idle += 1;
        if self.rest.idle < idle_ticks {
            return false;
        }
        let raft = &self.raft.raft;
        let (term, commit, own) = (raft.term, raft.raft_log.committed, self.config.id);
        let last = raft.raft_log.last_index();
        let has_all = |id: &u64| raft.prs().get(*id).is_some_and(|progress| progress.matched == last);
        let members: Vec<u64> = self.state.members.keys().copied().filter(|id| *id != own && has_all(id)).collect();
        for to in members {
            let mut message = Message { from: own, to, term, commit, ..Message::default() };
            message.set_msg_type(MessageType::MsgHeartbeat);
            let addressed = Addressed { group: self.group, asks_to_rest: true, message };
            self.common.links.borrow_mut().route(addressed);
        }
        self.rest();
        true
    }

    /// Whether a leader has no work, and all reachable members have all entries.
    fn is_idle(&self) -> bool {
        let raft = &self.raft.raft;
        let last = raft.raft_log.last_index();
        if raft.state != StateRole::Leader || !raft.commit_to_current_term() || raft.lead_transferee.is_some() {
            return false;
        }
        let has_all = self.applied == last && raft.raft_log.committed == last && self.all_is_persisted();
        let waits =
            self.waiters.count() > 0 || !self.reads.is_empty() || self.waits_for_disk() || !self.sending.is_empty();
        if !has_all || waits || self.election.is_silent() || self.doubts.are_open() || raft.has_pending_conf() {
            return false;
        }
        let links = self.common.links.borrow();
        self.state
            .members
            .keys()
            .filter(|id| **id != self.config.id)
            .all(|id| links.is_missed(*id) || raft.prs().get(*id).is_some_and(|progress| progress.matched == last))
    }

    /// A leader asked this follower to rest, with a heartbeat that the library has taken: it rests if it has the same
    /// log and state as its leader.
    pub fn rest_with_leader(&mut self, leader: u64, term: u64, commit: u64) {
        let raft = &self.raft.raft;
        let follows = raft.state == StateRole::Follower && (raft.term, raft.leader_id) == (term, leader);
        let has_all = raft.raft_log.last_index() == commit && raft.raft_log.committed == commit;
        let is_well =
            self.failure.is_none() && !self.election.is_silent() && !self.doubts.are_open() && !self.is_restoring();
        if self.config.idle_ticks.is_some() && follows && has_all && is_well && self.has_written_all() {
            self.rest();
        }
    }
}
