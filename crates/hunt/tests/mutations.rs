//! The fault hunt finds deliberately planted bugs, from any starting seed. Run by: `cargo test -p dunlin-hunt
//! --features mutations --test mutations`.

use std::sync::Mutex;

use dunlin_hunt::{Hunt, Kind};
use dunlin_rpc::mutation::{Mutation, plant};
use dunlin_serve::Interrupt;

/// Number of seeds within which each bug must be found.
const SEEDS: u64 = 500;
/// The same for the key-value service: its clients check their sessions before they write, so that few writes are lost
/// half-way.
const KV_SEEDS: u64 = 3_000;
/// The same for replicated state machines.
const RAFT_SEEDS: u64 = 2_000;
/// The same for the cluster manager.
const COORD_SEEDS: u64 = 500;
/// A planted bug affects the whole process.
static PLANTING: Mutex<()> = Mutex::new(());
/// Starting seeds of the hunts.
const FIRST: [u64; 2] = [0, 100_000];

/// The location and the text of a broken promise; a history may follow it.
fn start_of(why: &str) -> String {
    why.lines().take(2).collect::<Vec<_>>().join(" ")
}

/// Whether a bug is among those that `DUNLIN_MUTATIONS` names; without it, all are.
fn is_wanted(mutation: &&impl std::fmt::Debug) -> bool {
    let only = std::env::var("DUNLIN_MUTATIONS").ok();
    only.is_none_or(|names| names.split(',').any(|name| name == format!("{mutation:?}")))
}

#[test]
fn each_planted_bug_is_found() {
    let _one_at_a_time = PLANTING.lock().unwrap();
    for &mutation in Mutation::ALL {
        plant(Some(mutation));
        for first in FIRST {
            let hunt = Hunt { kind: Kind::Rpc, first, seeds: Some(SEEDS), time: None, jobs: 2 };
            let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
            let failure =
                failure.unwrap_or_else(|| panic!("{mutation:?} was not found within {SEEDS} seeds from {first}"));
            let why = start_of(&failure.why);
            println!("{mutation:?}: found by seed {}, after {} seeds: {why}", failure.seed, progress.seeds);
            let again = dunlin_hunt::replay(Kind::Rpc, failure.seed, None, None).unwrap();
            assert_eq!(again.unwrap_err().why, failure.why, "it fails again, and in the same way");
        }
    }
    plant(None);
}

/// The bugs of the key-value service, and those of the protocol below it that its clients can observe.
#[test]
fn each_bug_that_a_client_sees_is_found_in_histories() {
    use dunlin_kv::mutation as kv;
    let find = |what: &str| {
        let hunt = Hunt { kind: Kind::Kv, first: 0, seeds: Some(KV_SEEDS), time: None, jobs: 2 };
        let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
        let failure = failure.unwrap_or_else(|| panic!("{what} was not found within {KV_SEEDS} seeds"));
        println!("{what}: found by seed {}, after {} seeds: {}", failure.seed, progress.seeds, start_of(&failure.why));
        assert!(failure.why.contains("is not linearizable"), "{}", failure.why);
        let again = dunlin_hunt::replay(Kind::Kv, failure.seed, None, None).unwrap();
        assert_eq!(again.unwrap_err().why, failure.why, "it fails again, and in the same way");
    };
    let _one_at_a_time = PLANTING.lock().unwrap();
    for &mutation in kv::Mutation::ALL {
        kv::plant(Some(mutation));
        find(&format!("{mutation:?}"));
    }
    kv::plant(None);
    plant(Some(Mutation::RequestRunsAgain));
    find("RequestRunsAgain");
    plant(None);
}

/// The bugs of replicated state machines.
#[test]
fn each_bug_of_replication_is_found() {
    use dunlin_smr::mutation as smr;
    let _one_at_a_time = PLANTING.lock().unwrap();
    for &mutation in smr::Mutation::ALL.iter().filter(is_wanted) {
        smr::plant(Some(mutation));
        let hunt = Hunt { kind: Kind::Raft, first: 0, seeds: Some(RAFT_SEEDS), time: None, jobs: 2 };
        let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
        let failure = failure.unwrap_or_else(|| panic!("{mutation:?} was not found within {RAFT_SEEDS} seeds"));
        let why = start_of(&failure.why);
        println!("{mutation:?}: found by seed {}, after {} seeds: {why}", failure.seed, progress.seeds);
        let again = dunlin_hunt::replay(Kind::Raft, failure.seed, None, None).unwrap();
        assert_eq!(again.unwrap_err().why, failure.why, "it fails again, and in the same way");
    }
    smr::plant(None);
}

/// The bugs of the cluster manager.
#[test]
fn each_bug_of_the_cluster_manager_is_found() {
    use dunlin_coord::mutation as coord;
    let _one_at_a_time = PLANTING.lock().unwrap();
    for &mutation in coord::Mutation::ALL.iter().filter(is_wanted) {
        coord::plant(Some(mutation));
        let hunt = Hunt { kind: Kind::Coord, first: 0, seeds: Some(COORD_SEEDS), time: None, jobs: 2 };
        let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
        let failure = failure.unwrap_or_else(|| panic!("{mutation:?} was not found within {COORD_SEEDS} seeds"));
        let why = start_of(&failure.why);
        println!("{mutation:?}: found by seed {}, after {} seeds: {why}", failure.seed, progress.seeds);
        let again = dunlin_hunt::replay(Kind::Coord, failure.seed, None, None).unwrap();
        assert_eq!(again.unwrap_err().why, failure.why, "it fails again, and in the same way");
    }
    coord::plant(None);
}
