//! The hash maps compared with a partition, all with the same fast hash.

use foldhash::fast::RandomState;

use super::table::{Outcome, Table};
use crate::workload::item::{KEY_BYTES, VALUE_BYTES, is_value, key, value};

type Key = [u8; KEY_BYTES];
type Value = [u8; VALUE_BYTES];

/// Operations of a map on one item.
trait Map {
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool>;
    fn put(&mut self, key: Key, value: Value);
}

macro_rules! maps {
    ($($name:ident($inner:ty) = $make:expr;)*) => {$(
        pub(super) struct $name($inner);

        impl $name {
            /// With room for this many items.
            pub fn new(items: u64) -> Self {
                let make: fn(usize) -> $inner = $make;
                $name(make(items as usize))
            }
        }

        impl Table for $name {
            const MAY_LOSE: bool = false;

            #[inline]
            fn burst(&mut self, numbers: &[u64], puts: u32, outcome: &mut Outcome) {
                for (place, number) in numbers.iter().enumerate() {
                    if puts >> place & 1 == 0 {
                        outcome.read(self.get(&key(*number), |value| is_value(*number, value)));
                    } else {
                        self.put(key(*number), value(*number));
                    }
                }
            }
        }
    )*};
}

maps! {
    Hashbrown(hashbrown::HashMap<Key, Value, RandomState>) = |items| hashbrown::HashMap::with_capacity_and_hasher(items, RandomState::default());
    Dashmap(dashmap::DashMap<Key, Value, RandomState>) = |items| dashmap::DashMap::with_capacity_and_hasher(items, RandomState::default());
    Papaya(papaya::HashMap<Key, Value, RandomState>) = |items| papaya::HashMap::with_capacity_and_hasher(items, RandomState::default());
    Scc(scc::HashMap<Key, Value, RandomState>) = |items| scc::HashMap::with_capacity_and_hasher(items, RandomState::default());
    Moka(moka::sync::Cache<Key, Value, RandomState>) = |items| {
        // Capacity for twice the items, so that it never evicts.
        moka::sync::Cache::builder().max_capacity(2 * items as u64).initial_capacity(items).build_with_hasher(RandomState::default())
    };
}

impl Map for Hashbrown {
    #[inline]
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool> {
        self.0.get(key).map(look)
    }

    #[inline]
    fn put(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }
}

impl Map for Dashmap {
    #[inline]
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    #[inline]
    fn put(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }
}

impl Map for Papaya {
    #[inline]
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool> {
        self.0.pin().get(key).map(look)
    }

    #[inline]
    fn put(&mut self, key: Key, value: Value) {
        self.0.pin().insert(key, value);
    }
}

impl Map for Scc {
    #[inline]
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool> {
        self.0.read_sync(key, |_, value| look(value))
    }

    #[inline]
    fn put(&mut self, key: Key, value: Value) {
        self.0.upsert_sync(key, value);
    }
}

impl Map for Moka {
    #[inline]
    fn get(&self, key: &Key, look: impl FnOnce(&Value) -> bool) -> Option<bool> {
        self.0.get(key).as_ref().map(look)
    }

    #[inline]
    fn put(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::load;
    use super::*;

    fn keeps_what_it_is_given<T: Table>(mut table: T) {
        load(&mut table, 100, |_| Ok(())).unwrap();
        let mut outcome = Outcome::default();
        table.burst(&[0, 99, 50], 0b100, &mut outcome);
        assert_eq!((outcome.found, outcome.missing, outcome.wrong), (2, 0, 0));
        table.burst(&[100], 0, &mut outcome);
        assert_eq!(outcome.missing, 1);
        assert!(outcome.check(false).is_err() && outcome.check(true).is_ok());
    }

    #[test]
    fn every_map_keeps_what_it_is_given() {
        keeps_what_it_is_given(Hashbrown::new(100));
        keeps_what_it_is_given(Dashmap::new(100));
        keeps_what_it_is_given(Papaya::new(100));
        keeps_what_it_is_given(Scc::new(100));
        keeps_what_it_is_given(Moka::new(100));
    }
}
