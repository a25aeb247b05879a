//! The state of the cluster manager as a [`StateMachine`]: what commands do to it, and nothing else. It reads no clock and sends nothing.
//!
//! # Failures without comparing clocks
//!
//! A member is failed when *somebody* has waited long enough. That somebody is the **watchman**, a task beside the replica that leads
//! ([`crate::embedded::Watchman`]). The state counts the heartbeats of each member; the watchman reads the counts and keeps, by its own clock, since when
//! it has seen a count unchanged. When that is the failure timeout, it has [`Command::Decide`] executed, which **names the count that it saw**. If a
//! heartbeat was executed meanwhile the count is another, and the member stays live. So:
//!
//! - *One clock decides.* Times are differences of readings of the watchman's clock. Nobody else's clock appears in any command.
//! - *A failure is what all replicas see alike*: it is an entry of the log, behind or before each heartbeat, never between two opinions.
//! - *A new watchman is patient.* It has seen no count for any time yet, so everyone gets the whole timeout again after a change of leaders.
//! - *An old one is harmless.* A watchman begins with [`Command::Reign`], and its commands name the number that it got. Once another has begun they are
//!   refused; otherwise one that was stopped for long, and leads no more, could end the patience of the new one: nothing needs to have
//!   been heard of a member between the two, while nobody led.
//! - *Time in which the watchman was not running, or the replicas had no majority, does not count*: members could not be heard then. A look
//!   at the counts that comes late begins all waiting anew.
//!
//! What is promised to a member is therefore only this: if its heartbeats are *executed* more often than the failure timeout (of the watchman's
//! clock), it stays live. What is promised to the others: a member that sends none is failed within the timeout and some looks, once
//! there is a leader. A member that is marked as failed while it lives is no contradiction: the epoch has risen, it learns of that with its next
//! heartbeat, and joins again, which is another epoch.
//!
//! A member that joins is told the failure timeout of the watchman that reigns, and each heartbeat is answered as the renewal of a lease: until when the
//! member may work as one ([`crate::Heartbeat::safe_until`]). What it was told is kept with the member, and is what every watchman waits for, whatever it is
//! set to. So a shorter timeout of the next watchman fails nobody who was promised a longer one.
//!
//! # Leases
//!
//! The same with renewals: [`Command::Decide`] names token and count. The holder counts too, by its own clock: three quarters of the time,
//! from **before it sent** the command that was granted; the watchman counts the whole time, from **after that was executed**. So the holder's
//! count ends first unless its clock is slow by more than a quarter against the watchman's, however long messages take: `send <= execute
//! <= see`, and 3/4 of a duration is shorter than the whole of it. Whoever does not want to rest on that uses the **token**. Tokens are revisions, which only
//! rise, so each grant has a token above all before it, over changes of leaders and restarts; a resource that refuses tokens below the highest it has seen
//! lets no former holder in.
//!
//! The failure of a member does not end its leases, since it may be cut off from here and not from the resource. They cannot be renewed any more, and
//! lapse. Until they have, the member cannot join again: what it had lent on may be in use still (Reda 2022, section 5.5).
//!
//! # Files
//!
//! | File | What it holds |
//! |---|---|
//! | `state` | what is replicated, its events and its snapshot |
//! | `members`, `leases`, `tree`, `transactions` | what commands do to each |
//! | `view` | members, leases and a subtree at one revision |
//! | `restore` | how a state is restored from a snapshot |

mod leases;
mod members;
mod restore;
mod state;
#[cfg(test)]
mod tests;
mod transactions;
mod tree;
mod view;

use dunlin_smr::StateMachine;
use dunlin_smr::machine::{RestoreError, free_beside};

use self::restore::Restore;
use self::state::State;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::types::Scope;
use crate::wire::{Answer, Command, Pulse, Query, Wire};

/// Bytes of events or entries in one answer, unless a single one is longer.
pub const PAGE_BYTES_MAX: usize = 256 << 10;
/// The version of snapshots.
const SNAPSHOT_VERSION: u8 = 2;

/// The replicated state of the cluster manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    state: State,
    limits: Limits,
    /// What was restored of a snapshot whose end has not come yet.
    restoring: Option<Box<Restore>>,
}

impl Machine {
    /// An empty one. All replicas have the same limits.
    pub fn new(limits: Limits) -> Machine {
        Machine { state: State::default(), limits, restoring: None }
    }

    /// Does what a command says. All that happens has one revision.
    fn execute(&mut self, command: Command) -> Result<Answer, CoordError> {
        let answer = self.change(command);
        self.state.end_step(&self.limits);
        answer
    }

    fn change(&mut self, command: Command) -> Result<Answer, CoordError> {
        let (state, limits) = (&mut self.state, &self.limits);
        match command {
            Command::Join { member, about } => state.join(limits, member, about),
            Command::Heartbeat { member, incarnation } => state.heartbeat(member, incarnation),
            Command::Leave { member, incarnation } => state.leave(member, incarnation),
            Command::Forget { member } => state.forget(member),
            Command::Acquire { name, member, incarnation, ttl_ms } => {
                state.acquire(limits, name, (member, incarnation), ttl_ms)
            }
            Command::Renew { name, token } => state.renew(name, token),
            Command::Release { name, token } => state.release(name, token),
            Command::Transact { transaction } => state.transact(limits, transaction),
            Command::Reign { failure_timeout_ms } => {
                state.reign += 1;
                state.failure_timeout_ms = failure_timeout_ms;
                Ok(Answer::Reigns { reign: state.reign })
            }
            Command::Decide { reign, over } => {
                state.check_reign(reign)?;
                Ok(state.decide(over))
            }
        }
    }

    /// What is asked.
    fn answer(&self, query: Query) -> Result<Answer, CoordError> {
        let state = &self.state;
        match query {
            Query::Members => Ok(Answer::Members { members: state.all_members() }),
            Query::Holder { name } => state.holder(&name),
            Query::Leases { after } => Ok(state.all_leases(after)),
            Query::Get { path } => state.get(path),
            Query::List { root, after } => state.list(&root, after),
            Query::View { root } => state.view(&root),
            Query::Changes { scope, after } => {
                if let Scope::Tree { root } = &scope {
                    crate::path::check_root(root)?;
                }
                state.changes(&scope, after)
            }
            Query::Pulse => Ok(Answer::Pulse { pulse: Pulse { members: state.beats(), leases: state.tenures() } }),
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

    fn snapshot(&self, out: &mut Vec<u8>) {
        SNAPSHOT_VERSION.put(out);
        self.state.put(out);
    }

    fn fresh(&self) -> Result<Machine, RestoreError> {
        Ok(Machine::new(self.limits))
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
