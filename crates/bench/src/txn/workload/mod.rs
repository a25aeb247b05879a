//! The transactions of the experiments, for real nodes and simulated ones.

mod object_store;
mod smallbank;
mod tatp;
mod ycsb;

use std::collections::HashMap;

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_txn::{Client, Configuration, Place, RetryPolicy, Table, TableId, TxnError};
use serde::{Deserialize, Serialize};

pub(crate) use object_store::ObjectStore;
pub(crate) use smallbank::SmallBank;
pub(crate) use tatp::{KINDS, NEW_DESTINATION, NEW_DESTINATION_LATER, SUCCESSES, Tatp, UPDATE_LOCATION};
pub(crate) use ycsb::Ycsb;

/// Bytes of the keys of the papers.
pub(crate) const KEY_BYTES: usize = 8;

/// An item: its table, key and value.
pub(crate) type Item = (TableId, Vec<u8>, Vec<u8>);

/// The items of a table at the end, by key.
pub(crate) type Kept = HashMap<(TableId, Vec<u8>), Vec<u8>>;

/// What one transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    /// Which of the workload's transactions it was.
    pub kind: usize,
    /// Whether it found what it was to read or change; if not, it wrote nothing.
    pub is_successful: bool,
    /// What it added to the weight of all items.
    pub change: i64,
}

impl Done {
    fn read(kind: usize, is_successful: bool) -> Done {
        Done { kind, is_successful, change: 0 }
    }
}

/// A workload: its tables, its items, and its transactions.
pub(crate) trait Workload: Clone + Send + 'static {
    /// What a task keeps between its transactions.
    type Worker: 'static;

    /// Its tables, in the order of their numbers.
    fn tables(&self) -> Vec<Table>;

    /// The names of its transactions.
    fn kinds(&self) -> Vec<&'static str>;

    /// Number of parts in which items are loaded.
    fn parts(&self) -> u64;

    /// Adds the items of one part.
    fn load(&self, part: u64, to: &mut Vec<Item>);

    /// A task on a core, or on no core of a member.
    fn worker(&self, configuration: &Configuration, home: Option<Place>, seed: u64) -> Self::Worker;

    /// Runs one transaction; again after a conflict, under this policy.
    fn run<T: Transport + 'static>(
        &self,
        worker: &mut Self::Worker,
        client: &Client<T>,
        retry: &RetryPolicy,
    ) -> impl Future<Output = Result<Done, TxnError>>;

    /// The weight of an item. The sum of all is that of the items loaded, plus the change of each transaction.
    fn weight(&self, table: TableId, key: &[u8], value: &[u8]) -> i64;

    /// Whether the check at the end needs the items of a table.
    fn keeps(&self, _table: TableId) -> bool {
        false
    }

    /// Checks the items of these tables.
    fn check(&self, _kept: &Kept) -> Result<(), String> {
        Ok(())
    }
}

/// The workload of an experiment's processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Load {
    /// The object store.
    ObjectStore(ObjectStore),
    /// TATP.
    Tatp(Tatp),
    /// SmallBank.
    SmallBank(SmallBank),
    /// YCSB in transactions.
    Ycsb(Ycsb),
}

/// The number in the first eight bytes of a value.
fn number(value: &[u8]) -> i64 {
    value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// A key of eight bytes, unique for each number and without its order.
pub(crate) fn key_of(number: u64) -> [u8; KEY_BYTES] {
    crate::workload::item::key(number).first_chunk().copied().unwrap_or_default()
}

/// The error of a transaction that found an item missing that cannot be.
fn missing() -> TxnError {
    TxnError::Unreachable { place: Place { node: 0, core: 0 }, why: "an item that was loaded is missing".to_owned() }
}

/// Draws a transaction by its share, in percent.
fn draw_kind(random: &mut Random, shares: &[u64]) -> usize {
    let mut left = random.below(shares.iter().sum());
    for (kind, share) in shares.iter().enumerate() {
        if left < *share {
            return kind;
        }
        left -= share;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_shares() {
        let (mut random, mut counts) = (Random::new(1), [0u32; 3]);
        for _ in 0..100_000 {
            counts[draw_kind(&mut random, &[70, 25, 5])] += 1;
        }
        for (count, share) in counts.iter().zip([0.7, 0.25, 0.05]) {
            assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{counts:?}");
        }
    }
}
