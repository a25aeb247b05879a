//! The fault hunts of transactions and of sequencers: every promise is kept, and seeds repeat exactly.

use dunlin_hunt::{Hunt, Kind};
use dunlin_serve::Interrupt;

fn hunt(kind: Kind, few: u64) {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few);
    let hunt = Hunt { kind, first: 0, seeds: Some(seeds), time: None, jobs: 2 };
    let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
    if let Some(failure) = failure {
        panic!("seed {}: {}", failure.seed, failure.why);
    }
    assert_eq!(progress.seeds, seeds);
    assert!(progress.calls > 20 * seeds && progress.packets > progress.calls, "{progress:?}");
    println!("{} calls, {} packets, {:?}", progress.calls, progress.packets, progress.processor_time);
}

#[test]
fn transactions_are_serializable_and_none_is_lost() {
    hunt(Kind::Txn, 6);
}

#[test]
fn numbers_rise_and_none_comes_twice() {
    hunt(Kind::Seq, 10);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for (kind, seeds) in [(Kind::Txn, 0..3), (Kind::Seq, 0..2)] {
        for seed in seeds {
            let run = || dunlin_hunt::replay(kind, seed, None, None).unwrap().unwrap();
            assert_eq!(run(), run(), "{kind:?}, seed {seed}");
        }
    }
}
