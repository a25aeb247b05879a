//! The state of the cluster manager as a [`StateMachine`]: what each command does. It reads no clock and sends nothing.
//!
//! # Failures without comparing clocks
//!
//! A member is failed when *one clock* has waited long enough. That is the clock of the **watchman**, a task beside the
//! leader ([`crate::embedded::Watchman`]). A heartbeat is a *query*: the leader answers it once it knows that a
//! majority still follows it, and its [`Hearing`] counts it, outside the state. The watchman reads the counts and
//! records, by its own clock, how long each count has been unchanged. When that reaches the failure timeout, it
//! condemns the member, whose heartbeats no longer count, and has [`Command::Decide`] executed. So:
//!
//! - *One clock decides.* Times are differences of readings of the watchman's clock. No command contains a reading of
//!   any other clock.
//! - *All replicas see the same failures*: a failure is an entry of the log. A heartbeat either counts before the
//!   member is condemned, which saves the member, or is not answered until the outcome is known.
//! - *A new watchman is patient.* It has not seen any count yet, so after a change of leaders every member and every
//!   lease gets the whole timeout again, as if heard at the election.
//! - *An old watchman is harmless.* A watchman begins with [`Command::Reign`], and its commands carry the number of its
//!   reign. Once another reign has begun, they are refused. A replica hears nothing before its own watchman's reign has
//!   begun; by then all commands of the previous watchman were executed or refused.
//! - *An old leader promises nothing.* It cannot answer once a majority follows another leader. All requests that it
//!   answered were sent before the new leader was elected, and the new leader waits the whole timeout from its election
//!   on.
//! - *Time in which the watchman did not run, or the replicas had no majority, does not count*: members could not be
//!   heard then. The watchman reads the counts with a query, too. If a look at them comes late, all waiting restarts.
//!
//! A member is therefore promised only this: if its heartbeats are *answered* more often than the failure timeout (of
//! the watchman's clock), it stays live. The other members are promised this: a member that sends none is failed within
//! the timeout and a few looks, once there is a leader. A member may be marked as failed while it is alive. That is no
//! contradiction: the epoch has risen; the member learns of it with its next heartbeat, and joins again, which begins
//! another epoch.
//!
//! A member that joins is told the failure timeout of the reigning watchman. The answer to each heartbeat renews a
//! lease on membership: it says until when the member may work as one ([`crate::Heartbeat::safe_until`]). The timeout
//! that the member was told is stored with the member, and every watchman waits for that, whatever its own setting is.
//! So a later watchman with a shorter timeout does not fail a member that was promised a longer one.
//!
//! # Settled epochs
//!
//! A heartbeat says which epoch its member was told, and its answer whether the epoch is *settled*: each live member
//! has said so of it, or joined in it. A member works in an epoch once that is settled, and no longer in an earlier
//! one when it was told of a later one. So if any member works in an epoch, nobody works in an earlier one, then
//! or later. For a live member has been told; one that is not live was safe no more before it was taken for failed, or
//! has stopped before it left. There is no third way to go: while a member is live, nobody joins in its place, be it a
//! process of the same id that was started elsewhere, or the same process. What members said is heard beside the state,
//! too, and a new leader hears it anew; an epoch that was settled stays so.
//!
//! # Leases
//!
//! Renewals work the same way. The holder counts too, by its own clock: three quarters of the time, from **before it
//! sent** the acquisition or renewal; the watchman counts the whole time, from **after that was executed or counted**.
//! So the holder's count ends first, however long messages take, unless its clock is slow by more than a quarter
//! against the watchman's: `send <= execute <= see`, and 3/4 of a duration is shorter than the whole of it. To avoid
//! that assumption, use the **token**. Tokens are revisions, which only rise, so each grant has a higher token than all
//! before it, over changes of leaders and restarts; a resource that refuses tokens below the highest it has seen lets
//! no former holder in.
//!
//! The failure of a member does not end its leases, since it may be cut off from the cluster manager and not from the
//! resource. The leases cannot be renewed any more, and lapse. Until they have, the member cannot join again: leases
//! that it delegated may still be in use (Reda 2022, section 5.5).
//!
//! # Files
//!
//! | File | What it holds |
//! |---|---|
//! | `state` | what is replicated, its events and its snapshot |
//! | `members`, `epochs`, `leases`, `tree`, `transactions` | what commands do to each |
//! | [`hearing`](Hearing) | heartbeats and renewals, which are not replicated |
//! | `view` | members, leases and a subtree at one revision |
//! | `watchers` | queries that wait for an event, which are not replicated |
//! | `taking` | a snapshot, piece by piece |
//! | `restore` | how a state is restored from a snapshot |

mod epochs;
mod hearing;
mod leases;
mod members;
mod restore;
mod state;
mod taking;
#[cfg(test)]
mod tests;
mod transactions;
mod tree;
mod view;
mod watchers;

use dunlin_smr::StateMachine;
use dunlin_smr::machine::{Asked, Piece, RestoreError, free_beside};

use self::restore::Restore;
use self::state::State;
use self::taking::Taking;
use self::watchers::{Watchers, Woken};
use crate::error::CoordError;
use crate::limits::Limits;
use crate::path::check_root;
use crate::types::{Changes, Revision, Scope};
use crate::wire::{Answer, Command, Query, Wire, is_urgent};

pub use self::hearing::Hearing;

/// Bytes of events or entries in one answer, unless a single one is larger.
pub const PAGE_BYTES_MAX: usize = 256 << 10;
/// The version of snapshots.
const SNAPSHOT_VERSION: u8 = 2;

/// The replicated state of the cluster manager.
#[derive(Debug, Clone)]
pub struct Machine {
    state: State,
    limits: Limits,
    hearing: Hearing,
    watchers: Watchers,
    /// The snapshot that is being taken.
    taking: Option<Taking>,
    /// A partly restored snapshot.
    restoring: Option<Box<Restore>>,
}

impl Machine {
    /// An empty machine. All replicas have the same limits. Each has its own hearing, shared with the watchman beside
    /// it.
    ///
    /// # Panics
    /// If [`Limits::check`] fails.
    pub fn new(limits: Limits, hearing: Hearing) -> Machine {
        limits.check().unwrap_or_else(|error| panic!("{error}"));
        let (state, watchers) = (State::default(), Watchers::default());
        Machine { state, limits, hearing, watchers, taking: None, restoring: None }
    }

    /// Executes a command. All of its events have one revision.
    fn execute(&mut self, command: Command) -> Result<Answer, CoordError> {
        let before = self.state.revision;
        let answer = self.change(command);
        self.state.happened().for_each(|happening| self.watchers.note(happening, before));
        self.state.end_step(&self.limits);
        answer
    }

    fn change(&mut self, command: Command) -> Result<Answer, CoordError> {
        let (state, limits) = (&mut self.state, &self.limits);
        match command {
            Command::Join { member, about } => state.join(limits, member, about),
            Command::Leave { member, incarnation } => state.leave(member, incarnation),
            Command::Forget { member } => state.forget(member),
            Command::CutEpochs { up_to } => state.cut_epochs(up_to),
            Command::Acquire { name, member, incarnation, ttl_ms } => {
                state.acquire(limits, name, (member, incarnation), ttl_ms)
            }
            Command::Release { name, token } => state.release(name, token),
            Command::Transact { transaction } => state.transact(limits, transaction, self.taking.as_mut()),
            Command::Reign { failure_timeout_ms } => {
                state.begin_reign(failure_timeout_ms);
                Ok(Answer::Reigns { reign: state.reign })
            }
            Command::Decide { reign, members, leases } => {
                state.check_reign(reign)?;
                Ok(state.decide(members, leases))
            }
        }
    }

    /// Answers a query.
    fn answer(&self, query: Query) -> Result<Answer, CoordError> {
        let state = &self.state;
        match query {
            Query::Epochs { after } => state.epochs_after(after),
            Query::Members => Ok(Answer::Members { members: state.all_members() }),
            Query::Holder { name } => state.holder(&name),
            Query::Leases { after } => Ok(state.all_leases(after)),
            Query::Get { path } => state.get(path),
            Query::List { root, after } => state.list(&root, after),
            Query::View { root } => state.view(&root),
            Query::Changes { scope, after } | Query::Watch { scope, after } => self.changes(&scope, after),
            Query::Heartbeat { member, incarnation, epoch } => {
                let failure_timeout_ms = state.live(member, incarnation)?.failure_timeout_ms;
                if !self.hearing.hear(state, incarnation) {
                    return Ok(Answer::NotYet);
                }
                let is_settled = self.hearing.acknowledge(state, incarnation, epoch);
                Ok(Answer::Heard { epoch: state.epoch, is_settled, failure_timeout_ms })
            }
            Query::Renew { name, token } => {
                let (token, ttl_ms) = state.renewable(&name, token)?;
                Ok(if self.hearing.hear(state, token) { Answer::Renewed { ttl_ms } } else { Answer::NotYet })
            }
            Query::Pulse { reign } => self.hearing.take(state, reign),
        }
    }

    fn changes(&self, scope: &Scope, after: Revision) -> Result<Answer, CoordError> {
        if let Scope::Tree { root } = scope {
            check_root(root)?;
        }
        Ok(Answer::Changes { changes: self.state.changes(scope, after)? })
    }

    /// The answer to a watcher; `None` if it waits from now on.
    fn watch(&mut self, number: u64, scope: Scope, after: Revision) -> Option<Result<Answer, CoordError>> {
        match self.watchers.take_woken(number) {
            Some(Woken::Quiet { up_to }) => {
                let changes = Changes { events: Vec::new(), up_to: up_to.max(after) };
                return Some(Ok(Answer::Changes { changes }));
            }
            // Nothing has happened in between, even if that part of the history has been discarded.
            Some(Woken::Told { quiet_up_to }) => return Some(self.changes(&scope, quiet_up_to.max(after))),
            None => {}
        }
        match self.changes(&scope, after) {
            // A watcher that is behind gets a revision to continue from at once, since it may give this query up.
            Ok(Answer::Changes { changes }) if changes.events.is_empty() && after >= self.state.middle() => {
                self.watchers.wait(number, scope, changes.up_to);
                None
            }
            answer => Some(answer),
        }
    }
}

fn no_message(error: impl std::fmt::Display) -> Answer {
    CoordError::Backend { why: format!("this is not understood there: {error}"), may_have_run: false }.into()
}

impl StateMachine for Machine {
    fn apply(&mut self, _index: u64, command: &[u8], reply: &mut Vec<u8>) {
        let answer = match Command::from_bytes(command) {
            Ok(command) => self.execute(command).unwrap_or_else(Answer::from),
            Err(error) => no_message(error),
        };
        answer.put(reply);
    }

    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        let answer = match Query::from_bytes(query) {
            Ok(query) => self.answer(query).unwrap_or_else(Answer::from),
            Err(error) => no_message(error),
        };
        answer.put(reply);
    }

    fn ask(&mut self, number: u64, query: &[u8], reply: &mut Vec<u8>) -> Asked {
        let answer = match Query::from_bytes(query) {
            Ok(Query::Watch { scope, after }) => match self.watch(number, scope, after) {
                Some(answer) => answer.unwrap_or_else(Answer::from),
                None => return Asked::Kept,
            },
            Ok(query) => self.answer(query).unwrap_or_else(Answer::from),
            Err(error) => no_message(error),
        };
        answer.put(reply);
        Asked::Answered
    }

    fn take_ready(&mut self) -> Vec<u64> {
        // Done here, not with each command: however many were executed since, nothing has happened for the watchers
        // that still wait.
        self.watchers.wake_before(self.state.middle(), self.state.revision);
        self.watchers.take_untold()
    }

    fn forget(&mut self, number: u64) {
        self.watchers.forget(number);
    }

    fn is_urgent(&self, query: &[u8]) -> bool {
        is_urgent(query)
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        Taking::begin(&self.state, out).take_piece(&self.state.tree, usize::MAX, out);
    }

    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        self.taking = Some(Taking::begin(&self.state, out));
    }

    fn continue_snapshot(&mut self, bytes: usize, out: &mut Vec<u8>) -> Piece {
        let taking = self.taking.as_mut();
        let piece = taking.map_or(Piece::Last, |taking| taking.take_piece(&self.state.tree, bytes, out));
        self.taking.take_if(|_| piece == Piece::Last);
        piece
    }

    fn abandon_snapshot(&mut self) {
        self.taking = None;
    }

    fn fresh(&self) -> Result<Machine, RestoreError> {
        Ok(Machine::new(self.limits, self.hearing.clone()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.restoring = None;
        self.restore_piece(snapshot, 0, snapshot.len()).map(|_| ())
    }

    fn restore_piece(&mut self, snapshot: &[u8], from: usize, bytes: usize) -> Result<usize, RestoreError> {
        let mut restore = self.restoring.take().unwrap_or_default();
        let next = restore.take_piece(snapshot, from, bytes)?;
        if next < snapshot.len() {
            self.restoring = Some(restore);
        } else {
            self.state = restore.into_state();
        }
        Ok(next)
    }

    fn discard(self) {
        free_beside(self);
    }
}
