//! Random operations on a partition and on the model, side by side. Their answers must be the same, except for items
//! that a cache evicted, and the cache must count these correctly. `DUNLIN_SEEDS=100` runs more.

mod pair;
mod work;

use dunlin_store::{Layout, Mode, Partition, PartitionConfig};
use proptest::prelude::*;

use pair::Pair;
use work::{Random, Shape};

const MIB: usize = 1 << 20;

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1)
}

fn partition(mode: Mode, layout: Layout, memory: usize, seed: u64) -> Partition {
    let config = PartitionConfig { layout, ..PartitionConfig::new(mode, memory) };
    Partition::with_secret(config, [seed, !seed]).expect("a few MiB of memory")
}

/// Runs, and reports the seed if that fails.
fn long_runs(mode: Mode, memory: usize, shape: Shape, steps: usize) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for layout in [Layout::Inline, Layout::Log] {
        for seed in seeds() {
            println!("seed {seed} {mode:?} {layout:?} {shape:?}");
            let mut pair = Pair::new(partition(mode, layout, memory, seed));
            let mut random = Random(seed);
            for step in 0..steps {
                pair.step(&mut random, &shape);
                if step % (steps / 4) == 0 {
                    pair.compare_all();
                }
            }
            pair.compare_all();
            println!("{:?}", pair.stats());
            pairs.push(pair);
        }
    }
    pairs
}

#[test]
fn a_store_with_room_forgets_nothing() {
    for pair in long_runs(Mode::Store, 32 * MIB, Shape { keys: 5000, ..Shape::MIXED }, 40_000) {
        assert_eq!((pair.lost, pair.refused), (0, 0));
    }
}

#[test]
fn a_store_of_small_items_grows_its_index() {
    for pair in long_runs(Mode::Store, 8 * MIB, Shape { keys: 30_000, deletes: 2, flushes: 0, ..Shape::SMALL }, 150_000)
    {
        assert_eq!((pair.lost, pair.refused), (0, 0));
    }
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let small = (Shape { keys: 100_000, ..Shape::SMALL }, 160_000);
    let mixed = (Shape { keys: 10_000, ..Shape::MIXED }, 60_000);
    let large = (Shape { keys: 400, ..Shape::LARGE }, 20_000);
    for (shape, steps) in [small, mixed, large] {
        for pair in long_runs(Mode::Store, MIB, Shape { deletes: 0, flushes: 0, ..shape }, steps) {
            assert!(pair.refused > 0, "the run never filled the store: {:?}", pair.stats());
            assert_eq!(pair.lost, 0);
        }
    }
}

#[test]
fn a_cache_loses_only_what_it_says_it_evicted() {
    let small = (Shape { keys: 100_000, deletes: 0, ..Shape::SMALL }, 120_000);
    let mixed = (Shape { keys: 6000, ..Shape::MIXED }, 60_000);
    let large = (Shape { keys: 400, ..Shape::LARGE }, 20_000);
    for (shape, steps) in [small, mixed, large] {
        for pair in long_runs(Mode::Cache, MIB, Shape { flushes: 0, ..shape }, steps) {
            assert_eq!(pair.refused, 0);
            assert!(pair.lost > 0, "the run never filled the cache: {:?}", pair.stats());
        }
    }
}

/// As many segments as a partition of several gigabytes has.
#[test]
fn hundreds_of_segments_make_no_difference() {
    for (seed, mode) in seeds().flat_map(|seed| [(seed, Mode::Cache), (seed, Mode::Store)]) {
        for (layout, segment) in [(Layout::Inline, 4 << 10), (Layout::Log, 4 << 10), (Layout::Inline, 16 << 10)] {
            println!("seed {seed} {mode:?} {layout:?} {segment}");
            let config = PartitionConfig { layout, segment: Some(segment), ..PartitionConfig::new(mode, 3 * MIB) };
            let mut pair = Pair::new(Partition::with_secret(config, [seed, !seed]).expect("a few MiB of memory"));
            let mut random = Random(seed);
            for shape in [Shape::SMALL, Shape::MIXED, Shape::SMALL] {
                for _ in 0..60_000 {
                    pair.step(&mut random, &Shape { keys: 60_000, deletes: 2, flushes: 2, ..shape });
                }
                pair.compare_all();
            }
            assert!(if mode == Mode::Cache { pair.refused == 0 } else { pair.lost == 0 });
            println!("{:?}", pair.stats());
        }
    }
}

#[test]
fn a_cache_follows_a_change_of_what_it_holds() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut pair = Pair::new(partition(Mode::Cache, Layout::Inline, 2 * MIB, seed));
        let mut random = Random(seed);
        for shape in [Shape::LARGE, Shape::SMALL, Shape::MIXED, Shape::LARGE, Shape::SMALL] {
            for _ in 0..20_000 {
                pair.step(&mut random, &Shape { keys: 50_000, ..shape });
            }
            pair.compare_all();
        }
        assert_eq!(pair.refused, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_runs(
        is_cache in any::<bool>(), in_log in any::<bool>(), secret in any::<u64>(), shape in prop::sample::select(vec![Shape::SMALL, Shape::MIXED, Shape::LARGE]),
        steps in prop::collection::vec(any::<u64>(), 1..600),
    ) {
        let (mode, layout) = (if is_cache { Mode::Cache } else { Mode::Store }, if in_log { Layout::Log } else { Layout::Inline });
        let mut pair = Pair::new(partition(mode, layout, MIB, secret));
        for step in steps {
            pair.step(&mut Random(step), &Shape { keys: 30, ..shape });
        }
        pair.compare_all();
    }
}
