//! The fault hunt finds bugs that were planted on purpose. Run by: `cargo test -p dunlin-bench --features mutations --test mutations`.

use dunlin_bench::hunt::{self, Hunt};
use dunlin_bench::peer::Interrupt;
use dunlin_rpc::mutation::{Mutation, plant};

/// Seeds within which each is found.
const SEEDS: u64 = 300;

#[test]
fn each_planted_bug_is_found() {
    for mutation in Mutation::ALL {
        plant(Some(mutation));
        let hunt = Hunt { first: 0, seeds: Some(SEEDS), time: None, jobs: 1 };
        let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
        let failure = failure.unwrap_or_else(|| panic!("{mutation:?} was not found within {SEEDS} seeds"));
        println!("{mutation:?}: found by seed {}, after {} seeds: {}", failure.seed, progress.seeds, failure.why);
        let (plan, _) = hunt::shrink(failure.seed).unwrap_or_else(|| panic!("seed {} does not fail again", failure.seed));
        println!("it takes {} faults", plan.faults.len());
    }
    plant(None);
}
