//! Work on an ordered index and on a `BTreeMap`, which must agree; within a budget that the first byte chooses.
//!
//! Each step is a byte that says what is done, a byte for the key's length and how much of it is common to many keys,
//! and the rest of the key. An insertion has one byte more, for the value's length.

use std::collections::BTreeMap;

use dunlin_index::{Index, Order, Range, pin};

/// Items of one scan, at most.
const SCANNED_MAX: usize = 20;

/// Takes the next bytes, as far as there are any.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    taken
}

fn byte(bytes: &mut &[u8]) -> u8 {
    take(bytes, 1).first().copied().unwrap_or(0)
}

/// Up to 15 bytes of the input, behind up to 40 that other keys have, too.
fn key(bytes: &mut &[u8]) -> Vec<u8> {
    let shape = byte(bytes);
    let mut key = vec![b'k'; [0, 0, 0, 8, 9, 16, 24, 40][usize::from(shape >> 5)]];
    key.extend_from_slice(take(bytes, usize::from(shape & 15)));
    key
}

fn value(len: u8) -> Vec<u8> {
    // Most stand in the leaf.
    vec![len; if len < 192 { usize::from(len % 9) } else { usize::from(len) }]
}

/// Checks one input.
pub fn check(mut bytes: &[u8]) {
    let budget = 256usize << (byte(&mut bytes) % 16);
    let index = Index::new(budget).expect("256 bytes are enough");
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    while !bytes.is_empty() {
        let (what, key) = (byte(&mut bytes), key(&mut bytes));
        let guard = pin();
        match what % 8 {
            0..4 => {
                let value = value(byte(&mut bytes));
                // At the limit, nothing changes.
                if let Ok(old) = index.insert(&key, &value, &guard) {
                    assert_eq!(old.as_deref(), model.insert(key, value).as_deref());
                }
            }
            4 => assert_eq!(index.remove(&key, &guard).as_deref(), model.remove(&key).as_deref()),
            5 => {
                let keys: Vec<&[u8]> = (0..=key.len()).map(|len| &key[..len]).collect();
                let mut values = vec![None; keys.len()];
                index.get_burst(&keys, &guard, &mut values);
                for (key, value) in keys.into_iter().zip(values) {
                    assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice));
                }
            }
            6 => scan(&index, &model, &key),
            _ => {
                let prefix = &key[..key.len() / 2];
                let before = model.len();
                model.retain(|key, _| !key.starts_with(prefix));
                assert_eq!(index.remove_range(Range::prefix(prefix)), before - model.len());
            }
        }
        assert!(index.memory_bytes() <= budget);
    }
    let guard = pin();
    assert_eq!(index.verify(&guard), Ok(model.len()));
    let mut left = model.iter();
    index.scan(Range::ALL, Order::Ascending, usize::MAX, &guard, |key, value| {
        assert_eq!(Some((key, value)), left.next().map(|(key, value)| (&key[..], &value[..])));
    });
    assert_eq!(left.next(), None);
}

/// Both ways from a key.
fn scan(index: &Index, model: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) {
    for (range, order) in [(Range::from(key), Order::Ascending), (Range::between(b"", key), Order::Descending)] {
        let mut found = Vec::new();
        index.scan(range, order, SCANNED_MAX, &pin(), |key, value| found.push((key.to_vec(), value.to_vec())));
        let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        let expected: Vec<_> = match order {
            Order::Ascending => model.range(key.to_vec()..).map(owned).take(SCANNED_MAX).collect(),
            Order::Descending => model.range(..key.to_vec()).rev().map(owned).take(SCANNED_MAX).collect(),
        };
        assert_eq!(found, expected);
    }
}
