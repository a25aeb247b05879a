//! Planted bugs, each of which a seed of the simulated tests must find.
//!
//! `cargo test -p dunlin-seq --features mutations --test mutations -- --nocapture`

use std::panic::catch_unwind;

use dunlin_hunt::seq::harness::Keeps;
use dunlin_hunt::seq::scenarios;
use dunlin_seq::Counter;
use dunlin_seq::mutation::{Mutation, plant};

const SEEDS: u64 = 2_000;

/// Whether a seed finds the planted bug.
fn finds(mutation: Mutation, seed: u64) -> bool {
    match mutation {
        Mutation::AdditionNotAtomic => threads_share_a_counter().is_err(),
        Mutation::TermNotChecked
        | Mutation::RangeEndPassed
        | Mutation::TermFromAnswer
        | Mutation::FencingIgnored
        | Mutation::NoWaitForTerm
        | Mutation::BeginsBelowReserved
        | Mutation::FormerHolderReserves
        | Mutation::RenewalOverlooked => catch_unwind(|| scenarios::replicated(seed, Keeps::Replicas)).is_err(),
        Mutation::TermBeyondLease | Mutation::BeginsBelowEntry => {
            catch_unwind(|| scenarios::replicated(seed, Keeps::Manager)).is_err()
        }
        Mutation::EpochNotChecked | Mutation::EpochForgotten => catch_unwind(|| scenarios::slow_clock(seed)).is_err(),
        _ => {
            catch_unwind(|| scenarios::paused_hosts(seed)).is_err()
                || catch_unwind(|| scenarios::restarts(seed)).is_err()
        }
    }
}

/// The simulator has one thread, so races between threads are tested on real threads.
fn threads_share_a_counter() -> Result<(), String> {
    let counter = Counter::starting_at(0).expect("numbers from zero");
    let draw = || (0..20_000).map(|_| counter.draw(|| 0, 1).expect("there are enough").start).collect::<Vec<u64>>();
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(draw));
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread that draws")).collect()
    });
    all.sort_unstable();
    if all.windows(2).any(|two| two[0] == two[1]) { Err("a number came twice".into()) } else { Ok(()) }
}

// One test for all: a planted bug affects the whole process.
#[test]
fn planted_bugs_are_found() {
    std::panic::set_hook(Box::new(|_| {}));
    assert_eq!(threads_share_a_counter(), Ok(()), "without a bug");
    let only = std::env::var("DUNLIN_MUTATION").ok();
    let (mut missed, mut fail_anyway) = (Vec::new(), Vec::new());
    for mutation in Mutation::ALL {
        if only.as_ref().is_some_and(|only| *only != format!("{mutation:?}")) {
            continue;
        }
        plant(Some(*mutation));
        match (0..SEEDS).find(|seed| finds(*mutation, *seed)) {
            Some(seed) => {
                eprintln!("{mutation:?}: found by seed {seed}");
                plant(None);
                // The seed must fail only because of the bug.
                if finds(*mutation, seed) {
                    fail_anyway.push((*mutation, seed));
                }
            }
            None => missed.push(*mutation),
        }
    }
    plant(None);
    let _ = std::panic::take_hook();
    assert!(fail_anyway.is_empty(), "these seeds fail without a planted bug: {fail_anyway:?}");
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
