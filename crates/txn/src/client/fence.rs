//! Ends transactions that have held locks or records on this core for too long: their coordinators hang, are cut off,
//! or are gone. Such a coordinator need not be a member, so its failure may not end the epoch.
//!
//! Before a lock is broken, its owner is fenced: all logs are told to take no more records of the transaction, and
//! answer whether they have one. If none has, the transaction never commits, and its locks are released. If one has,
//! the transaction may have committed: all logs get the record, then all copies, as in recovery. So if its coordinator
//! resumes, it finds the result that it would have produced itself.

use std::rc::{Rc, Weak};

use dunlin_net::Transport;

use super::Inner;
use super::links::Answer;
use super::rounds::{done, unreadable};
use crate::configuration::{Configuration, Role};
use crate::error::TxnError;
use crate::ids::{Place, TransactionId};
use crate::mutation::{Mutation, is_planted};
use crate::transaction::State;
use crate::wire::answer::Known;
use crate::wire::log::{Recorded, put_transaction};
use crate::wire::write::Write;
use crate::wire::{Header, Kind, WireError};

/// The traces of a transaction in all logs.
#[derive(Debug, Default)]
struct Traces {
    /// Its writes: number, and encoded bytes.
    record: Option<(u16, Vec<u8>)>,
    /// Logs without the record.
    without: Vec<Place>,
    /// Whether a log knows that all copies have the writes.
    has_ended: bool,
}

/// Looks for old locks and records of the participant beside a client, as long as the client lives.
pub(super) async fn watch_locks<T: Transport + 'static>(weak: Weak<Inner<T>>) {
    while let Some(sleep) = weak.upgrade().map(|inner| inner.endpoint.timers().sleep(inner.config.lock_age)) {
        sleep.await;
        let Some(inner) = weak.upgrade() else { return };
        if is_planted(Mutation::OldLocksKept) {
            continue;
        }
        for transaction in inner.links.overdue() {
            // A transaction that cannot be ended now is tried again the next time.
            let patience = inner.config.patience;
            if let Some(Err(error)) = inner.within(patience, inner.clone().settle(transaction)).await {
                tracing::debug!(%transaction, %error, "an old lock or record stays");
            }
        }
    }
}

impl<T: Transport + 'static> Inner<T> {
    /// Ends a transaction of another coordinator.
    async fn settle(self: Rc<Self>, transaction: TransactionId) -> Result<(), TxnError> {
        let configuration = self.configuration.borrow().clone();
        let places: Vec<Place> = configuration.places().collect();
        if !is_planted(Mutation::LockBrokenWithoutFence) {
            let traces = self.fence(&configuration, transaction).await?;
            if let Some((count, writes)) = traces.record {
                let recorded = Recorded { transaction, count, record: &writes };
                if !traces.has_ended {
                    self.tell(&configuration, &traces.without, Kind::Spread, 1, |out| recorded.encode(out)).await?;
                    self.commit_recorded(&configuration, &recorded).await?;
                }
                self.tell(&configuration, &places, Kind::End, 0, |out| put_transaction(out, transaction)).await?;
            }
        }
        self.links.release(transaction);
        self.stats.borrow_mut().fenced += 1;
        Ok(())
    }

    async fn fence(&self, configuration: &Rc<Configuration>, transaction: TransactionId) -> Result<Traces, TxnError> {
        let places: Vec<Place> = configuration.places().collect();
        let encode = |out: &mut Vec<u8>| put_transaction(out, transaction);
        let answers = self.tell(configuration, &places, Kind::Fence, 0, encode).await?;
        let mut traces = Traces::default();
        for (place, answer) in places.into_iter().zip(answers) {
            traces.take(place, answer.body()).map_err(|_| unreadable(place))?;
        }
        Ok(traces)
    }

    /// Sends a message to some participants; all of them must execute it.
    async fn tell(
        &self,
        configuration: &Rc<Configuration>,
        places: &[Place],
        kind: Kind,
        count: u16,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Answer>, TxnError> {
        let (cluster, epoch) = (configuration.cluster, configuration.epoch);
        let transaction = TransactionId { epoch, coordinator: self.coordinator, sequence: 0 };
        let mut message = Vec::new();
        Header { kind, count, cluster, transaction, incarnation: 0 }.encode(&mut message);
        encode(&mut message);
        let mut state = State::new(transaction, configuration.clone());
        let messages = state.to_each(places, kind, &message);
        let all = self.send_all(&state, &messages).await;
        messages.iter().zip(all).map(|(message, sent)| done(&mut state, message, sent)).collect()
    }

    /// Commits a transaction at all copies, once all logs have its record.
    async fn commit_recorded(
        &self,
        configuration: &Rc<Configuration>,
        recorded: &Recorded<'_>,
    ) -> Result<(), TxnError> {
        let writes = Write::take_all(recorded.count.into(), &mut &*recorded.record).unwrap_or_default();
        let mut state = State::recorded(recorded.transaction, configuration.clone(), &writes);
        for role in [Role::Backup, Role::Primary] {
            let messages = state.commit_round(role);
            for (message, sent) in messages.iter().zip(self.send_all(&state, &messages).await) {
                done(&mut state, message, sent)?;
            }
        }
        Ok(())
    }
}

impl Traces {
    fn take(&mut self, place: Place, mut answer: &[u8]) -> Result<(), WireError> {
        let known = Known::parse(answer)?;
        answer = &answer[1..];
        self.has_ended |= known == Known::Committed;
        if known != Known::Recorded {
            self.without.push(place);
            return Ok(());
        }
        let Recorded { count, record, .. } = Recorded::take(&mut answer)?;
        self.record.get_or_insert_with(|| (count, record.to_vec()));
        Ok(())
    }
}
