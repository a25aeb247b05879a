//! Detects hung disks. A flush that does not end is no error, so nothing else reports it: heartbeats continue, and a
//! leader that executes only what its own disk has serves nobody.
//!
//! Time is counted in ticks, and a late tick counts once: a replica that stood still, such as one in a suspended guest,
//! does not blame the disk for that.

use raft::StateRole;

use super::core::Core;
use crate::config::NodeConfig;
use crate::mutation::{Mutation, is_planted};

/// A replica that was heard in so many election timeouts may be able to lead. Over a slow path, answers to long
/// requests take longer than one.
const HEARD_ELECTIONS: u32 = 4;

/// What a replica knows of its disk.
#[derive(Debug)]
pub(super) struct DiskWatch {
    /// Ticks that a write and its flush may take.
    patience: u32,
    /// The disk's current operation, and for how many ticks it has run.
    under_way: Option<u64>,
    ticks: u32,
    /// Ticks since another replica was asked to lead.
    asked: Option<u32>,
}

/// The result of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The disk has just become hung.
    Hangs,
    /// The disk responds again after this many ticks.
    CameBack(u32),
}

impl DiskWatch {
    pub fn new(config: &NodeConfig) -> DiskWatch {
        let patience = config.election_ticks.saturating_mul(config.flush_elections_max);
        DiskWatch { patience, under_way: None, ticks: 0, asked: None }
    }

    /// Whether the current operation takes too long.
    pub fn hangs(&self) -> bool {
        self.ticks >= self.patience
    }

    fn tick(&mut self, under_way: Option<u64>) -> Found {
        if under_way.is_some() && under_way == self.under_way {
            self.ticks = self.ticks.saturating_add(1);
            return if self.ticks == self.patience { Found::Hangs } else { Found::Nothing };
        }
        let found = if self.hangs() { Found::CameBack(self.ticks) } else { Found::Nothing };
        (self.under_way, self.ticks, self.asked) = (under_way, 0, None);
        found
    }
}

impl Core {
    /// Checks the disk, once per tick.
    pub fn watch_disk(&mut self) {
        let (id, tick) = (self.config.id, self.config.tick);
        match self.disk.tick(self.raft.store().under_way()) {
            Found::Nothing => {}
            Found::Hangs => {
                self.counters.disk_hangs += 1;
                let after = tick * self.disk.patience;
                tracing::error!(id, ?after, "the disk hangs: a write of the log does not end; look after the disk");
            }
            Found::CameBack(ticks) => tracing::warn!(id, after = ?(tick * ticks), "the disk has come back"),
        }
        let leads = self.raft.raft.state == StateRole::Leader;
        if self.disk.hangs() && leads && !is_planted(Mutation::HungLeaderStays) {
            self.give_way();
        }
    }

    /// Hands leadership to another replica: asks one to lead, and steps down if none does within an election timeout.
    /// While the other replicas heard in [`HEARD_ELECTIONS`] are not a majority, it keeps leading: nobody could be
    /// elected, and committed state can still be read here.
    fn give_way(&mut self) {
        if let Some(ticks) = &mut self.disk.asked {
            *ticks += 1;
            if *ticks > self.config.election_ticks {
                self.disk.asked = None;
                tracing::warn!(
                    id = self.config.id,
                    "nobody took the lead from a replica whose disk hangs: it stops to lead"
                );
                let term = self.raft.raft.term;
                self.raft.raft.become_follower(term, raft::INVALID_ID);
            }
            return;
        }
        let voters = self.conf_state().voters;
        let others = voters.len() - self.silent_for(&voters, HEARD_ELECTIONS).len();
        if others > voters.len() / 2 {
            let to = self.hand_over();
            tracing::warn!(id = self.config.id, ?to, "a leader whose disk hangs asks another to lead");
            self.disk.asked = Some(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_timed_from_its_start() {
        let config = NodeConfig { election_ticks: 4, flush_elections_max: 2, ..NodeConfig::new(1) };
        let mut disk = DiskWatch::new(&config);
        // One flush after the other, each within the limit.
        for flush in 0..100 {
            assert_eq!((0..8).map(|_| disk.tick(Some(flush))).filter(|found| *found != Found::Nothing).count(), 0);
        }
        assert_eq!(disk.tick(None), Found::Nothing);
        assert_eq!(disk.tick(Some(7)), Found::Nothing);
        (0..7).for_each(|_| assert_eq!((disk.tick(Some(7)), disk.hangs()), (Found::Nothing, false)));
        assert_eq!((disk.tick(Some(7)), disk.hangs()), (Found::Hangs, true));
        (0..5).for_each(|_| assert_eq!((disk.tick(Some(7)), disk.hangs()), (Found::Nothing, true)));
        assert_eq!((disk.tick(Some(9)), disk.hangs()), (Found::CameBack(13), false));
    }
}
