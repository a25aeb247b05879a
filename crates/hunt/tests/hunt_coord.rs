//! The fault hunt of the cluster manager: its answers keep its promises, and seeds repeat exactly.

use std::fs;
use std::path::Path;

use dunlin_hunt::{Hunt, Kind};
use dunlin_serve::Interrupt;

/// Seeds of a normal test run; for more, set `DUNLIN_SEEDS` or use `dunlin sim hunt --kind coord`.
const SEEDS: u64 = 30;

#[test]
fn the_cluster_manager_keeps_its_promises() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let hunt = Hunt { kind: Kind::Coord, first: 0, seeds: Some(seeds), time: None, jobs: 2 };
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
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hunt-coord-again");
    for seed in [1, 2, 3] {
        let traced = dunlin_hunt::replay(Kind::Coord, seed, None, Some(&directory)).unwrap().unwrap();
        let again = dunlin_hunt::replay(Kind::Coord, seed, None, None).unwrap().unwrap();
        assert_eq!(traced, again);
        let calls = fs::read_to_string(directory.join("calls.txt")).unwrap();
        assert_eq!(calls.lines().count() as u64, traced.calls);
    }
}

#[test]
fn a_learner_catches_up_with_large_values_on_a_slow_disk() {
    // A snapshot of 466 kB was written in pieces of 47 bytes with flushes of 5 ms: 50 s for each replica.
    dunlin_hunt::replay(Kind::Coord, 252_439_345_997, None, None).unwrap().unwrap();
}

#[test]
fn a_watcher_has_long_answers_beside_heartbeats() {
    // On a session with one credit, a page of 232 kB advanced by one packet per heartbeat.
    dunlin_hunt::replay(Kind::Coord, 5_031_267, None, None).unwrap().unwrap();
}

#[test]
fn requests_do_not_turn_each_other_from_one_follower_to_the_next() {
    // Two requests of a client shared the replica to ask next, and neither ever came to the leader that all named.
    dunlin_hunt::replay(Kind::Coord, 263_366_931_343, None, None).unwrap().unwrap();
}

#[test]
fn the_ending_lets_new_watchers_read_the_history() {
    // A watcher began again in the last round of the ending, and was judged before it had asked for anything.
    dunlin_hunt::replay(Kind::Coord, 263_366_931_347, None, None).unwrap().unwrap();
}

#[test]
fn leaders_stay_long_enough_to_fail_a_member_that_does_not_know_it_joined() {
    // Flushes of up to 10 ms beside elections of 4.1 ms: all members joined and none was told, and no leader stayed
    // until they had failed, so that they could join again.
    dunlin_hunt::replay(Kind::Coord, 154_037_471_603, None, None).unwrap().unwrap();
}

#[test]
fn requests_follow_a_path_on_which_the_first_ones_are_late() {
    // A follower never caught up, since requests became longer again while they were on their way; and a leader lost its
    // lead each time, because nobody else was left to hear it.
    for seed in [694_426_630_910, 179_991_217_908] {
        dunlin_hunt::replay(Kind::Coord, seed, None, None).unwrap().unwrap();
    }
}

#[test]
fn commands_that_take_longer_than_an_attempt_are_answered() {
    // A snapshot every seven entries and flushes of 10 ms: commands took longer than the 44 ms of each attempt.
    dunlin_hunt::replay(Kind::Coord, 93_382_321_523, None, None).unwrap().unwrap();
}

#[test]
fn a_leader_gives_way_only_if_others_can_lead() {
    // The disks of three of five voters hung at the same time.
    dunlin_hunt::replay(Kind::Coord, 725_990_826_073, None, None).unwrap().unwrap();
}

#[test]
fn members_are_heard_though_an_attempt_takes_longer_than_a_failure_timeout() {
    // A leader was cut off together with a client, which waited 96 ms and then twice that for its answers: longer than
    // the next leader waited for a heartbeat.
    for seed in [68_402_925_657, 599_541_410_966, 16_367_217_901, 627_104_765_533, 882_899_164_670] {
        dunlin_hunt::replay(Kind::Coord, seed, None, None).unwrap().unwrap();
    }
}

#[test]
fn the_only_voter_may_lead_twice_in_a_term_that_nobody_heard_of() {
    // Its disk hung when it was the only voter. It elected itself, crashed, and elected itself in the same term again.
    // The hunt took its entries for those of two leaders. Learners hear of such a term only when it is durable: that is
    // tested in smr (`the_only_voter_is_silent_until_its_vote_is_durable`).
    dunlin_hunt::replay(Kind::Coord, 145_567_975_642, None, None).unwrap().unwrap();
}

#[test]
fn commands_come_no_faster_than_they_are_executed() {
    // An entry in each append, one append in flight, flushes of 10 ms, and eight clients that retried after 75 ms. In the
    // last, clients had 27 ms for an operation.
    for seed in [488_133_605_956, 986_946_674_446, 40_335_950_422] {
        dunlin_hunt::replay(Kind::Coord, seed, None, None).unwrap().unwrap();
    }
}

/// Its links are slow: answers to long requests take longer than an election timeout, while nothing else is sent.
#[test]
fn a_leader_whose_disk_hangs_gives_way_over_a_slow_path() {
    dunlin_hunt::replay(Kind::Coord, 729_015_338_679, None, None).unwrap().unwrap();
}
