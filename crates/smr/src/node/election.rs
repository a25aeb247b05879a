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
    /// When the last tick was, by the clock, and how long one is, less a sixteenth.
    ticked: u64,
    tick_min: u64,
    /// Ticks during which this replica votes for nobody: before it stopped it may have heard a leader, whose lease it knows nothing of.
    silent: u32,
}

impl Election {
    pub fn new(config: &NodeConfig, now: u64, was_there_before: bool, random: &mut Random) -> Election {
        let tick = config.tick.as_nanos() as u64;
        let mut election = Election {
            ticks_min: config.election_ticks as usize,
            patience: 0,
            first_patience: 0,
            heartbeat: config.heartbeat_ticks as usize,
            ticked: now,
            tick_min: tick - tick / 16,
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
    /// A tick has passed. Of several that were missed only one counts: a replica that stood still is not to depose a leader that it did not look for,
    /// and leases rest on ticks never being shorter than they are.
    pub fn tick(&mut self) {
        let now = self.now();
        if self.failure.is_some() || now - self.election.ticked < self.election.tick_min {
            return;
        }
        self.election.ticked = now;
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
        let raft = &mut self.raft.raft;
        // The first leader's term is a later one. Who asks in vain stays in this.
        let is_new = raft.term == FIRST && raft.leader_id == INVALID_ID;
        let patience = if is_new { self.election.first_patience } else { self.election.patience };
        let is_time = raft.election_elapsed >= patience && !is_unfit;
        if raft.state != StateRole::Leader && raft.promotable() && is_time {
            raft.election_elapsed = 0;
            self.election.renew(&mut self.random);
            // It refuses while there are changes of members that it has not applied; then it asks again later.
            let _ = self.raft.campaign();
        }
    }
}
