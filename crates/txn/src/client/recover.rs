//! Recovery at the beginning of an epoch: the records of all surviving logs are applied everywhere exactly once.
//!
//! A transaction commits if any log has its record; otherwise it is aborted. Every member stores all records before the
//! first is applied, so that the next recovery decides the same, whichever member fails meanwhile. Partitions that lost
//! no copy stay available; only keys that are locked by transactions of earlier epochs wait.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use dunlin_net::Transport;
use futures::future::join_all;

use super::links::Answer;
use super::rounds::done;
use super::{Client, Inner};
use crate::configuration::Configuration;
use crate::error::TxnError;
use crate::ids::{Place, TransactionId};
use crate::limits::RecoverySlice;
use crate::mutation::{Mutation, is_planted};
use crate::transaction::State;
use crate::wire::log::{Recorded, put_transaction, take_transaction};
use crate::wire::{Header, Kind, WireError, end};

/// The result of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Transactions of earlier epochs that had a record. All of them are committed now.
    pub transactions: usize,
}

/// A record found in a log.
struct Found {
    count: u16,
    writes: Bytes,
}

type Records = BTreeMap<TransactionId, Found>;

/// The transaction before all others.
const BEGINNING: TransactionId = TransactionId { epoch: 0, coordinator: 0, sequence: 0 };

impl<T: Transport + 'static> Client<T> {
    /// Recovers the transactions of earlier epochs. Call it when all members have entered the epoch of this client
    /// ([`crate::Participant::reconfigure`]) and the leases of failed members have run out. One client does it for the
    /// cluster; it may be repeated, also by other clients. It works in slices
    /// ([`RecoverySlice`]), between which event loops serve other requests. It keeps the
    /// records of all logs in memory until it has spread them.
    ///
    /// # Errors
    /// If a member is unreachable or has not entered the epoch: repeat it, in the next epoch if the member failed.
    pub async fn recover(&self) -> Result<Recovered, TxnError> {
        let inner = &self.0;
        let configuration = inner.configuration.borrow().clone();
        let mut records = Records::new();
        for place in configuration.places() {
            inner.collect(&configuration, place, &mut records).await?;
        }
        let transactions = records.len();
        while let Some(message) = take_spread_message(&configuration, &mut records, inner.config.recovery_slice) {
            inner.tell_all(&configuration, Kind::Spread, message).await?;
        }
        for kind in [Kind::Replay, Kind::Open] {
            let all = configuration.places().map(|place| inner.repeat(&configuration, place, kind));
            join_all(all).await.into_iter().collect::<Result<(), TxnError>>()?;
        }
        Ok(Recovered { transactions })
    }
}

impl<T: Transport + 'static> Inner<T> {
    /// Fetches all records of one log, a slice at a time.
    async fn collect(
        &self,
        configuration: &Rc<Configuration>,
        place: Place,
        records: &mut Records,
    ) -> Result<(), TxnError> {
        let mut after = BEGINNING;
        loop {
            let mut message = request(configuration, Kind::Collect);
            put_transaction(&mut message, after);
            let answer = self.tell_one(configuration, place, Kind::Collect, &message).await?;
            let Some(last) = take_records(answer.body(), records).map_err(|error| unreadable(place, error))? else {
                return Ok(());
            };
            after = last;
        }
    }

    /// Sends `Replay` or `Open` to one member until no slice is left.
    async fn repeat(&self, configuration: &Rc<Configuration>, place: Place, kind: Kind) -> Result<(), TxnError> {
        let mut after = BEGINNING;
        loop {
            let mut message = request(configuration, kind);
            if kind == Kind::Replay {
                put_transaction(&mut message, after);
            }
            let answer = self.tell_one(configuration, place, kind, &message).await?;
            let left = take_left(kind, after, answer.body()).map_err(|error| unreadable(place, error))?;
            match left {
                Some(last) if !(kind == Kind::Replay && is_planted(Mutation::ReplayCutShort)) => after = last,
                _ => return Ok(()),
            }
        }
    }

    /// Sends a message to one member.
    pub(super) async fn tell_one(
        &self,
        configuration: &Rc<Configuration>,
        place: Place,
        kind: Kind,
        message: &[u8],
    ) -> Result<Answer, TxnError> {
        let mut state = State::new(named(configuration), configuration.clone());
        let messages = state.to_each(&[place], kind, message);
        let sent = self.send_all(&state, &messages).await.remove(0);
        next_turn().await;
        done(&mut state, &messages[0], sent)
    }

    /// Sends a message to all members.
    async fn tell_all(&self, configuration: &Rc<Configuration>, kind: Kind, message: Vec<u8>) -> Result<(), TxnError> {
        let places: Vec<Place> = configuration.places().collect();
        let mut state = State::new(named(configuration), configuration.clone());
        let messages = state.to_each(&places, kind, &message);
        let all = self.send_all(&state, &messages).await;
        next_turn().await;
        for (message, sent) in messages.iter().zip(all) {
            done(&mut state, message, sent)?;
        }
        Ok(())
    }
}

/// Lets the event loop run once. The participant beside the client answers without a message, so nothing else would end
/// the turn between two slices of its log.
async fn next_turn() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn unreadable(place: Place, error: WireError) -> TxnError {
    TxnError::Unreachable { place, why: format!("its answer cannot be read: {error}") }
}

/// The transaction id in headers of recovery, which only carries the epoch.
fn named(configuration: &Configuration) -> TransactionId {
    TransactionId { epoch: configuration.epoch, coordinator: 0, sequence: 0 }
}

fn request(configuration: &Configuration, kind: Kind) -> Vec<u8> {
    let mut message = Vec::new();
    let (cluster, transaction) = (configuration.cluster, named(configuration));
    Header { kind, count: 0, cluster, transaction, incarnation: 0 }.encode(&mut message);
    message
}

/// Takes the records of an answer. Returns the last of them, or `None` if there are none.
fn take_records(mut from: &[u8], records: &mut Records) -> Result<Option<TransactionId>, WireError> {
    let count = from.try_get_u32_le()?;
    let mut last = None;
    for _ in 0..count {
        let Recorded { transaction, count, record } = Recorded::take(&mut from)?;
        records.entry(transaction).or_insert_with(|| Found { count, writes: Bytes::copy_from_slice(record) });
        last = Some(transaction);
    }
    Ok(last)
}

/// Reads the answer to a `Replay` or `Open`: where the next slice begins, if one is left.
fn take_left(kind: Kind, after: TransactionId, mut from: &[u8]) -> Result<Option<TransactionId>, WireError> {
    let left = match kind {
        // Not an earlier one, whatever the answer says: a recovery ends.
        Kind::Replay => Some(take_transaction(&mut from)?).filter(|last| *last > after),
        _ => (from.try_get_u8()? != 0).then_some(after),
    };
    end(from)?;
    Ok(left)
}

/// Takes a slice of the records, as a message that brings them to a member. `None` if there are none.
fn take_spread_message(configuration: &Configuration, records: &mut Records, slice: RecoverySlice) -> Option<Vec<u8>> {
    let mut message = request(configuration, Kind::Spread);
    let mut fill = slice.begin();
    while let Some(first) = records.first_entry().filter(|it| fill.add(Recorded::BYTES + it.get().writes.len())) {
        let (transaction, Found { count, writes }) = first.remove_entry();
        Recorded { transaction, count, record: &writes }.encode(&mut message);
    }
    Header::set_count(&mut message, fill.records() as u16);
    (fill.records() > 0).then_some(message)
}
