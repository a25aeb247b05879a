//! Transactions in the simulated datacenter: nodes of several cores, each with a participant and a client, run random
//! transactions on few keys. A judge checks all reads and writes.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

mod limits;
mod messages;
mod queue;
mod recovery;

use dunlin_hunt::txn::{crashes, scenarios};

/// Seeds to run, from zero.
fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(few),
    };
    seeds.inspect(|seed| println!("seed {seed}"))
}

/// Packets are lost, duplicated and reordered; no node crashes.
#[test]
fn transactions_are_serializable_while_packets_come_to_harm() {
    for seed in seeds(20) {
        scenarios::harmed_packets(seed);
    }
}

/// Sessions end, but no transaction is left in doubt by that.
#[test]
fn transactions_go_on_after_nodes_stood_still() {
    for seed in seeds(15) {
        scenarios::paused_nodes(seed);
    }
}

/// The others commit without it, and it commits nothing without them.
#[test]
fn a_node_that_is_cut_off_commits_nothing() {
    let found: Vec<crashes::Found> = seeds(15).map(scenarios::node_cut_off).collect();
    let in_doubt: usize = found.iter().map(|found| found.in_doubt).sum();
    assert!(in_doubt > 0, "nobody was cut off while it committed: {found:?}");
}

/// No transaction waits for a client that is gone.
#[test]
fn clients_that_stop_leave_no_locks() {
    let found: Vec<crashes::Found> = seeds(20).map(scenarios::strangers_stopped).collect();
    let fenced: usize = found.iter().map(|found| found.recovered).sum();
    assert!(fenced > 0, "nobody stopped with a lock: {found:?}");
}

/// A cluster survives more failures than it has copies, if there is time to fill new ones between them.
#[test]
fn new_copies_are_filled_while_transactions_run() {
    let found: Vec<crashes::Found> = seeds(16).map(scenarios::refilled_copies).collect();
    let (filled, recovered): (usize, usize) =
        found.iter().fold((0, 0), |sum, found| (sum.0 + found.in_doubt, sum.1 + found.recovered));
    assert!(filled > 100 && recovered > 0, "{filled} copies, {recovered} transactions");
}

/// A process that replaces another is not mistaken for it.
#[test]
fn transactions_survive_nodes_that_are_started_again() {
    let recovered: usize = seeds(20).map(|seed| scenarios::restarted_nodes(seed).recovered).sum();
    assert!(recovered > 0, "nobody was started again while it mattered");
}

/// As many nodes crash as the cluster tolerates, at random moments, also during the recovery from an earlier crash.
#[test]
fn transactions_survive_nodes_that_crash() {
    let found: Vec<crashes::Found> = seeds(30).map(scenarios::crashed_nodes).collect();
    // Some crashes must have hit transactions in progress.
    let in_doubt: usize = found.iter().map(|found| found.in_doubt).sum();
    let recovered: usize = found.iter().map(|found| found.recovered).sum();
    println!("{in_doubt} transactions in doubt, {recovered} records recovered");
    assert!(in_doubt > 0 && recovered > 0);
}
