//! Random work on an index and on a `BTreeMap`, side by side: both must give the same answers. `DUNLIN_SEEDS=100` runs
//! more.

mod pair;
mod work;

use dunlin_index::{Index, Order, Range, pin};
use dunlin_net::random::Random;
use pair::{Mix, Pair};
use work::Keys;

const MIXED: Mix = Mix { inserts: 40, removals: 30, scans: 10, range_removals: 50 };
const GROWING: Mix = Mix { inserts: 70, removals: 15, scans: 2, range_removals: 0 };
const SHRINKING: Mix = Mix { inserts: 15, removals: 70, scans: 2, range_removals: 10 };

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

/// Reports the seed on failure.
fn run(keys: Keys, phases: &[(Mix, usize)]) {
    for seed in seeds() {
        println!("seed {seed} {keys:?}");
        let (mut pair, mut random) = (Pair::new(), Random::new(seed));
        for &(mix, steps) in phases {
            for step in 0..steps {
                pair.step(&mut random, keys, mix);
                if step % (steps / 8) == 0 {
                    pair.compare_all();
                }
            }
            pair.compare_all();
            println!("{:?}", pair.index.statistics(&pin()));
        }
        empty(pair);
    }
}

/// Removes everything; then only the root is left, and all memory was returned.
fn empty(mut pair: Pair) {
    let keys: Vec<Vec<u8>> = pair.model.keys().cloned().collect();
    for key in keys {
        pair.remove(&key);
    }
    pair.compare_all();
    let statistics = pair.index.statistics(&pin());
    assert_eq!((statistics.interior_nodes, statistics.leaves.iter().sum::<usize>(), statistics.blocks), (0, 1, 0));
    // Threads of other tests may hold guards for some seconds.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(60) {
        if pair.index.retired_nodes(&pin()) == 0 {
            return;
        }
        pin().flush();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{} nodes that were retired never return", pair.index.retired_nodes(&pin()));
}

#[test]
fn keys_of_extreme_bytes() {
    run(Keys::Extreme, &[(MIXED, 20_000)]);
}

#[test]
fn keys_that_differ_in_the_number_of_zeros() {
    run(Keys::Zeros, &[(MIXED, 4000)]);
}

#[test]
fn keys_that_share_prefixes() {
    run(Keys::Shared, &[(GROWING, 20_000), (MIXED, 10_000), (SHRINKING, 20_000)]);
}

#[test]
fn keys_of_eight_bytes() {
    run(Keys::Numbers(20_000), &[(GROWING, 60_000), (SHRINKING, 60_000), (GROWING, 30_000)]);
}

#[test]
fn long_keys() {
    run(Keys::Long, &[(MIXED, 6000)]);
}

#[test]
fn all_kinds_of_keys() {
    run(Keys::Mixed, &[(GROWING, 15_000), (MIXED, 10_000), (SHRINKING, 15_000)]);
}

/// Removing from one end leaves subtrees with a single child at each level beside higher ones.
#[test]
fn merged_nodes_stay_below_their_parents() {
    const ITEMS: u64 = 120_000;
    let index = Index::new(1 << 30).expect("room");
    for number in 0..ITEMS {
        index.insert(&number.to_be_bytes(), b"", &pin()).expect("room");
    }
    assert!(index.statistics(&pin()).depth_max >= 4, "{:?}", index.statistics(&pin()));
    for number in 0..ITEMS {
        index.remove(&number.to_be_bytes(), &pin()).expect("it is there");
        if number % 2000 == 0 {
            assert_eq!(index.verify(&pin()), Ok((ITEMS - 1 - number) as usize));
        }
    }
}

#[test]
#[should_panic(expected = "at least one item")]
fn a_part_of_no_items_is_refused() {
    let index = Index::new(1 << 20).expect("room");
    index.insert(b"a", b"", &pin()).expect("room");
    // Its last key would be below the range.
    index.remove_part(Range::from(b"m"), 0);
}

/// A million keys, in a pseudo-random order.
#[test]
fn a_million_keys() {
    let key = |number: u64| {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()
    };
    const ITEMS: u64 = 1_000_000;
    let index = Index::new(1 << 30).expect("room");
    for number in 0..ITEMS {
        index.insert(&key(number), &number.to_be_bytes(), &pin()).expect("room");
    }
    let guard = pin();
    assert_eq!(index.verify(&guard), Ok(ITEMS as usize));
    let statistics = index.statistics(&guard);
    println!("{statistics:?}, {:.1} bytes an item", statistics.bytes_per_item());
    assert!(statistics.bytes_per_item() <= 40.0, "{statistics:?}");
    let mut last = None;
    let visited = index.scan(Range::ALL, Order::Ascending, usize::MAX, &guard, |found, value| {
        assert!(last.as_deref() < Some(found));
        assert_eq!(found, key(u64::from_be_bytes(value.try_into().expect("8 bytes"))));
        last = Some(found.to_vec());
    });
    assert_eq!(visited as u64, ITEMS);
    let numbers: Vec<u64> = (0..ITEMS + 100).step_by(7).collect();
    for numbers in numbers.chunks(32) {
        let keys: Vec<[u8; 8]> = numbers.iter().map(|number| key(*number)).collect();
        let mut values = [None; 32];
        index.get_burst(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>(), &guard, &mut values);
        for (number, value) in numbers.iter().zip(values) {
            assert_eq!(value.as_deref(), (*number < ITEMS).then_some(&number.to_be_bytes()[..]));
        }
    }
    drop(guard);
    for number in 0..ITEMS {
        assert_eq!(index.remove(&key(number), &pin()).as_deref(), Some(&number.to_be_bytes()[..]));
    }
    assert_eq!(index.verify(&pin()), Ok(0));
}

#[test]
fn keys_in_order_fill_the_leaves() {
    let index = Index::new(1 << 30).expect("room");
    for number in 0..200_000u64 {
        index.insert(&number.to_be_bytes(), &number.to_be_bytes(), &pin()).expect("room");
    }
    let statistics = index.statistics(&pin());
    assert_eq!(index.verify(&pin()), Ok(200_000));
    assert!(statistics.leaf_fill > 0.95, "{statistics:?}");
    assert!(statistics.bytes_per_item() < 21.0, "{statistics:?}");
}

/// Both neighbours are tried, since the right one is full.
#[test]
fn a_small_leaf_merges_with_its_left_neighbour() {
    let index = Index::new(1 << 20).expect("room");
    for number in 0..200u64 {
        index.insert(&number.to_be_bytes(), b"value", &pin()).expect("room");
    }
    let leaves = index.statistics(&pin()).leaves[2];
    // The first leaf has the keys up to 26, the second those up to 53.
    for number in (5..27).chain(32..54u64) {
        assert!(index.remove(&number.to_be_bytes(), &pin()).is_some());
    }
    assert_eq!(index.statistics(&pin()).leaves[2], leaves - 1);
    assert_eq!(index.verify(&pin()), Ok(200 - 44));
}

/// A burst passes slices that all its keys have in common once: also where one of the keys ends in the layer, where no
/// item is behind the slices, and where only one is.
#[test]
fn keys_of_a_burst_that_share_slices_are_found_one_by_one() {
    let index = Index::new(1 << 20).expect("room");
    let guard = pin();
    let insert = |key: &[u8]| index.insert(key, key, &guard).expect("room");
    let look_up = |keys: &[&[u8]]| {
        let mut values = vec![None; keys.len()];
        index.get_burst(keys, &guard, &mut values);
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.as_deref(), index.get(key, &guard).as_deref(), "{}", key.escape_ascii());
        }
    };
    let bursts: [&[&[u8]]; 4] = [
        &[b"slice 1 slice 2 a", b"slice 1 slice 2 b", b"slice 1 slice 2 slice 3 c"],
        &[b"slice 1 slice 2 a", b"slice 1 slice 2 ", b"slice 1 slice 2"],
        &[b"slice 1 slice 2 b", b"slice 1 slice 2 b", b"slice 1 slice 2 b"],
        &[b"slice 1 other", b"slice 2 slice 2 a", b""],
    ];
    let items: [&[u8]; 5] = [
        b"slice 1 slice 2 b",
        b"slice 1 slice 2 slice 3 c",
        b"slice 1 slice 2 ",
        b"slice 1 other",
        b"slice 1 slice 2 a",
    ];
    bursts.iter().for_each(|keys| look_up(keys));
    for item in items {
        insert(item);
        bursts.iter().for_each(|keys| look_up(keys));
    }
    // The first layer has several leaves.
    for number in 0..1000u32 {
        insert(&number.to_be_bytes());
        insert(format!("slice 1 slice 2 {number}").as_bytes());
    }
    bursts.iter().for_each(|keys| look_up(keys));
    let numbers: Vec<String> = (0..32).map(|number| format!("slice 1 slice 2 {}", 40 * number)).collect();
    look_up(&numbers.iter().map(String::as_bytes).collect::<Vec<_>>());
}
