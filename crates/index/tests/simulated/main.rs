//! The index service in the simulated datacenter: clients on hosts of their own work at the same time, packets come to
//! harm, hosts stand still, and a judge looks at all that the clients saw.
//!
//! `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.

mod world;

use dunlin_judge::map;
use dunlin_sim::Fault;
use dunlin_trial::Random;

use self::world::{CLIENTS, MILLISECOND, World};

/// Seeds to run, from zero.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    match number("DUNLIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DUNLIN_SEEDS").unwrap_or(few),
    }
}

/// Whether all seeds of a test run: only together do they see enough.
fn is_whole() -> bool {
    std::env::var("DUNLIN_SEED").is_err()
}

#[test]
fn a_judge_finds_no_fault_in_what_clients_saw_while_packets_came_to_harm_and_hosts_stood_still() {
    let (mut operations, mut pages, mut unknown, mut range_deletes) = (0, 0, 0, 0);
    for seed in seeds(16) {
        println!("seed {seed}");
        let mut world = World::new(seed, 2 * MILLISECOND);
        let mut random = Random::new(seed ^ 0x9a5e);
        world.harm_packets();
        for _ in 0..6 {
            world.run_for(random.between(1, 20) * MILLISECOND);
            let host = if random.chance(50) { 0 } else { random.between(1, CLIENTS.into()) as u32 };
            let pause = world.datacenter.inject(Fault::Pause { host }).unwrap();
            world.run_for(random.between(1, 60) * MILLISECOND);
            world.datacenter.lift(pause);
        }
        let seen = world.finish();
        let report = map::check(&seen.history).unwrap();
        assert!(report.is_right(), "seed {seed}: {report}");
        operations += seen.history.len();
        pages += seen.pages;
        unknown += seen.unknown;
        range_deletes += seen.range_deletes;
    }
    println!(
        "{operations} operations, {pages} pages, {range_deletes} ranges removed, {unknown} writes with an unknown outcome"
    );
    assert!(!is_whole() || operations > 3000 && pages > 500 && unknown > 0, "{operations}, {pages}, {unknown}");
    assert!(!is_whole() || range_deletes > 20, "{range_deletes} ranges removed");
}

/// Worker threads are turned every 10 ms only, as if each page took so long. Look-ups take microseconds all the same.
#[test]
fn no_get_waits_for_the_pages_that_workers_make() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let mut world = World::new(seed, 10 * MILLISECOND);
        world.run_for(200 * MILLISECOND);
        let seen = world.finish();
        assert!(seen.pages > 50, "seed {seed}: {} pages", seen.pages);
        let (get, page) = (seen.longest_get, seen.longest_page);
        assert!(page > 5 * MILLISECOND, "seed {seed}: the longest page took {page} ns");
        assert!(get < MILLISECOND / 5, "seed {seed}: the longest look-up took {get} ns");
    }
}

/// The memory of a server is lost with it: scans that it began end with an error, and no page of the new one is taken
/// for a part of theirs.
#[test]
fn scans_end_when_their_server_crashes() {
    let mut restarted = 0;
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut world = World::new(seed, MILLISECOND / 2);
        let mut random = Random::new(seed ^ 0x4e57);
        world.harm_packets();
        for _ in 0..4 {
            world.run_for(random.between(3, 20) * MILLISECOND);
            world.restart(random.between(0, 5) * MILLISECOND);
        }
        world.run_for(20 * MILLISECOND);
        restarted += world.finish().restarted;
    }
    println!("{restarted} scans were ended");
    assert!(!is_whole() || restarted > 0);
}
