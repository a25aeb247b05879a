//! The interface of a transaction.

use std::rc::Rc;

use bytes::Bytes;
use dunlin_index::Range;
use dunlin_net::Transport;

use super::finish::{Finish, Finished};
use super::{Client, Inner};
use crate::client::Outcome;
use crate::error::TxnError;
use crate::ids::{TableId, TransactionId};
use crate::mutation::{Mutation, is_planted};
use crate::transaction::{Mode, Outgoing, Planned, State};

/// A transaction. If it commits, its reads are of one moment. Until then they may be of several, so base no decision
/// outside the transaction on them.
///
/// After an error the transaction has ended. It holds no lock, except at an unreachable participant, where it is
/// unlocked as soon as possible. Dropping it aborts it. If the future of one of its methods is dropped, the work that
/// it began is completed, and the transaction is aborted unless it was committing.
pub struct Transaction<T: Transport + 'static> {
    inner: Rc<Inner<T>>,
    id: TransactionId,
    state: Option<Box<State>>,
}

impl<T: Transport + 'static> Transaction<T> {
    pub(super) fn new(inner: &Rc<Inner<T>>, state: State) -> Transaction<T> {
        Transaction { inner: inner.clone(), id: state.id, state: Some(Box::new(state)) }
    }

    /// Its id, for [`Client::outcome`](crate::Client::outcome).
    pub fn id(&self) -> TransactionId {
        self.id
    }

    /// Reads a key; `None` if it is absent. The transaction sees its own writes.
    ///
    /// # Errors
    /// [`TxnError`]; the transaction has ended then.
    pub async fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Bytes>, TxnError> {
        self.get_one(table, key, Mode::Read).await
    }

    /// Reads and locks a key in one message: for keys that the transaction will write.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_for_update(&mut self, table: TableId, key: &[u8]) -> Result<Option<Bytes>, TxnError> {
        self.get_one(table, key, Mode::Update).await
    }

    async fn get_one(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<Option<Bytes>, TxnError> {
        let state = self.execute_keys(&[(table, key, mode)]).await?;
        let value = state.known(table, key, mode).flatten();
        self.state = Some(state);
        Ok(value)
    }

    /// Reads several keys at once, with one message to each core that has some of them (the paper's `Execute`). May be
    /// called repeatedly. The values are in the order of the keys.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn execute(&mut self, keys: &[(TableId, &[u8])], mode: Mode) -> Result<Vec<Option<Bytes>>, TxnError> {
        let keys: Vec<(TableId, &[u8], Mode)> = keys.iter().map(|(table, key)| (*table, *key, mode)).collect();
        self.execute_each(&keys).await
    }

    /// [`Transaction::execute`] with a mode for each key: reads some keys, and reads and locks others, in the same
    /// messages. A key that is given twice is locked if one of the two says so.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn execute_each(&mut self, keys: &[(TableId, &[u8], Mode)]) -> Result<Vec<Option<Bytes>>, TxnError> {
        let state = self.execute_keys(keys).await?;
        let values = keys.iter().map(|(table, key, mode)| state.known(*table, key, *mode).flatten()).collect();
        self.state = Some(state);
        Ok(values)
    }

    async fn execute_keys(&mut self, keys: &[(TableId, &[u8], Mode)]) -> Result<Box<State>, TxnError> {
        let mut state = self.state.take().ok_or(TxnError::Ended)?;
        if !state.admit(self.inner.config.transactions_max) {
            return self.fail(state, TxnError::Busy { what: "transactions" }).await;
        }
        let messages = match state.execute_round(keys, self.inner.config.room_bytes) {
            Ok(messages) => messages,
            Err(error) => return self.fail(state, error).await,
        };
        if messages.is_empty() {
            return Ok(state);
        }
        if keys.iter().any(|(_, _, mode)| *mode == Mode::Update) {
            return self.round(state, messages).await;
        }
        let (state, result) = Reading::new(&self.inner, state).ask(messages).await;
        match result {
            Ok(()) => Ok(state),
            Err(error) => self.fail(state, error).await,
        }
    }

    /// Reads up to `limit` items of a range of an ordered table, in the order of their keys. The transaction sees its
    /// own writes. If no other transaction inserts, changes or deletes a key of the range until the commit, the commit
    /// validates it. If the limit ends the read, the range ends with the last item.
    ///
    /// The read costs a message for each page of 1,024 items, and at least one for each part of the table that the
    /// range meets. The items share the memory of their page: copy those that you keep.
    ///
    /// # Errors
    /// As [`Transaction::get`]; [`TxnError::RangeConflict`] if another transaction has locked a key in the range, also
    /// one that is about to be inserted; [`TxnError::TooLarge`] if the range reads of the transaction exceed 1,024
    /// pages, 65,536 items or 16 MiB.
    ///
    /// ```
    /// # use dunlin_net::Transport;
    /// use dunlin_txn::{Client, Range, RetryPolicy, TxnError};
    ///
    /// /// Takes the first job, unless there is none.
    /// async fn take<T: Transport + 'static>(client: &Client<T>) -> Result<Option<Vec<u8>>, TxnError> {
    ///     let jobs = client.table("jobs")?;
    ///     client.run(&RetryPolicy::default(), async |tx| {
    ///         let first = tx.scan(jobs, Range::ALL, 1).await?;
    ///         let Some((key, job)) = first.first() else { return Ok(None) };
    ///         tx.delete(jobs, key)?;
    ///         Ok(Some(job.to_vec()))
    ///     }).await
    /// }
    /// ```
    pub async fn scan(
        &mut self,
        table: TableId,
        range: Range<'_>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, TxnError> {
        let mut state = self.state.take().ok_or(TxnError::Ended)?;
        if !state.admit(self.inner.config.transactions_max) {
            return self.fail(state, TxnError::Busy { what: "transactions" }).await;
        }
        if let Err(error) = state.begin_scan(table, range, limit) {
            return self.fail(state, error).await;
        }
        loop {
            let message = match state.scan_round() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return self.fail(state, error).await,
            };
            state = self.round(state, vec![message]).await?;
        }
        let found = state.end_scan();
        self.state = Some(state);
        Ok(found)
    }

    /// Sends the messages of the execution phase, and ends the transaction if that fails.
    async fn round(&mut self, mut state: Box<State>, messages: Vec<Outgoing>) -> Result<Box<State>, TxnError> {
        let inner = self.inner.clone();
        let round = async move {
            let result = inner.ask(&mut state, messages).await;
            Finished { state: Some(state), result }
        };
        let Finished { state, result } = Finish::new(&self.inner, round).await;
        let state = state.ok_or(TxnError::Ended)?;
        match result {
            Ok(()) => Ok(state),
            Err(error) => self.fail(state, error).await,
        }
    }

    /// Ends the transaction with an error.
    async fn fail<R>(&mut self, state: Box<State>, error: TxnError) -> Result<R, TxnError> {
        let inner = self.inner.clone();
        let round = async move {
            inner.abort(state).await;
            Finished { state: None, result: error }
        };
        let result = Err(Finish::new(&self.inner, round).await.result);
        self.inner.ended(&result);
        result
    }

    fn plan(&mut self, plan: impl FnOnce(&mut State) -> Result<(), TxnError>) -> Result<(), TxnError> {
        plan(self.state.as_deref_mut().ok_or(TxnError::Ended)?)
    }

    /// Writes a key when the transaction commits, whether or not it exists.
    ///
    /// # Errors
    /// If the transaction has ended, or a limit is exceeded. In the second case the transaction goes on without the
    /// write.
    pub fn put(&mut self, table: TableId, key: &[u8], value: impl Into<Bytes>) -> Result<(), TxnError> {
        self.plan(|state| state.plan(table, key, Planned::Put(value.into())))
    }

    /// Writes a key when the transaction commits; if the key exists, the commit fails with [`TxnError::Exists`].
    ///
    /// # Errors
    /// As [`Transaction::put`]; [`TxnError::Exists`] if the transaction has already read an existing value.
    pub fn insert(&mut self, table: TableId, key: &[u8], value: impl Into<Bytes>) -> Result<(), TxnError> {
        self.plan(|state| state.plan_insert(table, key, value.into()))
    }

    /// Deletes a key when the transaction commits, if it exists.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), TxnError> {
        self.plan(|state| state.plan(table, key, Planned::Delete))
    }

    /// Commits. When it returns `Ok`, all other transactions see the writes, and they survive the failure of any f
    /// nodes.
    ///
    /// # Errors
    /// [`TxnError::InDoubt`] if it may have committed; after all other errors it has not.
    pub async fn commit(mut self) -> Result<(), TxnError> {
        self.commit_open().await
    }

    /// The same for a transaction that its user may have ended.
    pub(super) async fn commit_open(&mut self) -> Result<(), TxnError> {
        let mut state = self.state.take().ok_or(TxnError::Ended)?;
        if !state.admit(self.inner.config.transactions_max) {
            return self.fail(state, TxnError::Busy { what: "transactions" }).await;
        }
        if !state.writes() && !state.holds_locks() {
            let (_, result) = Reading::new(&self.inner, state).validate().await;
            self.inner.ended(&result);
            return result;
        }
        let inner = self.inner.clone();
        let round = async move {
            let result = inner.clone().commit(state).await;
            inner.ended(&result);
            Finished { state: None, result }
        };
        Finish::new(&self.inner, round).await.result
    }

    /// Aborts the transaction: none of its writes is applied.
    pub async fn abort(&mut self) {
        if let Some(state) = self.state.take() {
            let inner = self.inner.clone();
            let round = async move {
                inner.abort(state).await;
                Finished { state: None, result: () }
            };
            Finish::new(&self.inner, round).await;
        }
    }

    /// Whether the transaction has not ended yet.
    pub fn is_open(&self) -> bool {
        self.state.is_some()
    }
}

/// A round that locks nothing. If its future is dropped, there is nothing to complete, and earlier locks are released.
struct Reading<'t, T: Transport + 'static> {
    inner: &'t Rc<Inner<T>>,
    state: Option<Box<State>>,
}

impl<'t, T: Transport + 'static> Reading<'t, T> {
    fn new(inner: &'t Rc<Inner<T>>, state: Box<State>) -> Reading<'t, T> {
        Reading { inner, state: Some(state) }
    }

    async fn ask(mut self, messages: Vec<Outgoing>) -> (Box<State>, Result<(), TxnError>) {
        let state = self.state.as_mut().expect("a reading has its state until it ends");
        let result = self.inner.ask(state, messages).await;
        (self.state.take().expect("a reading has its state until it ends"), result)
    }

    /// Validates a transaction that has only read.
    async fn validate(mut self) -> (Box<State>, Result<(), TxnError>) {
        let state = self.state.as_mut().expect("a reading has its state until it ends");
        let messages = if is_planted(Mutation::ValidationSkipped) { Vec::new() } else { state.validate_round() };
        self.ask(messages).await
    }
}

impl<T: Transport + 'static> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        let Some(state) = self.state.take().filter(|state| state.holds_locks()) else { return };
        let inner = self.inner.clone();
        self.inner.endpoint.spawn(async move { inner.abort(state).await });
    }
}

impl<T: Transport + 'static> Drop for Transaction<T> {
    fn drop(&mut self) {
        let Some(state) = self.state.take().filter(|state| state.holds_locks()) else { return };
        let inner = self.inner.clone();
        self.inner.endpoint.spawn(async move { inner.abort(state).await });
    }
}

impl<T: Transport + 'static> Client<T> {
    /// Asks all logs for the outcome of a transaction. While its epoch lasts, an open one is [`Outcome::InDoubt`].
    ///
    /// # Errors
    /// If a member is unreachable, or is in another epoch: ask again.
    pub async fn outcome(&self, transaction: TransactionId) -> Result<Outcome, TxnError> {
        self.0.outcome(transaction).await
    }
}
