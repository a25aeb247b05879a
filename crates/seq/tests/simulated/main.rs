//! Sequencers in the simulated datacenter, with RPC and datagram clients, whose calls are judged.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

use dunlin_hunt::seq::harness::{Keeps, Seen};
use dunlin_hunt::seq::scenarios;

/// Seeds to run, from zero.
fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(few),
    };
    seeds.inspect(|seed| println!("seed {seed}"))
}

/// Whether all seeds of a test run: only together do they see enough.
fn is_whole() -> bool {
    std::env::var("DUNLIN_SEED").is_err()
}

/// Adds up the observations of all seeds, and checks that the faults had an effect.
fn sum(what: &str, all: impl Iterator<Item = Seen>) {
    let (mut calls, mut unanswered, mut late, mut wrong, mut repeated) = (0, 0, 0, 0, 0);
    for seen in all {
        calls += seen.drawn.len() as u64;
        unanswered += seen.unanswered;
        late += seen.late;
        wrong += seen.wrong_guesses;
        repeated += seen.repeated;
    }
    println!(
        "{what}: {calls} calls, {unanswered} unanswered, {late} late answers, {wrong} wrong guesses, {repeated} repeated"
    );
    assert!(!is_whole() || calls > 500 && late > 0 && wrong > 0 && repeated > 0, "the faults were not felt");
}

#[test]
fn numbers_rise_while_packets_come_to_harm() {
    sum("harmed packets", seeds(40).map(scenarios::harmed_packets));
}

#[test]
fn numbers_rise_while_hosts_stand_still() {
    sum("paused hosts", seeds(30).map(scenarios::paused_hosts));
}

#[test]
fn numbers_rise_over_restarts() {
    sum("restarts", seeds(30).map(scenarios::restarts));
}

#[test]
fn numbers_rise_whichever_sequencer_is_in_office() {
    hunt("replicated", Keeps::Replicas);
}

#[test]
fn numbers_rise_whichever_sequencer_holds_the_lease() {
    hunt("coordinated", Keeps::Manager);
}

/// Epochs keep each client from the sequencer that was replaced, even if that one's clock is out of bounds.
#[test]
fn no_client_goes_back_to_a_sequencer_with_a_slow_clock() {
    sum("slow clocks", seeds(20).map(scenarios::slow_clock));
}

fn hunt(what: &str, keeps: Keeps) {
    let (mut taken, mut fenced, mut expired, mut ranges) = (0, 0, 0, 0);
    let hunted = seeds(30).map(|seed| {
        let hunted = scenarios::replicated(seed, keeps);
        taken += hunted.taken;
        fenced += hunted.fenced;
        expired += hunted.expired;
        ranges += hunted.ranges;
        hunted.seen
    });
    sum(what, hunted);
    println!("office was taken {taken} times, {fenced} were fenced, {expired} terms ended, {ranges} ranges");
    assert!(!is_whole() || taken > 60 && fenced > 0 && expired > 0 && ranges > 3 * taken);
}
