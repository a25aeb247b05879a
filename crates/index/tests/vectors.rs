//! The same work with each set of vectors that the processor has. The choice is the process's, so this is a test
//! program of its own, with one test.

use std::collections::BTreeMap;

use dunlin_index::{Index, Order, Range, Vectors, pin};
use dunlin_net::random::Random;

const STEPS: u64 = 60_000;
const BURST: usize = 32;

/// Short keys, and long ones that share slices.
fn key(random: &mut Random) -> Vec<u8> {
    let number = random.below(STEPS / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    match random.below(3) {
        0 => number.to_vec(),
        1 => [b"a slice ", &number[..]].concat(),
        _ => [&number[..2], b"behind two bytes"].concat(),
    }
}

fn work() {
    let (index, mut model, mut random) = (Index::new(1 << 26).expect("room"), BTreeMap::new(), Random::new(7));
    for step in 0..STEPS {
        let (guard, key, value) = (pin(), key(&mut random), step.to_le_bytes().repeat(1 + step as usize % 2));
        let old = match random.below(4) {
            0 => (index.remove(&key, &guard), model.remove(&key)),
            _ => (index.insert(&key, &value, &guard).expect("room"), model.insert(key, value)),
        };
        assert_eq!(old.0.as_deref(), old.1.as_deref());
    }
    let guard = pin();
    assert_eq!(index.verify(&guard), Ok(model.len()));
    for _ in 0..STEPS / BURST as u64 {
        let keys: Vec<Vec<u8>> = (0..BURST).map(|_| key(&mut random)).collect();
        let mut values = [None; BURST];
        index.get_burst(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>(), &guard, &mut values);
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.as_deref(), model.get(key).map(|value| &value[..]));
            assert_eq!(value, index.get(key, &guard));
        }
    }
    let mut items = model.iter();
    let visited = index.scan(Range::ALL, Order::Ascending, usize::MAX, &guard, |key, value| {
        assert_eq!(items.next(), Some((&key.to_vec(), &value.to_vec())));
    });
    assert_eq!(visited, model.len());
}

#[test]
fn all_vectors_give_the_same_answers() {
    for vectors in [Vectors::Scalar, Vectors::Sse42, Vectors::Avx2, Vectors::Avx512] {
        if vectors.select() {
            println!("{vectors:?}");
            work();
        }
    }
}
