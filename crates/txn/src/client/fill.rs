//! Fills new copies on the core of a client, from their primaries.

use std::time::Duration;

use dunlin_net::Transport;

use super::rounds::unreadable;
use super::{Client, Inner};
use crate::error::TxnError;
use crate::ids::{Epoch, PartitionId, TransactionId};
use crate::wire::answer::Refusal;
use crate::wire::fill::{BEGINNING, FillRequest};
use crate::wire::{Header, Kind};

/// Pause before a refused page is asked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a page brought.
struct Fetched {
    bytes: usize,
    next: Option<u64>,
}

impl<T: Transport + 'static> Client<T> {
    /// Fills the copies of the participant beside this client that are not complete, one after the other, as long as
    /// the epoch lasts. After each page it pauses, so that pages bring no more than `bytes_per_second`.
    pub async fn fill_copies(&self, bytes_per_second: u64) {
        let inner = &self.0;
        let epoch = self.epoch();
        for partition in inner.links.filling() {
            // The primary goes on from there, if it is the same as in the epoch before.
            let mut from = inner.links.fetched(partition);
            while self.epoch() == epoch {
                let pause = match inner.fetch_page(partition, epoch, from).await {
                    Ok(Fetched { next: None, .. }) => break,
                    Ok(Fetched { next: Some(next), bytes }) => {
                        from = next;
                        Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64)
                    }
                    Err(error) => {
                        // The primary has noted nothing, or forgotten it.
                        if matches!(error, TxnError::Refused { refusal: Refusal::NotHere(_), .. }) {
                            from = BEGINNING;
                        }
                        tracing::debug!(partition = partition.0, %error, "a copy is not filled yet");
                        PAUSE
                    }
                };
                inner.endpoint.timers().sleep(pause).await;
            }
        }
    }
}

impl<T: Transport + 'static> Inner<T> {
    async fn fetch_page(&self, partition: PartitionId, epoch: Epoch, from: u64) -> Result<Fetched, TxnError> {
        let configuration = self.configuration.borrow().clone();
        let done = Fetched { bytes: 0, next: None };
        let (Some(primary), Some(home)) = (configuration.copies(partition).first().copied(), self.home) else {
            return Ok(done);
        };
        if configuration.epoch != epoch || !self.links.await_page(partition) {
            return Ok(done);
        }
        let transaction = TransactionId { epoch, coordinator: self.coordinator, sequence: 0 };
        let mut message = Vec::new();
        Header { kind: Kind::Fill, count: 1, cluster: configuration.cluster, transaction, incarnation: 0 }
            .encode(&mut message);
        FillRequest { partition, node: home.node, from }.encode(&mut message);
        let answer = self.tell_one(&configuration, primary, Kind::Fill, &message).await?;
        let taken = self.links.take_page(partition, epoch, from, answer.body());
        let next = taken.map_err(|_| unreadable(primary))?;
        Ok(Fetched { bytes: answer.body().len(), next })
    }
}
