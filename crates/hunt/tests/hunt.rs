//! Tests of the fault hunt itself: seeds repeat exactly, and its traces can be read.

use std::fs;
use std::path::{Path, PathBuf};

use dunlin_hunt::{Hunt, Kind, Scenario};
use dunlin_serve::Interrupt;
use dunlin_sim::{FaultPlan, Topology};

/// Seeds of a normal test run; for more, set `DUNLIN_SEEDS` or use `dunlin sim hunt`.
const SEEDS: u64 = 30;

#[test]
fn every_seed_keeps_every_promise() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let hunt = Hunt { kind: Kind::Rpc, first: 0, seeds: Some(seeds), time: None, jobs: 2 };
    let (progress, failure) = hunt.run(&Interrupt::default(), |_| {});
    if let Some(failure) = failure {
        panic!("seed {}: {}", failure.seed, failure.why);
    }
    assert_eq!(progress.seeds, seeds);
}

/// Seeds that once broke a promise. In the first two and the last, a request whose first half the server had given up
/// never ended (in the last, the client did not believe the server's refusal). In the other, a client with selective
/// recovery waited forever for answers of a go-back-N server.
const BROKE_A_PROMISE: [u64; 4] = [13_824, 101_732, 303_255, 900_000_508];

#[test]
fn what_was_mended_stays_so() {
    for seed in BROKE_A_PROMISE {
        if let Err(failure) = dunlin_hunt::replay(Kind::Rpc, seed, None, None).unwrap() {
            panic!("seed {seed}: {}", failure.why);
        }
    }
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn a_seed_gives_the_same_packets_again() {
    for seed in [1, 3, 5] {
        let [first, second] = ["first", "second"].map(|name| {
            let directory = directory(&format!("hunt-{seed}-{name}"));
            let story = dunlin_hunt::replay(Kind::Rpc, seed, None, Some(&directory)).unwrap().unwrap();
            let names = ["packets.pcap", "calls.txt", "queues.csv", "rtts.csv"];
            let files = names.map(|file| fs::read(directory.join(file)).unwrap());
            assert!(files.iter().all(|file| !file.is_empty()));
            (story, files)
        });
        assert_eq!(first.0, second.0);
        assert!(first.1 == second.1, "the traces of seed {seed} differ");
        assert_eq!(
            dunlin_hunt::replay(Kind::Rpc, seed, None, None).unwrap().unwrap().digest,
            first.0.digest,
            "a trace changes nothing"
        );
    }
}

#[test]
fn a_trace_holds_what_the_seed_means() {
    let directory = directory("hunt-meaning");
    dunlin_hunt::replay(Kind::Rpc, 4, None, Some(&directory)).unwrap().unwrap();
    let scenario = Scenario::draw(4);
    let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(Topology::from_toml(&text("topology.toml")).unwrap(), scenario.topology);
    assert_eq!(FaultPlan::from_toml(&text("faults.toml")).unwrap(), scenario.plan);
}

#[test]
fn other_faults_can_be_given() {
    let seed = (0..).find(|seed| !Scenario::draw(*seed).plan.faults.is_empty()).unwrap();
    let with = dunlin_hunt::replay(Kind::Rpc, seed, None, None).unwrap().unwrap();
    let without = dunlin_hunt::replay(Kind::Rpc, seed, Some(&FaultPlan::default()), None).unwrap().unwrap();
    assert_ne!(with.digest, without.digest);
}
