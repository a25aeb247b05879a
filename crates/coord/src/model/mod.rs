//! The state of the cluster manager as a [`StateMachine`]: what commands do to it. It reads no clock and sends nothing.
//!
//! # Failures without comparing clocks
//!
//! A member is failed when *somebody* has waited long enough. That somebody is the **watchman**, a task beside the replica that leads
//! ([`crate::embedded::Watchman`]). A heartbeat is a *query*: the leader answers it once it knows that a majority still follows it, and its [`Hearing`] counts it,
//! beside the state. The watchman reads the counts and keeps, by its own clock, since when it has seen a count unchanged. When that is the failure timeout, it
//! condemns the member, which is not heard from then on, and has [`Command::Decide`] executed. So:
//!
//! - *One clock decides.* Times are differences of readings of the watchman's clock. Nobody else's clock appears in any command.
//! - *A failure is what all replicas see alike*: it is an entry of the log. A heartbeat is counted before the member is condemned, which saves it, or is not answered
//!   until it is known whether the member has failed.
//! - *A new watchman is patient.* It has seen no count for any time yet, so everyone gets the whole timeout again after a change of leaders: each member
//!   and each lease counts as heard at the election.
//! - *An old one is harmless.* A watchman begins with [`Command::Reign`], and its commands name the number that it got. Once another has begun they are
//!   refused. A replica hears nothing before its own watchman's reign has begun: then all commands of the one before are executed, or refused.
//! - *An old leader promises nothing.* It cannot answer once a majority follows another. What it answered before, it was asked before the other was
//!   elected, and the other waits the whole timeout from its election on.
//! - *Time in which the watchman was not running, or the replicas had no majority, does not count*: members could not be heard then. The watchman asks for the counts
//!   with a query, too. A look at them that comes late begins all waiting anew.
//!
//! What is promised to a member is therefore only this: if its heartbeats are *answered* more often than the failure timeout (of the watchman's
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
//! The same with renewals. The holder counts too, by its own clock: three quarters of the time,
//! from **before it sent** what was granted or renewed; the watchman counts the whole time, from **after that was executed or counted**. So the holder's
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
//! | `members`, `epochs`, `leases`, `tree`, `transactions` | what commands do to each |
//! | [`hearing`](Hearing) | heartbeats and renewals, which are not replicated |
//! | `view` | members, leases and a subtree at one revision |
//! | `watchers` | who waits for something to happen, which is not replicated |
//! | `restore` | how a state is restored from a snapshot |

mod epochs;
mod hearing;
mod leases;
mod members;
mod restore;
mod state;
#[cfg(test)]
mod tests;
mod transactions;
mod tree;
mod view;
mod watchers;

use dunlin_smr::StateMachine;
use dunlin_smr::machine::{Asked, RestoreError, free_beside};

use self::restore::Restore;
use self::state::State;
use self::watchers::Watchers;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::types::Scope;
use crate::wire::{Answer, Command, Query, Wire, is_urgent};

pub use self::hearing::Hearing;

/// Bytes of events or entries in one answer, unless a single one is longer.
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
    /// What was restored of a snapshot whose end has not come yet.
    restoring: Option<Box<Restore>>,
}

impl Machine {
    /// An empty one. All replicas have the same limits, and each has a hearing of its own, which the watchman beside it has, too.
    pub fn new(limits: Limits, hearing: Hearing) -> Machine {
        Machine { state: State::default(), limits, hearing, watchers: Watchers::default(), restoring: None }
    }

    /// Does what a command says. All that happens has one revision.
    fn execute(&mut self, command: Command) -> Result<Answer, CoordError> {
        let answer = self.change(command);
        self.state.happened().for_each(|happening| self.watchers.note(happening));
        self.state.end_step(&self.limits);
        self.watchers.wake_before(self.state.middle());
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
            Command::Transact { transaction } => state.transact(limits, transaction),
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

    /// What is asked.
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
            Query::Changes { scope, after } | Query::Watch { scope, after } => {
                if let Scope::Tree { root } = &scope {
                    crate::path::check_root(root)?;
                }
                state.changes(&scope, after)
            }
            Query::Heartbeat { member, incarnation } => {
                let failure_timeout_ms = state.live(member, incarnation)?.failure_timeout_ms;
                let heard = Answer::Heard { epoch: state.epoch, failure_timeout_ms };
                Ok(if self.hearing.hear(state, incarnation) { heard } else { Answer::NotYet })
            }
            Query::Renew { name, token } => {
                let (token, ttl_ms) = state.renewable(&name, token)?;
                Ok(if self.hearing.hear(state, token) { Answer::Renewed { ttl_ms } } else { Answer::NotYet })
            }
            Query::Pulse { reign } => self.hearing.take(state, reign),
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
        let Ok(Query::Watch { scope, after }) = Query::from_bytes(query) else {
            self.query(query, reply);
            return Asked::Answered;
        };
        let woken = self.watchers.take_woken(number);
        // Nothing has happened in between, also if that is forgotten by now.
        let after = woken.map_or(after, |quiet_up_to| quiet_up_to.max(after));
        let answer = self.answer(Query::Watch { scope: scope.clone(), after }).unwrap_or_else(Answer::from);
        match &answer {
            // One that is behind is told how far it may go on from: it may give this question up.
            Answer::Changes { changes } if changes.events.is_empty() && woken.is_none() && after >= self.state.middle() => {
                self.watchers.wait(number, scope, changes.up_to);
                return Asked::Kept;
            }
            _ => answer.put(reply),
        }
        Asked::Answered
    }

    fn take_ready(&mut self) -> Vec<u64> {
        self.watchers.take_untold()
    }

    fn forget(&mut self, number: u64) {
        self.watchers.forget(number);
    }

    fn is_urgent(&self, query: &[u8]) -> bool {
        is_urgent(query)
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        SNAPSHOT_VERSION.put(out);
        self.state.put(out);
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
