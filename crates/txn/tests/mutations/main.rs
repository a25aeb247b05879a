//! Planted bugs, each of which a seed of the simulated tests must find.
//!
//! `cargo test -p dunlin-txn --features mutations --test mutations -- --nocapture`

use std::panic::catch_unwind;

use dunlin_hunt::txn::{scenarios, service};
use dunlin_txn::mutation::{Mutation, plant};

const SEEDS: u64 = 100;

/// Whether a seed finds the planted bug.
fn finds(mutation: Mutation, seed: u64) -> bool {
    if mutation == Mutation::ListedAgain {
        return catch_unwind(|| service::nodes_come_back(seed)).is_err();
    }
    catch_unwind(|| scenarios::harmed_packets(seed)).is_err()
        || catch_unwind(|| scenarios::crashed_nodes(seed)).is_err()
        || catch_unwind(|| scenarios::restarted_nodes(seed)).is_err()
        || catch_unwind(|| scenarios::strangers_stopped(seed)).is_err()
}

// One test for all: a planted bug affects the whole process.
#[test]
fn planted_bugs_are_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        plant(Some(*mutation));
        match (0..SEEDS).find(|seed| finds(*mutation, *seed)) {
            Some(seed) => {
                eprintln!("{mutation:?}: found by seed {seed}");
                plant(None);
                // The seed must fail only because of the bug.
                assert!(!finds(*mutation, seed), "seed {seed} fails without a planted bug");
            }
            None => missed.push(*mutation),
        }
    }
    plant(None);
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
