//! Building an index in key order, and snapshots of it in files.

mod build;
mod file;
#[path = "../model/work.rs"]
mod work;

use std::collections::BTreeMap;

use dunlin_index::{Index, Order, Range, pin};
use dunlin_net::random::Random;

use self::work::{Keys, value};

type Items = BTreeMap<Vec<u8>, Vec<u8>>;

const KINDS: [Keys; 6] = [Keys::Extreme, Keys::Zeros, Keys::Shared, Keys::Numbers(u64::MAX), Keys::Long, Keys::Mixed];

/// Up to so many items from a seed.
fn items(kind: Keys, seed: u64, count: usize) -> Items {
    let mut random = Random::new(seed);
    (0..count).map(|_| (kind.key(&mut random), value(&mut random))).collect()
}

fn all(index: &Index) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    index.scan(Range::ALL, Order::Ascending, usize::MAX, &pin(), |key, value| {
        found.push((key.to_vec(), value.to_vec()));
    });
    found
}

/// The index has exactly these items, is sound, and finds each of them.
fn assert_has(index: &Index, items: &Items) {
    let guard = pin();
    assert_eq!(index.verify(&guard), Ok(items.len()));
    assert!(all(index).iter().map(|(key, value)| (key, value)).eq(items), "the items are others");
    for (key, value) in items {
        assert_eq!(index.get(key, &guard).as_deref(), Some(&value[..]));
    }
}
