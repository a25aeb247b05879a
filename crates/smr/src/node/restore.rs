//! Restores a state from a snapshot, into a second state, one piece in each turn of the event loop. Until that is
//! complete, the replica votes, answers and executes with the first one. The log's own state may be gigabytes, but the
//! replica knows its members at once.
//!
//! | Snapshot | When | If no state can be restored from it |
//! |---|---|---|
//! | of the log | at the start; committed entries wait, and it does not stand for election | the replica stops |
//! | of a leader | while the log writes it, before the library hears of it | it is rejected, and nothing changes |

use std::collections::BTreeMap;

use bytes::Bytes;
use dunlin_net::Addr;
use dunlin_serve::long_work;
use raft::eraftpb::Message;

use super::core::Core;
use super::transfer::Staging;
use crate::config::NodeError;
use crate::discard::discard;
use crate::machine::{Piece, RestoreError};
use crate::state::{Replicated, Restore};

/// Senders of rejected snapshots that are logged, each once; further ones are not, since there might be any number.
const NAMED_MAX: usize = 16;
/// Election timeouts for which snapshots of a sender are not accepted after one was rejected.
const PAUSE_ELECTIONS: u32 = 10;

/// A state that is being restored, or that was restored.
pub(super) struct Restoring {
    data: Bytes,
    progress: Progress,
}

enum Progress {
    UnderWay(Box<Restore>),
    Whole(Box<Replicated>),
    Wrong(RestoreError),
}

impl Restoring {
    /// Begins to restore a snapshot into this state, which is empty.
    pub fn new(data: Bytes, empty: Result<Replicated, RestoreError>) -> Restoring {
        let progress = match empty {
            Ok(empty) => Progress::UnderWay(Box::new(Restore::new(empty))),
            Err(error) => Progress::Wrong(error),
        };
        Restoring { data, progress }
    }

    /// Restores about this many more bytes of the snapshot.
    fn go_on(&mut self, bytes: usize) {
        let Progress::UnderWay(restore) = &mut self.progress else { return };
        // A machine without support for pieces restores everything now.
        let piece = long_work(|| restore.take_piece(&self.data, bytes));
        let nothing = Progress::Wrong(RestoreError::new("it was given up"));
        self.progress = match (piece, std::mem::replace(&mut self.progress, nothing)) {
            (Ok(Piece::Last), Progress::UnderWay(restore)) => Progress::Whole(Box::new(restore.into_state())),
            (Err(error), Progress::UnderWay(restore)) => {
                restore.into_state().discard();
                Progress::Wrong(error)
            }
            (_, progress) => progress,
        };
    }

    /// Whether restoring has failed.
    pub fn is_wrong(&self) -> bool {
        matches!(self.progress, Progress::Wrong(_))
    }

    /// Whether there are pieces left.
    pub fn is_under_way(&self) -> bool {
        matches!(self.progress, Progress::UnderWay(_))
    }

    /// Returns the state, if it is complete.
    ///
    /// # Errors
    /// Why there is none.
    pub fn into_state(mut self) -> Result<Replicated, RestoreError> {
        discard(std::mem::take(&mut self.data));
        match self.progress {
            Progress::Whole(state) => Ok(*state),
            Progress::Wrong(error) => Err(error),
            Progress::UnderWay(restore) => {
                restore.into_state().discard();
                Err(RestoreError::new("it is not restored yet"))
            }
        }
    }

    /// Discards it.
    pub fn discard(self) {
        if let Ok(state) = self.into_state() {
            state.discard();
        }
    }
}

/// Senders of rejected snapshots.
#[derive(Default)]
pub(super) struct Rejected {
    /// Ticks until a sender's snapshots are accepted again. All sources that are not the address of a member count as
    /// one sender: there might be any number, and they can claim any id. So a forger cannot block the snapshots of a
    /// member.
    pauses: BTreeMap<Option<u64>, u32>,
    named: Vec<u64>,
    /// Group counts of clusters that this replica cannot join; each is logged once.
    groups: Vec<u16>,
    /// The group count that was claimed last: anybody may claim any.
    last_groups: Option<u16>,
}

impl Rejected {
    pub fn tick(&mut self) {
        self.pauses.retain(|_, pause| {
            *pause -= 1;
            *pause > 0
        });
    }

    /// A snapshot came from a cluster with this many groups, which this replica cannot join.
    pub fn note_groups(&mut self, id: u64, groups: u16, why: &NodeError) {
        self.last_groups = Some(groups);
        if self.groups.len() < NAMED_MAX && !self.groups.contains(&groups) {
            self.groups.push(groups);
            tracing::error!(id, "this replica cannot join the cluster that sent it a snapshot, and waits on: {why}");
        }
    }

    /// Returns the group count that was claimed last.
    pub fn other_groups(&self) -> Option<u16> {
        self.last_groups
    }
}

impl Core {
    /// Continues with the state that is being restored: the log's own first.
    ///
    /// # Errors
    /// If it is the log's own state, and cannot be restored.
    pub fn continue_restore(&mut self) -> Result<(), NodeError> {
        let begun = self.now();
        let bytes = self.config.snapshot_step_bytes;
        let restoring = self.own_restoring.as_mut().or(self.staging.as_mut().map(Staging::restoring));
        let Some(restoring) = restoring.filter(|restoring| restoring.is_under_way()) else { return Ok(()) };
        restoring.go_on(bytes);
        if restoring.is_under_way() {
            self.await_turn();
        }
        self.finish_own_restore()?;
        self.note_pause(begun);
        Ok(())
    }

    /// Whether a state is being restored.
    pub fn is_restoring(&self) -> bool {
        let staged = self.staging.as_ref().is_some_and(Staging::is_being_restored);
        self.own_restoring.is_some() || staged
    }

    /// Takes the log's own state when it is complete, and executes the entries committed meanwhile.
    fn finish_own_restore(&mut self) -> Result<(), NodeError> {
        let Some(restored) = self.own_restoring.take_if(|restoring| !restoring.is_under_way()) else { return Ok(()) };
        let state = restored.into_state()?;
        self.become_restored(state, self.raft.store().base().get_metadata().index);
        self.later.set_due();
        if self.staging.is_some() {
            // A snapshot has waited for this.
            self.await_turn();
        }
        Ok(())
    }

    /// Switches to a restored state, as of this entry.
    pub fn become_restored(&mut self, state: Replicated, applied: u64) {
        std::mem::replace(&mut self.state, state).discard();
        self.applied = applied;
        self.common.links.borrow_mut().follow(self.group, &self.state.members);
    }

    /// Returns a sender's id if it is a member at its address: of this group, or of another one, since a group that joins
    /// knows no members, and one that is behind may not know those of today.
    pub fn sender_at(&self, id: u64, peer: Option<&Addr>) -> Option<u64> {
        let peer = peer?;
        let is_peer = |address: &String| address.parse().is_ok_and(|known: Addr| known == *peer);
        let is_known = self.state.members.get(&id).is_some_and(is_peer);
        (is_known || self.common.links.borrow().addr(id) == Some(peer)).then_some(id)
    }

    /// Whether it is too early for a snapshot of this sender.
    pub fn is_too_early(&self, sender: Option<u64>) -> bool {
        self.rejected.pauses.contains_key(&sender)
    }

    /// Goes on without a leader's snapshot, which this replica cannot restore. If it is on the disk, it is removed.
    pub fn reject(&mut self, sender: Option<u64>, message: &Message, error: &RestoreError) {
        let (from, index) = (message.from, message.get_snapshot().get_metadata().index);
        self.counters.snapshots_rejected += 1;
        self.raft.mut_store().unstage();
        let pause = self.config.election_ticks.saturating_mul(PAUSE_ELECTIONS);
        self.rejected.pauses.insert(sender, pause);
        if self.rejected.named.len() < NAMED_MAX && !self.rejected.named.contains(&from) {
            self.rejected.named.push(from);
            tracing::error!(
                id = self.config.id,
                from,
                index,
                "a snapshot from replica {from} is rejected, and this replica goes on as it was: {error}. Give both replicas the same version of the program and the \
                 same limits"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody may send snapshots of clusters that do not exist.
    #[test]
    fn the_number_of_groups_that_was_named_last_is_known() {
        let mut rejected = Rejected::default();
        let why = NodeError::Groups { groups: 0 };
        for groups in (10..10 + 2 * NAMED_MAX as u16).chain([8, 10, 8]) {
            rejected.note_groups(4, groups, &why);
            assert_eq!(rejected.other_groups(), Some(groups));
        }
    }
}
