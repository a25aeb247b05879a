//! The fault hunt of the key-value service: every history is linearizable, and seeds repeat exactly.

use std::fs;
use std::path::Path;

use dunlin_hunt::{Hunt, Kind};
use dunlin_serve::Interrupt;

/// Seeds of a normal test run; for more, set `DUNLIN_SEEDS` or use `dunlin sim hunt --kind kv`.
const SEEDS: u64 = 30;

#[test]
fn every_history_is_linearizable() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let hunt = Hunt { kind: Kind::Kv, first: 0, seeds: Some(seeds), time: None, jobs: 2 };
    let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
    if let Some(failure) = failure {
        panic!("seed {}: {}", failure.seed, failure.why);
    }
    assert_eq!(progress.seeds, seeds);
    let seeds = &progress.undecided_seeds;
    assert!(progress.undecided <= progress.undecided_max(), "{} keys are undecided: {seeds:?}", progress.undecided);
    let (calls, packets, undecided) = (progress.calls, progress.packets, progress.undecided);
    println!("{calls} operations, {packets} packets, {undecided} keys undecided, {:?}", progress.elapsed);
}

#[test]
fn a_seed_gives_the_same_history_again() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hunt-kv-again");
    for seed in [1, 2, 3] {
        let traced = dunlin_hunt::replay(Kind::Kv, seed, None, Some(&directory)).unwrap().unwrap();
        let again = dunlin_hunt::replay(Kind::Kv, seed, None, None).unwrap().unwrap();
        assert_eq!(traced, again);
        let calls = fs::read_to_string(directory.join("calls.txt")).unwrap();
        assert_eq!(calls.lines().count() as u64, traced.calls);
    }
}
