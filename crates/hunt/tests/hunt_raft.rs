//! The fault hunt of replicated state machines: logs and histories are correct, and seeds repeat exactly.

use std::fs;
use std::path::Path;

use dunlin_hunt::{Hunt, Kind};
use dunlin_serve::Interrupt;

/// Seeds of a normal test run; for more, set `DUNLIN_SEEDS` or use `dunlin sim hunt --kind raft`.
const SEEDS: u64 = 30;

#[test]
fn replicas_keep_their_promises() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let hunt = Hunt { kind: Kind::Raft, first: 0, seeds: Some(seeds), time: None, jobs: 2 };
    let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
    if let Some(failure) = failure {
        panic!("seed {}: {}", failure.seed, failure.why);
    }
    assert_eq!(progress.seeds, seeds);
    let seeds = &progress.undecided_seeds;
    assert!(progress.undecided <= progress.undecided_max(), "{} keys are undecided: {seeds:?}", progress.undecided);
    assert!(progress.hung > 0, "no disk has hung");
    let (calls, packets, undecided) = (progress.calls, progress.packets, progress.undecided);
    println!("{calls} operations, {packets} packets, {undecided} keys undecided, {:?}", progress.elapsed);
}

#[test]
fn a_seed_gives_the_same_history_again() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hunt-raft-again");
    for seed in [1, 2, 3] {
        let traced = dunlin_hunt::replay(Kind::Raft, seed, None, Some(&directory)).unwrap().unwrap();
        let again = dunlin_hunt::replay(Kind::Raft, seed, None, None).unwrap().unwrap();
        assert_eq!(traced, again);
        let calls = fs::read_to_string(directory.join("calls.txt")).unwrap();
        assert_eq!(calls.lines().count() as u64, traced.calls);
    }
}

#[test]
fn a_replica_with_a_damaged_log_is_replaced_however_small_the_pieces_of_snapshots_are() {
    // Snapshots were written a byte at a time, each with a flush of up to 10 ms, and the learner got none in 300 s.
    dunlin_hunt::replay(Kind::Raft, 987_597_518_073, None, None).unwrap().unwrap();
}

#[test]
fn the_only_voter_elects_itself_once_its_log_is_durable() {
    // A leader was deposed while it flushed an entry, and another one made it the only voter: the library panicked.
    dunlin_hunt::replay(Kind::Raft, 264_298_976_969, None, None).unwrap().unwrap();
}

#[test]
fn a_leader_whose_disk_hangs_gives_way_as_soon_as_the_disks_of_others_allow() {
    // Flushes took as long as an election timeout: so did what the next leader lacked, and each vote.
    dunlin_hunt::replay(Kind::Raft, 453_629_787_123, None, None).unwrap().unwrap();
}

/// It was cut off until then. The others would wait for the number of their cluster for ever.
#[test]
fn the_disk_of_the_founder_does_not_fail_before_it_has_told_others() {
    dunlin_hunt::replay(Kind::Raft, 566_895_424_072, None, None).unwrap().unwrap();
}
