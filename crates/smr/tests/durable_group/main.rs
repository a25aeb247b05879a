//! The library with a log on disk: three replicas with simulated disks and without a network, which crash at any time.
//! Each seed is another history. `DUNLIN_SEEDS=10000 cargo test -p dunlin-smr --test durable_group` tries more.

mod group;
mod handed;

use dunlin_net::random::Random;

use group::{Group, Seen};

/// Seeds of one test run.
const SEEDS: u64 = 300;
/// Steps of each seed.
const STEPS: u64 = 2500;

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn what_a_majority_has_is_never_lost() {
    let mut seen = Seen::default();
    for seed in seeds() {
        let found = std::panic::catch_unwind(|| {
            let mut group = Group::new(seed);
            let mut random = Random::new(seed);
            (0..STEPS).for_each(|_| group.step(&mut random));
            group.settle();
            group.seen()
        });
        let Ok(found) = found else { panic!("seed {seed}") };
        seen.add(&found);
    }
    println!("{seen:?}");
    assert!(seen.is_complete(), "{seen:?}");
}
