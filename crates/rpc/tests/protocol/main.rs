//! The protocol under random work and random faults, each run derived from a seed.
//!
//! A run puts two to four endpoints into one thread, over the loopback network with its fake clock, each behind a fault
//! injector. It issues calls of every kind, cancels some, closes sessions, restarts and silences endpoints, while
//! packets are lost, repeated, reordered, delayed and, in some runs, corrupted. Then the network heals, and the
//! following must hold:
//!
//! - each call ends exactly once, and no handler ran twice for one request, nor for a request that "was not sent";
//! - payloads arrive as they were sent, and request buffers are returned unchanged;
//! - no call, credit, session, task or buffer is left over.
//!
//! Packets carry no checksum of their own (UDP's does that), so runs with corruption promise less; see [`scenario`].
//!
//! | File | What it holds |
//! |---|---|
//! | [`scenario`] | what a seed determines |
//! | [`world`] | the endpoints, the clock, and the code that drives both |
//! | [`workload`] | what happens at random times |
//! | [`verdict`] | what must hold in the end |
//!
//! The endpoints' behaviour and its judges are shared with the fault hunt: `dunlin_trial`.
//!
//! `DUNLIN_SEEDS=100000 cargo test -p dunlin-rpc --test protocol` runs more seeds; a failure prints the command that
//! repeats it.

mod scenario;
mod verdict;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use scenario::Scenario;
use world::World;

/// Seeds of a normal test run.
const SEEDS: u64 = 6_000;

fn run(seed: u64) {
    let before = dunlin_rpc::msgbuf::outstanding();
    let mut world = World::new(Scenario::draw(seed));
    world.work();
    world.heal();
    verdict::all_calls_end(&mut world);
    verdict::nothing_is_left_when_quiet(&mut world);
    verdict::the_silent_are_given_up(&mut world);
    verdict::nothing_is_left_when_closed(&mut world);
    drop(world);
    let after = dunlin_rpc::msgbuf::outstanding();
    assert_eq!(after, before, "message buffers were leaked");
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number")))
}

#[test]
fn every_seed_keeps_every_promise() {
    if let Some(seed) = number_from("DUNLIN_SEED") {
        println!("{:#?}", Scenario::draw(seed));
        return run(seed);
    }
    let first = number_from("DUNLIN_FIRST_SEED").unwrap_or(0);
    let end = first + number_from("DUNLIN_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(u64::MAX);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end || failed.load(Relaxed) != u64::MAX {
                        return;
                    }
                    if catch_unwind(AssertUnwindSafe(|| run(seed))).is_err() {
                        failed.fetch_min(seed, Relaxed);
                    }
                }
            });
        }
    });
    let seed = failed.into_inner();
    assert!(seed == u64::MAX, "repeat with: DUNLIN_SEED={seed} cargo test -p dunlin-rpc --test protocol");
}
