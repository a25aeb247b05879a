//! Running a transaction again.

use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::clock::nanos;
use dunlin_net::random::Random;

use super::{Client, Transaction};
use crate::error::TxnError;

/// When to run a transaction again after a conflict or a transient error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of runs, including the first. Default 20.
    pub attempts_max: u32,
    /// Upper bound of the random pause before the second run; it doubles for each further run. Default 10 us.
    pub pause: Duration,
    /// Maximum of that bound. Default 10 ms.
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { attempts_max: 20, pause: Duration::from_micros(10), pause_max: Duration::from_millis(10) }
    }
}

impl RetryPolicy {
    fn pause_before(&self, attempt: u32, random: &mut Random) -> Duration {
        let longest = self.pause.saturating_mul(1 << (attempt - 1).min(20)).min(self.pause_max);
        Duration::from_nanos(random.below(nanos(longest).max(1)))
    }
}

impl<T: Transport + 'static> Client<T> {
    /// Runs a transaction and commits it; runs it again from the beginning while [`TxnError::may_be_repeated`] says
    /// that it may succeed and the policy allows it. If `work` has aborted the transaction itself, nothing is
    /// committed, and the result of `work` is returned.
    ///
    /// # Errors
    /// The error of the last run.
    ///
    /// ```
    /// # use dunlin_net::Transport;
    /// use dunlin_txn::{Client, RetryPolicy, TxnError};
    ///
    /// async fn deposit<T: Transport + 'static>(client: &Client<T>, account: &[u8], amount: u64) -> Result<u64, TxnError> {
    ///     let accounts = client.table("accounts")?;
    ///     client.run(&RetryPolicy::default(), async |tx| {
    ///         let before = tx.get_for_update(accounts, account).await?;
    ///         let before = before.and_then(|value| value[..].try_into().ok()).map_or(0, u64::from_le_bytes);
    ///         tx.put(accounts, account, (before + amount).to_le_bytes().to_vec())?;
    ///         Ok(before + amount)
    ///     }).await
    /// }
    /// ```
    pub async fn run<R>(
        &self,
        policy: &RetryPolicy,
        mut work: impl AsyncFnMut(&mut Transaction<T>) -> Result<R, TxnError>,
    ) -> Result<R, TxnError> {
        let mut random = None;
        for attempt in 1.. {
            let mut transaction = self.begin();
            let id = transaction.id();
            let result = match work(&mut transaction).await {
                Ok(result) if transaction.is_open() => transaction.commit().await.map(|()| result),
                Ok(result) => return Ok(result),
                Err(error) => {
                    transaction.abort().await;
                    Err(error)
                }
            };
            let error = match result {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            if !error.may_be_repeated() || attempt >= policy.attempts_max {
                return Err(error);
            }
            let random =
                random.get_or_insert_with(|| Random::new(id.coordinator << 32 ^ id.sequence ^ self.0.config.seed));
            self.0.endpoint.timers().sleep(policy.pause_before(attempt, random)).await;
        }
        Err(TxnError::Ended)
    }
}
