//! The phases of a commit (thesis, figure 5.7; FaSST, section 5.1).

use std::cell::Cell;
use std::rc::Rc;

use dunlin_net::Transport;

use super::Inner;
use super::links::Sent;
use super::rounds::{Pauses, Persisted, passes};
use crate::configuration::{Configuration, Role};
use crate::error::TxnError;
use crate::ids::Place;
use crate::mutation::{Mutation, is_planted};
use crate::transaction::{Outgoing, State, Unlocked};
use crate::wire::answer::Refusal;

impl<T: Transport + 'static> Inner<T> {
    /// Commits a transaction, or aborts it. When it returns, no lock is held, unless a participant is unreachable.
    pub(super) async fn commit(self: Rc<Self>, mut state: Box<State>) -> Result<(), TxnError> {
        match self.prepare(&mut state).await {
            Ok(()) if state.writes() => self.decide(state).await,
            Ok(()) => {
                self.abort(state).await;
                Ok(())
            }
            Err(error) => {
                self.abort(state).await;
                Err(error)
            }
        }
    }

    /// Locks the write set as far as it is not locked yet, and validates the read set.
    async fn prepare(&self, state: &mut State) -> Result<(), TxnError> {
        let messages = state.lock_round();
        self.ask(state, messages).await?;
        if let Some(key) = state.existing() {
            return Err(TxnError::Exists { key: key.into() });
        }
        let messages = state.validate_round();
        if is_planted(Mutation::ValidationSkipped) {
            return Ok(());
        }
        self.ask(state, messages).await
    }

    /// Logs, which decides, and commits. The caller waits no longer than its patience; the work goes on until the epoch
    /// ends.
    async fn decide(self: Rc<Self>, state: Box<State>) -> Result<(), TxnError> {
        if is_planted(Mutation::UnlockedBeforeLog) {
            self.persist(&state, state.abort_round(Unlocked::All)).await;
        }
        if let Err(error) = self.prepare_logs(&state).await {
            self.abort(state).await;
            return Err(error);
        }
        let (in_doubt, is_decided) = (TxnError::InDoubt { transaction: state.id }, Rc::<Cell<bool>>::default());
        let work = self.clone().log_and_commit(state, is_decided.clone());
        match self.within(self.config.patience, work).await {
            Some(result) => result,
            None if is_decided.get() => Ok(()),
            None => Err(in_doubt),
        }
    }

    async fn log_and_commit(self: Rc<Self>, state: Box<State>, is_decided: Rc<Cell<bool>>) -> Result<(), TxnError> {
        if let Err(error) = self.log(&state).await {
            if !error.may_have_committed() {
                self.abort(state).await;
            }
            return Err(error);
        }
        // From here on the transaction is committed, whatever happens: f + 1 logs keep the record until all copies have
        // it.
        is_decided.set(true);
        let (first, second) = match is_planted(Mutation::PrimaryBeforeBackup) {
            false => (Role::Backup, Role::Primary),
            true => (Role::Primary, Role::Backup),
        };
        if self.persist(&state, state.commit_round(first)).await != Persisted::All {
            return Ok(());
        }
        let mut last = state.commit_round(second);
        last.extend(state.abort_round(Unlocked::Unwritten));
        if self.persist(&state, last).await == Persisted::All {
            self.quota.borrow_mut().end(state.id.epoch, state.id.sequence);
            self.flush_later();
        }
        Ok(())
    }

    /// Appends the commit record to all f + 1 logs.
    async fn log(&self, state: &State) -> Result<(), TxnError> {
        let told = self.quota.borrow_mut().tell(state.id.epoch);
        let logged = self.log_and_tell(state, &told.sequences()).await;
        let mut quota = self.quota.borrow_mut();
        match &logged {
            Ok(()) => quota.was_told(&told),
            Err(error) => {
                quota.was_not_told(told);
                if !error.may_have_committed() {
                    quota.withdraw(state.id.epoch, state.id.sequence);
                }
            }
        }
        logged
    }

    /// The log replicas of this coordinator.
    fn log_replicas(&self, configuration: &Configuration) -> Rc<[Place]> {
        let mut logs = self.logs.borrow_mut();
        if logs.0 != configuration.epoch {
            *logs = (configuration.epoch, configuration.log_replicas(self.coordinator, self.home).into());
        }
        logs.1.clone()
    }

    async fn log_and_tell(&self, state: &State, ended: &[u64]) -> Result<(), TxnError> {
        let replicas = self.log_replicas(&state.configuration);
        let replicas = if is_planted(Mutation::LoggedOnce) { &replicas[..1] } else { &replicas[..] };
        let mut messages = state.log_round(replicas, ended, self.lowest_open());
        let mut pauses = Pauses::new(self.config.pause);
        let in_doubt = TxnError::InDoubt { transaction: state.id };
        for round in 0.. {
            let all = self.send_all(state, &messages).await;
            if let Some(error) = nothing_logged(&messages, &all).filter(|_| round == 0) {
                return Err(error);
            }
            let is_fenced = |sent: &Sent| matches!(sent, Sent::Refused(Refusal::Fenced));
            if all.len() == replicas.len() && all.iter().all(is_fenced) {
                // No log has the record, and none will take it, even if an earlier message arrives later.
                return Err(TxnError::Refused { place: messages[0].place, refusal: Refusal::Fenced });
            }
            let mut left = Vec::new();
            for (message, sent) in messages.into_iter().zip(all) {
                match sent {
                    Sent::Done(_) => {}
                    Sent::NotRun(_) | Sent::Lost(_) => left.push(message),
                    Sent::Refused(refusal) if passes(refusal, state.id) => left.push(message),
                    Sent::Refused(_) => return Err(in_doubt),
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if self.configuration.borrow().epoch != state.id.epoch {
                return Err(in_doubt);
            }
            messages = left;
            self.endpoint.timers().sleep(pauses.next()).await;
        }
        Err(in_doubt)
    }

    /// Does everything that can fail before a record is sent.
    async fn prepare_logs(self: &Rc<Self>, state: &State) -> Result<(), TxnError> {
        self.open_logs(state).await?;
        self.reserve(state).await
    }

    /// Registers this coordinator at all its log replicas before any of them gets a record: a log replica that refused
    /// later would leave a transaction in doubt.
    async fn open_logs(&self, state: &State) -> Result<(), TxnError> {
        let epoch = state.id.epoch;
        if self.logs_in.get() >= epoch {
            return Ok(());
        }
        let messages = self.empty_record(state, &[]);
        let all = self.send_all(state, &messages).await;
        if let Some(error) = messages.iter().zip(&all).find_map(|(message, sent)| not_done(message, sent)) {
            return Err(error);
        }
        self.logs_in.set(self.logs_in.get().max(epoch));
        Ok(())
    }

    /// Counts the record against the quota, and makes room for it if possible.
    async fn reserve(self: &Rc<Self>, state: &State) -> Result<(), TxnError> {
        let (epoch, sequence, bytes) = (state.id.epoch, state.id.sequence, state.writes_bytes());
        let try_once = || self.quota.borrow_mut().reserve(epoch, sequence, bytes, self.config.log_bytes_max);
        if try_once().is_ok() {
            return Ok(());
        }
        self.within(self.config.patience, self.clone().flush()).await;
        try_once().map_err(|_| TxnError::Busy { what: "bytes of commit records" })
    }
}

/// Why nothing was logged anywhere; `None` if something was, or may have been, logged.
fn nothing_logged(messages: &[Outgoing], all: &[Sent]) -> Option<TxnError> {
    let is_logged = |sent: &Sent| matches!(sent, Sent::Done(_) | Sent::Lost(_));
    if all.iter().any(is_logged) {
        return None;
    }
    messages.iter().zip(all).find_map(|(message, sent)| not_done(message, sent))
}

/// Why a message was not executed.
fn not_done(message: &Outgoing, sent: &Sent) -> Option<TxnError> {
    let place = message.place;
    match sent {
        Sent::Done(_) => None,
        Sent::Refused(refusal) => Some(TxnError::Refused { place, refusal: *refusal }),
        Sent::NotRun(why) | Sent::Lost(why) => Some(TxnError::Unreachable { place, why: why.clone() }),
    }
}
