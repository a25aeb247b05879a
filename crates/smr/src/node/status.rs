//! The status of a replica.

use raft::StateRole;
use raft::eraftpb::ConfState;

use super::core::Core;
use crate::wire::response::{Role, Status};

impl Core {
    /// Returns the membership, in order.
    pub fn conf_state(&self) -> ConfState {
        let conf = self.raft.raft.prs().conf().to_conf_state();
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        ConfState { voters: sorted(&conf.voters), learners: sorted(&conf.learners), ..ConfState::default() }
    }

    /// Returns the status, as clients get it.
    pub fn status(&self) -> Status {
        let raft = &self.raft.raft;
        let conf = self.conf_state();
        let matched = |id: &u64| raft.prs().get(*id).map_or(0, |progress| progress.matched);
        Status {
            id: self.config.id,
            cluster: self.cluster(),
            groups: self.common.groups,
            other_groups: self.rejected.other_groups().filter(|_| self.cluster.is_none()),
            role: match raft.state {
                StateRole::Follower => Role::Follower,
                StateRole::Leader => Role::Leader,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            disk_hangs: self.disk.hangs(),
            term: raft.term,
            leader: (raft.leader_id != 0).then_some(raft.leader_id),
            first: raft.raft_log.first_index(),
            last: raft.raft_log.last_index(),
            committed: raft.raft_log.committed,
            applied: self.applied,
            sessions: self.state.sessions.len() as u64,
            snapshot_pause_max: self.snapshots.pause_max(),
            matched: if self.is_leader() {
                conf.voters.iter().chain(&conf.learners).map(matched).collect()
            } else {
                Vec::new()
            },
            voters: conf.voters,
            learners: conf.learners,
            foreign: self.foreign.known(),
            addresses: self.state.members.clone(),
        }
    }
}
