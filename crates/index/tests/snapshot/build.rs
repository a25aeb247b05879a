//! [`Builder`] beside insertions.

use dunlin_index::{BuildError, Builder, Index, KEY_BYTES_MAX, Refused, VALUE_BYTES_MAX, pin};
use dunlin_net::random::Random;

use crate::work::value;
use crate::{Items, KINDS, all, assert_has, items};

const BUDGET: usize = 256 << 20;

fn build<'a>(index: &Index, items: impl IntoIterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>) -> Result<usize, BuildError> {
    let mut builder = Builder::new(index);
    for (key, value) in items {
        builder.push(key, value)?;
    }
    builder.finish()
}

#[test]
fn what_is_built_is_what_insertions_make_and_goes_on_as_that() {
    for kind in KINDS {
        for seed in 0..6 {
            let mut items = items(kind, seed, [3, 30, 300, 3000][seed as usize % 4]);
            let (built, inserted) = (Index::new(BUDGET).unwrap(), Index::new(BUDGET).unwrap());
            assert_eq!(build(&built, &items), Ok(items.len()), "{kind:?} {seed}");
            for (key, value) in &items {
                inserted.insert(key, value, &pin()).unwrap();
            }
            assert_has(&built, &items);
            // But for the first root, which waits to be freed.
            let (ours, theirs) = (built.memory_bytes(), inserted.memory_bytes() + 128);
            assert!(ours <= theirs, "{kind:?} {seed}: {ours} bytes, not {theirs}");
            assert!(built.retired_nodes(&pin()) <= 1, "all nodes but the first root are in the tree");
            // They split, merge and vanish as others do.
            let mut random = Random::new(seed);
            for round in 0..4000 {
                let key = kind.key(&mut random);
                if round % 2 == 0 {
                    let value = value(&mut random);
                    assert_eq!(
                        built.insert(&key, &value, &pin()).unwrap().as_deref(),
                        items.insert(key, value).as_deref()
                    );
                } else {
                    assert_eq!(built.remove(&key, &pin()).as_deref(), items.remove(&key).as_deref());
                }
            }
            assert_has(&built, &items);
            items.keys().for_each(|key| assert!(built.remove(key, &pin()).is_some()));
            assert_has(&built, &Items::new());
        }
    }
}

/// Each number of items at which a node becomes full, or one more is needed.
#[test]
fn every_size_of_a_tree_is_built() {
    let (leaf, interior) = (28, 64);
    let mut sizes: Vec<u64> = (0..2 * leaf + 2).collect();
    for nodes in [interior, 2 * interior, 3 * interior, interior * interior, 2 * interior * interior] {
        sizes.extend([leaf * nodes - 1, leaf * nodes, leaf * nodes + 1]);
    }
    for size in sizes {
        let index = Index::new(BUDGET).unwrap();
        let mut builder = Builder::new(&index);
        for number in 0..size {
            builder.push(&number.to_be_bytes(), &number.to_le_bytes()).unwrap();
            assert!(index.is_empty(), "nothing is seen before the end");
        }
        assert_eq!(builder.finish(), Ok(size as usize));
        assert_eq!(index.verify(&pin()), Ok(size as usize), "{size}");
        let guard = pin();
        for number in (0..size).step_by(1 + size as usize / 1000) {
            let value = index.get(&number.to_be_bytes(), &guard);
            assert_eq!(value.as_deref(), Some(&number.to_le_bytes()[..]));
        }
        assert!(index.get(&size.to_be_bytes(), &pin()).is_none());
        let leaves = index.statistics(&pin()).leaves.iter().sum::<usize>() as u64;
        assert_eq!(leaves, size.div_ceil(leaf).max(1), "all leaves but the last are full");
    }
}

#[test]
fn keys_out_of_order_or_too_long_and_full_indexes_are_refused() {
    let index = Index::new(BUDGET).unwrap();
    for (keys, error) in [
        (&[&b"b"[..], b"a"][..], BuildError::OutOfOrder),
        (&[b"a", b"a"], BuildError::OutOfOrder),
        (&[b"", b""], BuildError::OutOfOrder),
        (&[b"a", &[b'b'; KEY_BYTES_MAX + 1]], Refused::KeyTooLong { len: KEY_BYTES_MAX + 1 }.into()),
    ] {
        let mut builder = Builder::new(&index);
        builder.push(keys[0], b"").unwrap();
        assert_eq!(builder.push(keys[1], b""), Err(error));
        assert_eq!(builder.push(b"z", b""), Err(error), "it stays so");
        assert_eq!(builder.finish(), Err(error));
        assert!(index.is_empty());
    }
    let mut builder = Builder::new(&index);
    let len = VALUE_BYTES_MAX + 1;
    assert_eq!(builder.push(b"a", &vec![0; len]), Err(Refused::ValueTooLong { len }.into()));
    drop(builder);
    index.insert(b"there", b"already", &pin()).unwrap();
    let items = items(KINDS[2], 1, 300);
    let before = index.memory_bytes();
    assert_eq!(build(&index, &items), Err(BuildError::NotEmpty));
    assert_eq!(index.memory_bytes(), before, "what was made is freed");
    assert_eq!(all(&index), [(b"there".to_vec(), b"already".to_vec())]);
    assert_eq!(index.verify(&pin()), Ok(1));
}

/// Wherever the memory ends, in a leaf, a block, a layer or an interior node, nothing is left behind.
#[test]
fn a_budget_that_is_too_small_leaves_an_empty_index() {
    for kind in KINDS {
        let items = items(kind, 7, 400);
        let needed = {
            let index = Index::new(BUDGET).unwrap();
            build(&index, &items).unwrap();
            index.memory_bytes()
        };
        for budget in (256..needed).step_by(needed.div_ceil(150)) {
            let index = Index::new(budget).unwrap();
            let before = index.memory_bytes();
            let refused = build(&index, &items);
            assert_eq!(refused, Err(Refused::Full { budget }.into()), "{kind:?} {budget} of {needed}");
            assert_eq!(index.memory_bytes(), before, "{kind:?} {budget} of {needed}");
            assert_eq!(index.retired_nodes(&pin()), 0);
            let mut builder = Builder::new(&index);
            assert_eq!(builder.push(b"a", b"").and_then(|()| builder.push(b"b", b"")), Ok(()));
            drop(builder);
            assert_eq!((index.len(), index.memory_bytes()), (0, before), "a builder that is dropped frees all");
        }
    }
}

#[test]
fn the_longest_keys_that_differ_in_the_last_byte() {
    let index = Index::new(64 << 20).unwrap();
    let keys = [b'k', b'l'].map(|last| [vec![b'k'; KEY_BYTES_MAX - 1], vec![last]].concat());
    let mut builder = Builder::new(&index);
    builder.push(b"k", b"short").unwrap();
    keys.iter().for_each(|key| builder.push(key, b"").unwrap());
    builder.push(b"l", b"short").unwrap();
    assert_eq!(builder.finish(), Ok(4));
    assert_eq!(index.verify(&pin()), Ok(4));
    assert_eq!(index.statistics(&pin()).layers, KEY_BYTES_MAX / 8);
    let mut builder = Builder::new(&index);
    keys.iter().for_each(|key| builder.push(key, b"").unwrap());
    let before = index.memory_bytes();
    assert_eq!(builder.finish(), Err(BuildError::NotEmpty));
    assert!(index.memory_bytes() <= before);
    assert_eq!(index.verify(&pin()), Ok(4));
}
