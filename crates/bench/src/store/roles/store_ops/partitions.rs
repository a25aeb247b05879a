//! Our partitions as tables.

use dunlin_store::{Key, Layout, Mode, Partition, PartitionConfig, Put, Store};
use serde::{Deserialize, Serialize};

use super::BURST_MAX;
use super::table::{Outcome, Table};
use crate::BenchError;
use crate::workload::item::{KEY_BYTES, VALUE_BYTES, is_value, key, value};

/// Memory of a partition for an item of 48 B: more than any kind needs, so that nothing is evicted.
const BYTES_PER_ITEM: u64 = 160;
/// Additional memory.
const BYTES_BESIDE: u64 = 16 << 20;

/// Kinds of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// As a cache, small items in the index.
    Cache,
    /// As a store, small items in the index.
    Store,
    /// As a cache with all items in the log: MICA's layout.
    MicaCache,
}

impl Kind {
    /// All kinds, the services' default first.
    pub const ALL: [Kind; 3] = [Kind::SHIPPED, Kind::Store, Kind::MicaCache];
    /// The default of services.
    pub const SHIPPED: Kind = Kind::Cache;

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cache => "Dunlin, cache",
            Kind::Store => "Dunlin, store",
            Kind::MicaCache => "Dunlin, cache, MICA's layout",
        }
    }

    /// Makes a table with room for this many items and passes it on.
    pub(super) fn with<V: OnTable>(self, items: u64, visitor: V) -> Result<V::Output, BenchError> {
        let partition = |mode, layout| {
            let memory = BYTES_BESIDE + items * BYTES_PER_ITEM;
            Partition::new(PartitionConfig { layout, ..PartitionConfig::new(mode, memory as usize) })
        };
        match self {
            Kind::Cache => visitor.run(Cache(partition(Mode::Cache, Layout::Inline)?)),
            Kind::Store => visitor.run(Lossless(partition(Mode::Store, Layout::Inline)?)),
            Kind::MicaCache => visitor.run(Cache(partition(Mode::Cache, Layout::Log)?)),
        }
    }
}

/// An operation on a table. It is compiled separately for each kind.
pub(super) trait OnTable {
    type Output;
    fn run<T: Table>(self, table: T) -> Result<Self::Output, BenchError>;
}

/// A partition that may lose items.
pub(super) struct Cache(pub Partition);

/// A partition that may not lose items.
struct Lossless(Partition);

impl Table for Cache {
    const MAY_LOSE: bool = true;

    #[inline]
    fn burst(&mut self, numbers: &[u64], puts: u32, outcome: &mut Outcome) {
        burst(&mut self.0, numbers, puts, outcome);
    }
}

impl Table for Lossless {
    const MAY_LOSE: bool = false;

    #[inline]
    fn burst(&mut self, numbers: &[u64], puts: u32, outcome: &mut Outcome) {
        burst(&mut self.0, numbers, puts, outcome);
    }
}

/// A burst in three passes: index lines, items, operations.
#[inline(always)]
fn burst<S: Store>(store: &mut S, numbers: &[u64], puts: u32, outcome: &mut Outcome) {
    // A single operation has nothing to prefetch.
    if let [number] = numbers {
        let bytes = key(*number);
        match store.key(&bytes) {
            Ok(key) => operate(store, &key, *number, puts & 1 == 1, outcome),
            Err(_) => outcome.refused += 1,
        }
        return;
    }
    let mut bytes = [[0; KEY_BYTES]; BURST_MAX];
    bytes.iter_mut().zip(numbers).for_each(|(bytes, number)| *bytes = key(*number));
    let mut keys: [Option<Key<'_>>; BURST_MAX] = [None; BURST_MAX];
    for (key, bytes) in keys.iter_mut().zip(&bytes[..numbers.len()]) {
        *key = store.key(bytes).ok();
        key.iter().for_each(|key| store.prefetch(key));
    }
    keys[..numbers.len()].iter().flatten().for_each(|key| store.prefetch_item(key));
    for (place, (key, number)) in keys.iter().zip(numbers).enumerate() {
        match key {
            Some(key) => operate(store, key, *number, puts >> place & 1 == 1, outcome),
            None => outcome.refused += 1,
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

#[cfg(test)]
mod tests {
    use super::super::table::load;
    use super::*;

    struct Check;

    impl OnTable for Check {
        type Output = ();

        fn run<T: Table>(self, mut table: T) -> Result<(), BenchError> {
            load(&mut table, 1000, |_| Ok(()))?;
            let mut outcome = Outcome::default();
            table.burst(&[0, 999, 500], 0b100, &mut outcome);
            table.burst(&[7], 0, &mut outcome);
            assert_eq!((outcome.found, outcome.missing, outcome.wrong, outcome.refused), (3, 0, 0, 0));
            table.burst(&[1000], 0, &mut outcome);
            assert_eq!(outcome.missing, 1);
            Ok(())
        }
    }

    #[test]
    fn every_kind_keeps_what_it_is_given() {
        Kind::ALL.into_iter().for_each(|kind| kind.with(1000, Check).unwrap());
    }
}
