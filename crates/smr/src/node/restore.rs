//! Restoring a state from a snapshot: into a second state, a piece in each turn of the event loop. Until that is whole,
//! the replica votes, answers and executes with the first one. That of the log may hold gigabytes: of it the replica
//! knows the members at once.
//!
//! | Snapshot | When | If no state can be restored from it |
//! |---|---|---|
//! | of the log | the replica starts; committed entries wait meanwhile, and it asks for no votes | the replica stops |
//! | of a leader | while the log brings it to the disk, before the library hears of it | it is rejected, and the replica goes on as it was |

use std::collections::BTreeMap;

use bytes::Bytes;
use dunlin_net::Addr;
use dunlin_serve::long_work;
use raft::eraftpb::Message;

use super::core::Core;
use super::transfer::Staging;
use crate::config::NodeError;
use crate::discard::discard;
use crate::log::LogStore;
use crate::machine::{Piece, RestoreError, StateMachine};
use crate::state::{Replicated, Restore};

/// Senders of snapshots that were rejected, of which each is logged once: of others nothing is said, since they might
/// be any number.
const NAMED_MAX: usize = 16;
/// Election timeouts for which none is taken in of a sender whose last one was rejected.
const PAUSE_ELECTIONS: u32 = 10;

/// A state that is being restored, or was.
pub(super) struct Restoring<M> {
    data: Bytes,
    progress: Progress<M>,
}

enum Progress<M> {
    UnderWay(Box<Restore<M>>),
    Whole(Box<Replicated<M>>),
    Wrong(RestoreError),
}

impl<M: StateMachine> Restoring<M> {
    /// Begins to restore a snapshot into this state, which is empty.
    pub fn new(data: Bytes, empty: Result<Replicated<M>, RestoreError>) -> Restoring<M> {
        let progress = match empty {
            Ok(empty) => Progress::UnderWay(Box::new(Restore::new(empty))),
            Err(error) => Progress::Wrong(error),
        };
        Restoring { data, progress }
    }

    /// Takes the next so many bytes of the snapshot.
    fn go_on(&mut self, bytes: usize) {
        let Progress::UnderWay(restore) = &mut self.progress else { return };
        // A machine that offers no pieces takes all of it now.
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

    /// Whether no state can be restored.
    pub fn is_wrong(&self) -> bool {
        matches!(self.progress, Progress::Wrong(_))
    }

    /// Whether pieces are left.
    pub fn is_under_way(&self) -> bool {
        matches!(self.progress, Progress::UnderWay(_))
    }

    /// The state, if it is whole.
    ///
    /// # Errors
    /// Why there is none.
    pub fn into_state(mut self) -> Result<Replicated<M>, RestoreError> {
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

    /// Gives it up.
    pub fn discard(self) {
        if let Ok(state) = self.into_state() {
            state.discard();
        }
    }
}

/// Who sent snapshots that were rejected.
#[derive(Default)]
pub(super) struct Rejected {
    /// Ticks until one is taken in again, by sender. All who do not send from the address of a member are one sender:
    /// they might be any number, and name whom they like. So nobody who forges snapshots keeps out those of a member.
    pauses: BTreeMap<Option<u64>, u32>,
    named: Vec<u64>,
}

impl Rejected {
    pub fn tick(&mut self) {
        self.pauses.retain(|_, pause| {
            *pause -= 1;
            *pause > 0
        });
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Goes on with the state that is being restored: that of the log first.
    ///
    /// # Errors
    /// If it is that of the log, and there is none in it.
    pub fn continue_restore(&mut self) -> Result<(), NodeError> {
        let begun = self.now();
        let bytes = self.config.snapshot_step_bytes;
        let restoring = self.own_restoring.as_mut().or(self.staging.as_mut().map(Staging::restoring));
        let Some(restoring) = restoring.filter(|restoring| restoring.is_under_way()) else { return Ok(()) };
        restoring.go_on(bytes);
        if restoring.is_under_way() {
            self.snapshots.wake();
        }
        self.finish_own_restore()?;
        self.note_pause(begun);
        Ok(())
    }

    /// Whether there is a state that is being restored.
    pub fn is_restoring(&self) -> bool {
        let staged = self.staging.as_ref().is_some_and(Staging::is_being_restored);
        self.own_restoring.is_some() || staged
    }

    /// Takes the state of the log when it is whole: what was committed meanwhile is executed on it.
    fn finish_own_restore(&mut self) -> Result<(), NodeError> {
        let Some(restored) = self.own_restoring.take_if(|restoring| !restoring.is_under_way()) else { return Ok(()) };
        let state = restored.into_state()?;
        self.become_restored(state, self.raft.store().base().get_metadata().index);
        self.later.set_due();
        if self.staging.is_some() {
            // It has waited for this.
            self.snapshots.wake();
        }
        Ok(())
    }

    /// Goes on with a state that was restored, as of this entry.
    pub fn become_restored(&mut self, state: Replicated<M>, applied: u64) {
        std::mem::replace(&mut self.state, state).discard();
        self.applied = applied;
        self.common.links.borrow_mut().follow(self.group, &self.state.members);
    }

    /// A sender, if it is a member, at its address.
    pub fn sender_at(&self, id: u64, peer: Option<&Addr>) -> Option<u64> {
        let known: Addr = self.state.members.get(&id)?.parse().ok()?;
        (peer == Some(&known)).then_some(id)
    }

    /// Whether it is too early for a snapshot of this sender.
    pub fn is_too_early(&self, sender: Option<u64>) -> bool {
        self.rejected.pauses.contains_key(&sender)
    }

    /// Goes on without a leader's snapshot, which this replica cannot be restored from. If it is on the disk, it goes.
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
