//! Ticks, and when a replica stands for election.
//!
//! The library would draw election timeouts itself, from randomness that no seed reproduces. So its own timeout is set
//! to the maximum, and a replica stands for election before that, at a time drawn here. The simulator then runs the
//! same code, and every run is reproducible.

use dunlin_net::random::Random;
use raft::{INVALID_ID, StateRole};

use super::core::Core;
use super::snapshots::FIRST;
use crate::config::NodeConfig;

/// The timing of elections.
pub(super) struct Election {
    ticks_min: usize,
    /// Ticks without a leader after which this replica stands for election.
    patience: usize,
    /// The same in a new cluster.
    first_patience: usize,
    /// A heartbeat, in ticks.
    heartbeat: usize,
    /// Ticks during which this replica votes for nobody: it has promised that to a leader that the library no longer
    /// knows of, or may have promised it before a restart.
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

    /// Draws a new patience: at least the election timeout, and less than twice that. A new cluster has no leader to
    /// hear from, so there the patience only spreads the replicas out: at least a heartbeat, and less than half the
    /// election timeout.
    pub fn renew(&mut self, random: &mut Random) {
        self.patience = self.ticks_min + random.below(self.ticks_min as u64 - 1) as usize;
        let spread = self.ticks_min / 2 - self.heartbeat;
        self.first_patience = self.heartbeat + random.below(spread as u64) as usize;
    }

    /// Whether this replica still votes for nobody.
    pub fn is_silent(&self) -> bool {
        self.silent > 0
    }

    /// Votes for nobody for this many ticks.
    pub fn keep_silent(&mut self, ticks: u32) {
        self.silent = self.silent.max(ticks);
    }
}

impl Core {
    /// Returns the ticks for which this replica votes for no other leader: an election timeout from when it heard its
    /// leader, whose lease rests on that. The library keeps this promise as long as it knows of that leader.
    pub fn promised(&self) -> u32 {
        let raft = &self.raft.raft;
        let follows = raft.leader_id != INVALID_ID && raft.leader_id != self.config.id;
        if follows { self.config.election_ticks.saturating_sub(raft.election_elapsed as u32) } else { 0 }
    }

    /// Keeps the promise that was made before a message or a term was taken that made the library forget the leader.
    pub fn keep_promise(&mut self, promised: u32) {
        if self.raft.raft.leader_id == INVALID_ID {
            self.election.keep_silent(promised);
        }
    }

    /// Returns the ticks until this group has work to do, if no message arrives.
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

    /// Returns the ticks without a leader after which this replica stands for election.
    fn patience(&self) -> usize {
        let raft = &self.raft.raft;
        // The first leader's term is later than this. A candidate that fails its pre-vote stays in this term.
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
        self.watch_granted();
        let is_unfit = self.raft.raft.state != StateRole::Leader && self.is_unfit();
        if is_unfit {
            // The library would stand for election when this is nearly twice the election timeout. It must reach the
            // timeout, though: until then the library drops the requests of candidates, to honour the lease of the last
            // leader that it heard from.
            let lease_ends = self.config.election_ticks as usize - 1;
            self.raft.raft.election_elapsed = self.raft.raft.election_elapsed.min(lease_ends);
        }
        if self.rest_if_idle() {
            return;
        }
        self.raft.tick();
        self.resend_snapshots();
        self.ask_for_number();
        self.expire_incoming();
        self.expire_copy();
        // A replica whose log is full may receive no more bursts.
        self.compact_if_full();
        let patience = self.patience();
        let raft = &mut self.raft.raft;
        let is_time = raft.election_elapsed >= patience && !is_unfit;
        if raft.state != StateRole::Leader && raft.promotable() && is_time {
            raft.election_elapsed = 0;
            self.election.renew(&mut self.random);
            // The library refuses while there are membership changes that it has not applied; the replica then asks
            // again later.
            let _ = self.raft.campaign();
        }
    }
}
