//! Partitions of ours as tables.

use dunlin_store::{Key, Model, Put, Store};
use serde::{Deserialize, Serialize};

use super::BURST_MAX;
use super::table::{Outcome, Table};
use crate::BenchError;
use crate::workload::item::{KEY_BYTES, VALUE_BYTES, is_value, key, value};

/// Which kind of partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The model that tests use.
    Model,
}

impl Kind {
    /// All of them, that which services use first.
    pub const ALL: [Kind; 1] = [Kind::SHIPPED];
    /// That which services use.
    pub const SHIPPED: Kind = Kind::Model;

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
        }
    }

    /// Makes one with room for so many items and hands it over.
    pub(super) fn with<V: OnTable>(self, _items: u64, visitor: V) -> Result<V::Output, BenchError> {
        match self {
            Kind::Model => visitor.run(Partition(Model::new())),
        }
    }
}

/// Something done on a table. It is compiled for each kind apart.
pub(super) trait OnTable {
    type Output;
    fn run<T: Table>(self, table: T) -> Result<Self::Output, BenchError>;
}

/// A store whose bursts are prefetched in two passes.
struct Partition<S>(S);

impl<S: Store> Table for Partition<S> {
    const MAY_LOSE: bool = true;

    #[inline]
    fn burst(&mut self, numbers: &[u64], puts: u32, outcome: &mut Outcome) {
        // One at a time there is nothing to fetch beforehand.
        if let [number] = numbers {
            let bytes = key(*number);
            match self.0.key(&bytes) {
                Ok(key) => operate(&mut self.0, &key, *number, puts & 1 == 1, outcome),
                Err(_) => outcome.refused += 1,
            }
            return;
        }
        let mut bytes = [[0; KEY_BYTES]; BURST_MAX];
        bytes.iter_mut().zip(numbers).for_each(|(bytes, number)| *bytes = key(*number));
        let mut keys: [Option<Key<'_>>; BURST_MAX] = [None; BURST_MAX];
        for (key, bytes) in keys.iter_mut().zip(&bytes[..numbers.len()]) {
            *key = self.0.key(bytes).ok();
            key.iter().for_each(|key| self.0.prefetch(key));
        }
        keys.iter().flatten().for_each(|key| self.0.prefetch_item(key));
        for (place, (key, number)) in keys.iter().zip(numbers).enumerate() {
            match key {
                Some(key) => operate(&mut self.0, key, *number, puts >> place & 1 == 1, outcome),
                None => outcome.refused += 1,
            }
        }
    }
}

#[inline(always)]
fn operate<S: Store>(store: &mut S, key: &Key<'_>, number: u64, is_put: bool, outcome: &mut Outcome) {
    if is_put {
        let value: [u8; VALUE_BYTES] = value(number);
        outcome.refused += u64::from(store.put(key, &value, Put::default()).is_err());
    } else {
        outcome.read(store.get(key).map(|item| is_value(number, item.value)));
    }
}
