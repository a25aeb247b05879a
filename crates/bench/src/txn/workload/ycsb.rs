//! YCSB in transactions: four items of a skewed popularity are read, and some of them updated, at once.

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_txn::{Client, Configuration, Mode, Place, RetryPolicy, Table, TableId, TxnError};
use serde::{Deserialize, Serialize};

use super::{Done, Item, KEY_BYTES, Workload, key_of, missing, number};
use crate::workload::{Numbers, Popularity};

const ITEMS: TableId = TableId(0);
/// Items of a transaction.
const KEYS: usize = 4;
/// Bytes of a value: one field of YCSB's ten.
const VALUE_BYTES: usize = 100;
const PART: u64 = 256;
/// Popular numbers that a task draws in advance.
const AHEAD: usize = 4096;

/// One of the workloads A, B and C.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ycsb {
    /// Share of updates, in percent.
    pub updates: u64,
    /// Items.
    pub items: u64,
}

/// The state of one task.
pub struct Worker {
    random: Random,
    numbers: Numbers,
}

impl Workload for Ycsb {
    type Worker = Worker;

    fn tables(&self) -> Vec<Table> {
        vec!["items".into()]
    }

    fn kinds(&self) -> Vec<&'static str> {
        vec!["transaction"]
    }

    fn parts(&self) -> u64 {
        self.items.div_ceil(PART)
    }

    fn load(&self, part: u64, to: &mut Vec<Item>) {
        for item in part * PART..((part + 1) * PART).min(self.items) {
            to.push((ITEMS, key_of(item).to_vec(), vec![0; VALUE_BYTES]));
        }
    }

    fn worker(&self, _: &Configuration, _: Option<Place>, seed: u64) -> Worker {
        let mut numbers = Numbers::new(Popularity::Zipf, self.items, seed);
        numbers.draw_ahead(AHEAD);
        Worker { random: Random::new(!seed), numbers }
    }

    async fn run<T: Transport + 'static>(
        &self,
        worker: &mut Worker,
        client: &Client<T>,
        retry: &RetryPolicy,
    ) -> Result<Done, TxnError> {
        let mut drawn = [(u64::MAX, Mode::Read); KEYS];
        for at in 0..KEYS {
            let mut item = worker.numbers.draw();
            while drawn[..at].iter().any(|(other, _)| *other == item) {
                item = worker.numbers.draw();
            }
            let is_update = worker.random.below(100) < self.updates;
            drawn[at] = (item, if is_update { Mode::Update } else { Mode::Read });
        }
        let keys: [[u8; KEY_BYTES]; KEYS] = drawn.map(|(item, _)| key_of(item));
        let modes = drawn.map(|(_, mode)| mode);
        client.run(retry, async |tx| transact(tx, &keys, &modes).await).await?;
        let updates = modes.iter().filter(|mode| **mode == Mode::Update).count();
        Ok(Done { kind: 0, is_successful: true, change: updates as i64 })
    }

    fn weight(&self, _: TableId, _: &[u8], value: &[u8]) -> i64 {
        number(value)
    }
}

async fn transact<T: Transport + 'static>(
    tx: &mut dunlin_txn::Transaction<T>,
    keys: &[[u8; KEY_BYTES]; KEYS],
    modes: &[Mode; KEYS],
) -> Result<(), TxnError> {
    let asked: [_; KEYS] = std::array::from_fn(|at| (ITEMS, &keys[at][..], modes[at]));
    let found = tx.execute_each(&asked).await?;
    for ((value, key), mode) in found.into_iter().zip(keys).zip(modes) {
        let value = value.ok_or_else(missing)?;
        if *mode == Mode::Update {
            let mut next = value.to_vec();
            next[..8].copy_from_slice(&(number(&value) + 1).to_le_bytes());
            tx.put(ITEMS, key, next)?;
        }
    }
    Ok(())
}
