//! Which items a load reads.

use std::cell::Cell;

use dunlin_schedule::simulator::Placement;

use crate::rein::cluster::Access;

/// The items of each partition.
pub(super) struct Items {
    of_partitions: Vec<Vec<u64>>,
    /// Of each item, in its partition.
    places: Vec<usize>,
    access: Access,
    /// Items of each partition that were read in turn.
    turns: Vec<Cell<usize>>,
}

/// By which part of a partition the items of a load are moved against those of the load before.
const STEP: f64 = 0.618;

impl Items {
    pub fn new(placement: &Placement, partitions: u32, (items, access): (u64, Access)) -> Items {
        let mut of_partitions = vec![Vec::new(); partitions as usize];
        let place = |item| {
            let of_partition: &mut Vec<u64> = &mut of_partitions[placement.partition(item) as usize];
            of_partition.push(item);
            of_partition.len() - 1
        };
        let places = (0..items).map(place).collect();
        Items { of_partitions, places, access, turns: vec![Cell::default(); partitions as usize] }
    }

    /// The item that a load reads for a key of the simulator: one of the same partition. If that depends on the key,
    /// loads read the items of a partition in different orders: an item that is read twice returns to memory, and a
    /// load with the same keys would find there what the load before has read. Otherwise the last items come first:
    /// they are stored first, and what is stored last is in memory.
    pub fn of(&self, key: u64, partition: u32, load: usize) -> u64 {
        let of_partition = &self.of_partitions[partition as usize];
        if self.access == Access::InTurn {
            let turn = &self.turns[partition as usize];
            return of_partition[of_partition.len() - 1 - turn.replace(turn.get() + 1) % of_partition.len()];
        }
        let moved = (load as f64 * STEP).fract() * of_partition.len() as f64;
        of_partition[(self.places[key as usize] + moved as usize) % of_partition.len()]
    }

    /// The items that each server stores, in order. The last are to be stored first.
    pub fn of_servers(&self, placement: &Placement, servers: usize) -> Vec<Vec<u64>> {
        let mut stored = vec![Vec::new(); servers];
        for (partition, items) in self.of_partitions.iter().enumerate() {
            placement.of(partition as u32).iter().for_each(|server| stored[*server as usize].extend(items));
        }
        stored.iter_mut().for_each(|items| items.sort_unstable());
        stored
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dunlin_schedule::simulator::Setting;

    use super::*;

    #[test]
    fn loads_read_other_items_of_the_same_partitions() {
        let setting = Setting { partitions: 16, servers: 16, ..Setting::default() };
        let placement = Placement::new(&setting);
        let items = Items::new(&placement, 16, (1000, Access::AtRandom));
        for load in 0..4 {
            let read: BTreeSet<u64> = (0..1000)
                .map(|key| {
                    let item = items.of(key, placement.partition(key), load);
                    assert_eq!(placement.partition(item), placement.partition(key));
                    assert_eq!(item == key, load == 0, "key {key} of load {load}");
                    item
                })
                .collect();
            assert_eq!(read.len(), 1000, "each is read for one key");
        }
        let in_turn = Items::new(&placement, 16, (1000, Access::InTurn));
        let count = in_turn.of_partitions[placement.partition(5) as usize].len();
        let mut read: Vec<u64> = (0..2 * count).map(|_| in_turn.of(5, placement.partition(5), 0)).collect();
        let again = read.split_off(count);
        assert_eq!(read, again, "an item is read again after all others");
        assert!(read.is_sorted_by(|before, after| before > after), "those that were stored first come first");
        assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), count);
        let stored = items.of_servers(&placement, 16);
        assert_eq!(stored.iter().map(Vec::len).sum::<usize>(), 3000);
        assert!(stored.iter().all(|items| items.is_sorted()));
    }
}
