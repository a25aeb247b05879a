//! Ticks, and when a replica asks to be elected.
//!
//! The library would draw election timeouts itself, from chance that no seed repeats. So it is set to the latest there is, and a replica asks before
//! that, at a time drawn here: then the simulator runs the same code and repeats every run.

use dunlin_net::random::Random;
use raft::{INVALID_ID, StateRole};

use super::core::Core;
use super::snapshots::FIRST;
use crate::config::NodeConfig;
use crate::log::LogStore;
use crate::machine::StateMachine;

/// Times of elections.
pub(super) struct Election {
    ticks_min: usize,
    /// Ticks without a leader after which this replica asks.
    patience: usize,
    /// The same in a new cluster.
    first_patience: usize,
    /// A heartbeat, in ticks.
    heartbeat: usize,
    /// Ticks during which this replica votes for nobody: before it stopped it may have heard a leader, whose lease it knows nothing of.
    silent: u32,
}

impl Election {
    pub fn new(config: &NodeConfig, was_there_before: bool, random: &mut Random) -> Election {
        let mut election = Election {
            ticks_min: config.election_ticks as usize,
            patience: 0,
            first_patience: 0,
            heartbeat: config.heartbeat_ticks as usize,
            silent: if was_there_before { config.election_ticks } else { 0 },
        };
        election.renew(random);
        election
    }

    /// Draws another patience: at least the election timeout, less than twice of it. In a new cluster there is no
    /// leader to be heard of, so it is only so long that replicas ask one after the other: at least a heartbeat, less
    /// than half the election timeout.
    pub fn renew(&mut self, random: &mut Random) {
        self.patience = self.ticks_min + random.below(self.ticks_min as u64 - 1) as usize;
        let spread = self.ticks_min / 2 - self.heartbeat;
        self.first_patience = self.heartbeat + random.below(spread as u64) as usize;
    }

    /// Whether this replica votes for nobody yet.
    pub fn is_silent(&self) -> bool {
        self.silent > 0
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Ticks until this group has something to do, if nothing comes.
    pub fn ticks_to_sleep(&self) -> u32 {
        if self.is_resting() || self.failure.is_some() {
            return u32::MAX;
        }
        if self.waiting.is_some() || self.doubts.are_open() || self.disk.hangs() {
            return 1;
        }
        let raft = &self.raft.raft;
        let left = match raft.state {
            StateRole::Leader => self.config.heartbeat_ticks.saturating_sub(raft.heartbeat_elapsed() as u32),
            _ => self.patience().saturating_sub(raft.election_elapsed) as u32,
        };
        left.max(1)
    }

    /// Ticks without a leader after which this replica asks to be elected.
    fn patience(&self) -> usize {
        let raft = &self.raft.raft;
        // The first leader's term is a later one. Who asks in vain stays in this.
        let is_new = raft.term == FIRST && raft.leader_id == INVALID_ID;
        if is_new { self.election.first_patience } else { self.election.patience }
    }

    /// A tick has passed.
    pub fn tick(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.election.silent = self.election.silent.saturating_sub(1);
        self.watch_disk();
        self.watch_doubts();
        let is_unfit = self.raft.raft.state != StateRole::Leader && self.is_unfit();
        if is_unfit {
            // The library would ask for votes when this is nearly twice the election timeout. It must reach the
            // timeout, though: until then the library
            // drops the requests of candidates, since it keeps to the lease of the leader that it heard of last.
            let lease_ends = self.config.election_ticks as usize - 1;
            self.raft.raft.election_elapsed = self.raft.raft.election_elapsed.min(lease_ends);
        }
        if self.rest_if_idle() {
            return;
        }
        self.raft.tick();
        self.ask_for_number();
        self.expire_incoming();
        // No burst may come to a replica whose log is full.
        if let Err(error) = self.compact_if_full() {
            return self.fail(error);
        }
        let patience = self.patience();
        let raft = &mut self.raft.raft;
        let is_time = raft.election_elapsed >= patience && !is_unfit;
        if raft.state != StateRole::Leader && raft.promotable() && is_time {
            raft.election_elapsed = 0;
            self.election.renew(&mut self.random);
            // It refuses while there are changes of members that it has not applied; then it asks again later.
            let _ = self.raft.campaign();
        }
    }
}
