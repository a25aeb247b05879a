//! Idle groups rest: neither timers nor messages. What a resting group relies on is that something comes from the process of its leader, which the
//! host watches for all groups. `docs/replication-groups.md` says why that is enough.

use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::core::Core;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire::message::Addressed;

/// Whether a group rests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    is_resting: bool,
    /// Ticks for which a leader had nothing to do.
    idle: u32,
    /// When it woke last, by the replica's clock.
    woke: u64,
    /// It does not rest before this time.
    awake_until: u64,
}

/// Election timeouts for which a leader stays awake to find out who is there.
const AWAKE_ELECTIONS: u64 = 10;

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Whether this replica's timers stand still.
    pub fn is_resting(&self) -> bool {
        self.rest.is_resting
    }

    fn rest(&mut self) {
        if !std::mem::replace(&mut self.rest.is_resting, true) {
            self.common.links.borrow_mut().resting += 1;
        }
    }

    /// Something came that is more than a sign of life.
    pub fn wake(&mut self) {
        self.rest.idle = 0;
        if std::mem::replace(&mut self.rest.is_resting, false) {
            self.common.links.borrow_mut().resting -= 1;
            self.rest.woke = self.now();
        }
    }

    /// Whether this leader has led, and was awake, for so long that it would have heard of whoever is there.
    pub fn knows_who_is_there(&self) -> bool {
        self.rest.woke.max(self.time_base.1) + self.election_nanos() < self.now()
    }

    /// Hears whoever is there for a while, if it leads, whatever there is to do.
    pub fn stay_awake(&mut self) {
        self.wake();
        self.rest.awake_until = self.now() + AWAKE_ELECTIONS * self.election_nanos();
    }

    fn election_nanos(&self) -> u64 {
        self.config.tick.as_nanos() as u64 * u64::from(self.config.election_ticks)
    }

    /// Nothing came from a process for an election timeout, so nothing came from its replica of this group.
    pub fn wake_without(&mut self, silent: u64) {
        if !self.is_resting() || !self.state.members.contains_key(&silent) {
            return;
        }
        self.wake();
        let raft = &mut self.raft.raft;
        if raft.leader_id == silent {
            // That was heard of by the clock of the host, which is this group's.
            raft.election_elapsed = raft.election_elapsed.max(self.config.election_ticks as usize);
        }
    }

    /// A process is back: a leader that rests without it tells it so.
    pub fn wake_for(&mut self, back: u64) {
        if self.is_leader() && self.state.members.contains_key(&back) {
            self.wake();
        }
    }

    /// As leader, asks the others to rest after some ticks without work, and rests; says whether it does. Nothing may follow what it says to them.
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

    /// Whether a leader has nothing to do, and all who are there have everything.
    fn is_idle(&self) -> bool {
        let raft = &self.raft.raft;
        let last = raft.raft_log.last_index();
        if raft.state != StateRole::Leader || !raft.commit_to_current_term() || raft.lead_transferee.is_some() {
            return false;
        }
        let has_all = self.applied == last && raft.raft_log.committed == last && self.all_is_persisted();
        let waits = self.waiters.count() > 0 || !self.reads.is_empty() || self.waits_for_disk() || !self.sending.is_empty();
        if !has_all || waits || self.election.is_silent() || self.doubts.are_open() || raft.has_pending_conf() {
            return false;
        }
        let links = self.common.links.borrow();
        let silence = self.config.election_ticks;
        self.state
            .members
            .keys()
            .filter(|id| **id != self.config.id)
            .all(|id| links.is_silent(*id, silence) || raft.prs().get(*id).is_some_and(|progress| progress.matched == last))
    }

    /// A leader asked this follower to rest, with a heartbeat that the library has taken: it does if it is where its leader is.
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
