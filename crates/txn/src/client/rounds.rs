//! Sends the messages of a phase, and evaluates the answers.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use futures::future::{Either, select};
use smallvec::SmallVec;

use super::links::{Answer, Sent};
use super::quota::Told;
use super::{ClientStats, Inner};
use crate::error::TxnError;
use crate::ids::{Place, TransactionId};
use crate::mutation::{Mutation, is_planted};
use crate::transaction::{Outgoing, State, Unlocked};
use crate::wire::answer::{Cause, Known, Refusal};
use crate::wire::log::{Append, put_transaction};
use crate::wire::{Header, Kind};

/// Longest pause before a message is sent again.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long the caller of an aborting transaction waits until it is unlocked.
const ABORT_WAIT: Duration = Duration::from_millis(10);

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed.
    Committed,
    /// It is not committed, and never will be.
    Aborted,
    /// It is not decided yet: ask again when the cluster has entered its next epoch and recovered.
    InDoubt,
    /// It ended so long ago that the logs have forgotten it, or all of them may have failed since.
    Forgotten,
}

/// Pauses between retries of a message.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub fn new(first: Duration) -> Pauses {
        Pauses(first)
    }

    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// The longest pause between attempts to tell logs what has ended, as a multiple of the first.
const FLUSH_PAUSE_MAX: u32 = 64;

/// The result of a phase whose messages are repeated until all were executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persisted {
    /// All were executed.
    All,
    /// Some may not have been; recovery decides.
    Some,
}

impl<T: Transport + 'static> Inner<T> {
    pub(super) async fn send_all(&self, state: &State, messages: &[Outgoing]) -> SmallVec<[Sent; 4]> {
        self.count(messages);
        self.links.send_all(&state.configuration, messages).await
    }

    fn count(&self, messages: &[Outgoing]) {
        let mut stats = self.stats.borrow_mut();
        let ClientStats { messages: sent, local, .. } = &mut *stats;
        for message in messages {
            let counts = if Some(message.place) == self.home { &mut *local } else { &mut *sent };
            counts[message.kind.index()] += 1;
        }
    }

    /// Sends the messages of an early phase. If one is not executed, the transaction cannot go on. The other answers
    /// are read all the same, so that all locks are known.
    pub(super) async fn ask(&self, state: &mut State, messages: Vec<Outgoing>) -> Result<(), TxnError> {
        if messages.is_empty() {
            return Ok(());
        }
        let all = self.send_all(state, &messages).await;
        let mut result = Ok(());
        for (message, sent) in messages.iter().zip(all) {
            if let Err(error) = take(state, message, sent) {
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Sends the messages of a late phase until all were executed, as long as the epoch lasts. Each may arrive several
    /// times: logs and copies recognize repeated writes, and unlocking is idempotent.
    pub(super) async fn persist(&self, state: &State, mut messages: Vec<Outgoing>) -> Persisted {
        let mut pauses = Pauses::new(self.config.pause);
        loop {
            let all = self.send_all(state, &messages).await;
            let mut left = Vec::new();
            for (message, sent) in messages.into_iter().zip(all) {
                match sent {
                    Sent::Done(_) => {}
                    Sent::NotRun(_) => left.push(message),
                    Sent::Refused(refusal) if passes(refusal, state.id) => left.push(message),
                    Sent::Refused(refusal) => return self.broken_off(message, refusal),
                    Sent::Lost(why) => {
                        tracing::debug!(transaction = %state.id, place = %message.place, why, "sent again");
                        left.push(message);
                    }
                }
            }
            if left.is_empty() {
                return Persisted::All;
            }
            if self.configuration.borrow().epoch != state.id.epoch {
                return Persisted::Some;
            }
            messages = left;
            self.endpoint.timers().sleep(pauses.next()).await;
        }
    }

    /// Waits for `work` up to `time`; after that it continues as a task.
    pub(super) async fn within<R>(&self, time: Duration, work: impl Future<Output = R> + 'static) -> Option<R> {
        match select(Box::pin(work), pin!(self.endpoint.timers().sleep(time))).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(((), work)) => {
                self.endpoint.spawn(async move { drop(work.await) });
                None
            }
        }
    }

    fn broken_off(&self, message: Outgoing, refusal: Refusal) -> Persisted {
        if !matches!(refusal, Refusal::OtherEpoch { .. } | Refusal::NotHere(_) | Refusal::Recovering(_)) {
            self.stats.borrow_mut().broken += 1;
            let Outgoing { place, kind, .. } = message;
            tracing::error!(%place, ?kind, %refusal, "a participant refused a decided commit");
        }
        Persisted::Some
    }

    /// Unlocks everything that a transaction has locked, and ends it. The caller does not wait for unreachable
    /// participants.
    pub(super) async fn abort(self: &Rc<Self>, state: Box<State>) {
        let messages = state.abort_round(Unlocked::All);
        if messages.is_empty() || is_planted(Mutation::LocksKept) {
            return;
        }
        let inner = self.clone();
        self.within(ABORT_WAIT, async move { inner.persist(&state, messages).await }).await;
    }

    /// Counts the end of a transaction.
    pub(super) fn ended<R>(&self, result: &Result<R, TxnError>) {
        let mut stats = self.stats.borrow_mut();
        *match result {
            Ok(_) => &mut stats.committed,
            Err(
                TxnError::Conflict { cause: Cause::Locked, .. } | TxnError::RangeConflict { cause: Cause::Locked, .. },
            ) => &mut stats.locked,
            Err(TxnError::Conflict { .. } | TxnError::RangeConflict { .. }) => &mut stats.changed,
            Err(TxnError::InDoubt { .. }) => &mut stats.in_doubt,
            Err(_) => &mut stats.failed,
        } += 1;
    }

    /// The lowest transaction of this coordinator that may be undecided.
    pub(super) fn lowest_open(&self) -> u64 {
        self.open.lowest().unwrap_or(self.next.get())
    }

    /// A message to the logs without a record.
    pub(super) fn empty_record(&self, state: &State, ended: &[u64]) -> Vec<Outgoing> {
        let State { configuration, .. } = state;
        let transaction = TransactionId { sequence: 0, ..state.id };
        let header = Header { kind: Kind::Log, count: 0, cluster: configuration.cluster, transaction, incarnation: 0 };
        let mut message = Vec::new();
        header.encode(&mut message);
        Append::encode_ended(ended, self.lowest_open(), &mut message);
        state.to_each(&configuration.log_replicas(self.coordinator, self.home), Kind::Log, &message)
    }

    /// Tells the logs later which transactions have ended, if no record does so in the meantime.
    pub(super) fn flush_later(self: &Rc<Self>) {
        if self.quota.borrow().untold() == 0 || self.is_flushing.replace(true) {
            return;
        }
        let (inner, timers, idle) = (Rc::downgrade(self), self.endpoint.timers(), self.config.log_idle);
        self.endpoint.spawn(async move {
            let mut pause = idle;
            loop {
                timers.sleep(pause).await;
                let Some(inner) = inner.upgrade() else { return };
                let told = inner.clone().flush().await;
                if inner.quota.borrow().untold() == 0 {
                    return inner.is_flushing.set(false);
                }
                // The logs are in another epoch until this client is, too.
                pause = if told == Persisted::Some { (pause * 2).min(idle * FLUSH_PAUSE_MAX) } else { idle };
            }
        });
    }

    /// Tells the logs which transactions have ended.
    pub(super) async fn flush(self: Rc<Self>) -> Persisted {
        let configuration = self.configuration.borrow().clone();
        let epoch = configuration.epoch;
        let told: Told = self.quota.borrow_mut().tell(epoch);
        if told.sequences().is_empty() {
            return Persisted::All;
        }
        let id = TransactionId { epoch, coordinator: self.coordinator, sequence: 0 };
        let state = State::new(id, configuration);
        let persisted = self.persist(&state, self.empty_record(&state, &told.sequences())).await;
        let mut quota = self.quota.borrow_mut();
        match persisted {
            Persisted::All => quota.was_told(&told),
            Persisted::Some => quota.was_not_told(told),
        }
        persisted
    }

    /// Asks all logs for the outcome of a transaction.
    pub(super) async fn outcome(&self, transaction: TransactionId) -> Result<Outcome, TxnError> {
        let configuration = self.configuration.borrow().clone();
        let asking = TransactionId { epoch: configuration.epoch, coordinator: self.coordinator, sequence: 0 };
        let (kind, cluster) = (Kind::Outcome, configuration.cluster);
        let mut message = Vec::new();
        Header { kind, count: 1, cluster, transaction: asking, incarnation: 0 }.encode(&mut message);
        put_transaction(&mut message, transaction);
        let places: Vec<Place> = configuration.places().collect();
        let mut state = State::new(asking, configuration);
        let messages = state.to_each(&places, kind, &message);
        let mut known = Vec::new();
        for (message, sent) in messages.iter().zip(self.send_all(&state, &messages).await) {
            let answer = done(&mut state, message, sent)?;
            known.push(Known::parse(answer.body()).map_err(|_| unreadable(message.place))?);
        }
        let is_log_lost = state.configuration.may_have_lost_logs(transaction.epoch);
        Ok(decide(&known, transaction.epoch < state.id.epoch, is_log_lost))
    }
}

/// Whether to send a refused message again: the participant has yet to enter the epoch; a log gets room when other
/// transactions end; the client that fenced the transaction supplies the record from another log; or another process
/// has replaced a participant, and the next epoch will exclude it.
pub(super) fn passes(refusal: Refusal, transaction: TransactionId) -> bool {
    match refusal {
        Refusal::OtherEpoch { ours } => ours < transaction.epoch,
        Refusal::Full(_) | Refusal::OtherIncarnation { .. } | Refusal::Fenced | Refusal::NotSafe => true,
        _ => false,
    }
}

/// The outcome of a transaction, given the answers of all logs.
fn decide(known: &[Known], is_of_earlier_epoch: bool, is_log_lost: bool) -> Outcome {
    if known.contains(&Known::Committed) {
        return Outcome::Committed;
    }
    if known.contains(&Known::Recorded) || !is_of_earlier_epoch {
        return Outcome::InDoubt;
    }
    // No log accepts records of its epoch any more. A transaction that committed had a record in each of its f + 1
    // logs, so one log of its coordinator that never had one proves that it did not commit.
    // If all of its logs may be gone, nobody knows.
    let is_forgotten = is_log_lost || known.contains(&Known::Forgotten);
    let may_be_forgotten = is_forgotten && !known.contains(&Known::Absent);
    if may_be_forgotten { Outcome::Forgotten } else { Outcome::Aborted }
}

pub(super) fn unreadable(place: Place) -> TxnError {
    let why = "its answer cannot be read: run the same version everywhere".into();
    TxnError::Unreachable { place, why }
}

/// The answer to a message, if it was executed.
pub(super) fn done(state: &mut State, message: &Outgoing, sent: Sent) -> Result<Answer, TxnError> {
    let place = message.place;
    match sent {
        Sent::Done(answer) => Ok(answer),
        Sent::Refused(Refusal::Conflict { index, cause }) => {
            let number = message.entries.get(usize::from(index)).ok_or_else(|| unreadable(place))?;
            Err(state.conflict(*number as usize, cause))
        }
        Sent::Refused(refusal) => Err(TxnError::Refused { place, refusal }),
        Sent::NotRun(why) | Sent::Lost(why) => Err(TxnError::Unreachable { place, why }),
    }
}

fn take(state: &mut State, message: &Outgoing, sent: Sent) -> Result<(), TxnError> {
    if matches!(sent, Sent::Lost(_)) && message.kind == Kind::Execute {
        state.lost(message);
    }
    let answer = done(state, message, sent)?;
    match message.kind {
        Kind::Execute => state.executed(message, answer.body()).map_err(|_| unreadable(message.place)),
        Kind::Scan => state.scanned(answer.body()).map_err(|_| unreadable(message.place)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{PartitionId, TableId};
    use crate::wire::answer::Resource;

    const TRANSACTION: TransactionId = TransactionId { epoch: 7, coordinator: 1, sequence: 1 };

    #[test]
    fn a_message_is_repeated_to_a_participant_that_is_late_but_not_to_one_that_went_on() {
        assert!(passes(Refusal::OtherEpoch { ours: 6 }, TRANSACTION));
        assert!(!passes(Refusal::OtherEpoch { ours: 8 }, TRANSACTION));
    }

    #[test]
    fn a_message_is_repeated_only_after_refusals_that_time_or_the_next_epoch_ends() {
        for refusal in
            [Refusal::Full(Resource::Log), Refusal::OtherIncarnation { ours: 1 }, Refusal::Fenced, Refusal::NotSafe]
        {
            assert!(passes(refusal, TRANSACTION), "{refusal}");
        }
        let final_ones = [
            Refusal::Conflict { index: 0, cause: Cause::Locked },
            Refusal::OtherCluster { ours: 1 },
            Refusal::NotHere(PartitionId(1)),
            Refusal::Recovering(PartitionId(1)),
            Refusal::NoTable(TableId(1)),
            Refusal::NotLocked(0),
            Refusal::Malformed,
        ];
        for refusal in final_ones {
            assert!(!passes(refusal, TRANSACTION), "{refusal}");
        }
    }

    #[test]
    fn an_outcome_is_told_only_if_it_cannot_change() {
        use Known::{Absent, Committed, Forgotten, Nothing, Recorded};
        let cases: [(&[Known], bool, Outcome); 9] = [
            (&[Nothing, Committed], false, Outcome::Committed),
            (&[Forgotten, Committed], true, Outcome::Committed),
            (&[Absent, Absent], false, Outcome::InDoubt),
            (&[Nothing, Nothing], false, Outcome::InDoubt),
            (&[Nothing, Recorded], true, Outcome::InDoubt),
            (&[Absent, Recorded], true, Outcome::InDoubt),
            (&[Forgotten, Absent], true, Outcome::Aborted),
            (&[Nothing, Nothing], true, Outcome::Aborted),
            (&[Forgotten, Nothing], true, Outcome::Forgotten),
        ];
        for (known, is_of_earlier_epoch, outcome) in cases {
            assert_eq!(decide(known, is_of_earlier_epoch, false), outcome, "{known:?}, {is_of_earlier_epoch}");
        }
        // All of its logs may be gone.
        let lost: [(&[Known], Outcome); 3] = [
            (&[Nothing, Committed], Outcome::Committed),
            (&[Nothing, Nothing], Outcome::Forgotten),
            (&[Nothing, Absent], Outcome::Aborted),
        ];
        for (known, outcome) in lost {
            assert_eq!(decide(known, true, true), outcome, "{known:?}");
        }
    }
}
