//! The comparison of the index with a `BTreeMap` for each kind of vectors that the processor has: they are set for the
//! whole process, so this is a program of its own. `DUNLIN_SEEDS=100` runs more.

#[path = "model/pair.rs"]
mod pair;
#[path = "model/work.rs"]
mod work;

use dunlin_index::Vectors;
use dunlin_net::random::Random;
use pair::{Mix, Pair};
use work::Keys;

const STEPS: usize = 12_000;
const GROWING: Mix = Mix { inserts: 60, removals: 25, scans: 3, range_removals: 10 };

#[test]
fn all_vectors_give_the_same_answers() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for vectors in [Vectors::Scalar, Vectors::Sse42, Vectors::best()] {
        if !vectors.select() {
            println!("this processor has no {vectors:?}");
            continue;
        }
        for (seed, keys) in (0..seeds).flat_map(|seed| [Keys::Mixed, Keys::Numbers(8000)].map(|keys| (seed, keys))) {
            println!("seed {seed} {keys:?} {vectors:?}");
            let (mut pair, mut random) = (Pair::new(), Random::new(seed));
            for _ in 0..STEPS {
                pair.step(&mut random, keys, GROWING);
            }
            pair.compare_all();
            assert!(pair.index.statistics(&dunlin_index::pin()).interior_nodes > 0, "interior nodes are searched");
        }
    }
}
