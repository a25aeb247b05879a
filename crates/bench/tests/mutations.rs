//! The fault hunt finds bugs that were planted on purpose, from wherever it starts. Run by: `cargo test -p dunlin-bench --features mutations --test mutations`.

use dunlin_bench::hunt::{self, Hunt, Kind};
use dunlin_bench::peer::Interrupt;
use dunlin_rpc::mutation::{Mutation, plant};

/// Seeds within which each is found.
const SEEDS: u64 = 100;
/// Where hunts start.
const FIRST: [u64; 5] = [0, 100_000, 200_000, 300_000, 400_000];

#[test]
fn each_planted_bug_is_found() {
    for mutation in Mutation::ALL {
        plant(Some(mutation));
        for first in FIRST {
            let hunt = Hunt { kind: Kind::Rpc, first, seeds: Some(SEEDS), time: None, jobs: 1 };
            let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
            let failure = failure.unwrap_or_else(|| panic!("{mutation:?} was not found within {SEEDS} seeds from {first}"));
            let why = failure.why.lines().take(2).collect::<Vec<_>>().join(" ");
            println!("{mutation:?}: found by seed {}, after {} seeds: {why}", failure.seed, progress.seeds);
            let again = hunt::replay(Kind::Rpc, failure.seed, None, None).unwrap();
            assert_eq!(again.unwrap_err().why, failure.why, "it fails again, and in the same way");
        }
    }
    plant(None);
}
