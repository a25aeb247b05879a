//! FaSST's object store, O(r, w) (section 6.1): transactions that read `r` keys and update `w` of them. All keys of a
//! transaction have their primaries on different cores, and none on the core of the client: no request is local, and no
//! two share a message.

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_txn::{Client, Configuration, Mode, Place, RetryPolicy, Table, TableId, TxnError};
use serde::{Deserialize, Serialize};

use super::{Done, Item, KEY_BYTES, Workload, key_of, missing, number};

const OBJECTS: TableId = TableId(0);
/// Bytes of a value, as in the paper.
const VALUE_BYTES: usize = 40;
/// Objects of a part.
const PART: u64 = 256;
/// Most keys of a transaction.
const KEYS_MAX: usize = 4;

/// The object store.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ObjectStore {
    /// Keys that a transaction reads.
    pub reads: usize,
    /// Keys of these that it updates.
    pub writes: usize,
    /// Objects.
    pub objects: u64,
}

/// The state of one task.
pub struct Worker {
    random: Random,
    configuration: Configuration,
    home: Option<Place>,
}

impl Worker {
    /// Draws keys on different cores, none of them this one.
    fn draw(&mut self, objects: u64, keys: &mut [[u8; KEY_BYTES]]) {
        let mut places = [None; KEYS_MAX];
        for (at, key) in keys.iter_mut().enumerate() {
            loop {
                *key = key_of(self.random.below(objects));
                let place = self.configuration.copies(self.configuration.partition_of(OBJECTS, key))[0];
                if Some(place) != self.home && !places[..at].contains(&Some(place)) {
                    places[at] = Some(place);
                    break;
                }
            }
        }
    }
}

impl Workload for ObjectStore {
    type Worker = Worker;

    fn tables(&self) -> Vec<Table> {
        vec!["objects".into()]
    }

    fn kinds(&self) -> Vec<&'static str> {
        vec!["transaction"]
    }

    fn parts(&self) -> u64 {
        self.objects.div_ceil(PART)
    }

    fn load(&self, part: u64, to: &mut Vec<Item>) {
        for object in part * PART..((part + 1) * PART).min(self.objects) {
            to.push((OBJECTS, key_of(object).to_vec(), vec![0; VALUE_BYTES]));
        }
    }

    fn worker(&self, configuration: &Configuration, home: Option<Place>, seed: u64) -> Worker {
        Worker { random: Random::new(seed), configuration: configuration.clone(), home }
    }

    async fn run<T: Transport + 'static>(
        &self,
        worker: &mut Worker,
        client: &Client<T>,
        retry: &RetryPolicy,
    ) -> Result<Done, TxnError> {
        let mut keys = [[0; KEY_BYTES]; KEYS_MAX];
        let keys = &mut keys[..self.reads];
        worker.draw(self.objects, keys);
        client.run(retry, async |tx| self.transact(tx, keys).await).await?;
        Ok(Done { kind: 0, is_successful: true, change: self.writes as i64 })
    }

    /// How often it was updated.
    fn weight(&self, _: TableId, _: &[u8], value: &[u8]) -> i64 {
        number(value)
    }
}

impl ObjectStore {
    async fn transact<T: Transport + 'static>(
        &self,
        tx: &mut dunlin_txn::Transaction<T>,
        keys: &[[u8; KEY_BYTES]],
    ) -> Result<(), TxnError> {
        if let [key] = keys
            && self.writes == 0
        {
            let value = tx.get(OBJECTS, key).await?;
            return if value.is_some() { Ok(()) } else { Err(missing()) };
        }
        let mode = |at| if at < self.writes { Mode::Update } else { Mode::Read };
        let mut asked = [(OBJECTS, &[][..], Mode::Read); KEYS_MAX];
        for (at, key) in keys.iter().enumerate() {
            asked[at] = (OBJECTS, key, mode(at));
        }
        let found = tx.execute_each(&asked[..keys.len()]).await?;
        for (at, value) in found.into_iter().enumerate() {
            let value = value.ok_or_else(missing)?;
            if at < self.writes {
                let mut next = value.to_vec();
                next[..8].copy_from_slice(&(number(&value) + 1).to_le_bytes());
                tx.put(OBJECTS, &keys[at], next)?;
            }
        }
        Ok(())
    }
}
