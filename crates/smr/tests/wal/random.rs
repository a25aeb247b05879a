//! Random operations on a log, on a disk that crashes, stops and fails; after each crash, the state found is compared
//! with what was reported as durable.

use std::time::Duration;

use dunlin_net::random::Random;
use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{HardState, Position, Wal, WalConfig, WalError, open_stepped};

use super::model::{Model, State, look};
use super::small;

/// Seeds of one test run; each is another disk with its own history.
const SEEDS: u64 = 3000;
/// Crashes of each seed.
const LIVES: u64 = 6;
/// Steps between two crashes, at most.
const STEPS_MAX: u64 = 60;

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// What happened in all runs, so that a run that tests nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    torn: u64,
    stopped: u64,
    failed: u64,
    rolled: u64,
    compacted: u64,
    reset: u64,
    undone: u64,
    group: u64,
}

#[test]
fn what_was_durable_is_there_after_any_crash() {
    let mut seen = Seen::default();
    for seed in seeds() {
        let result = std::panic::catch_unwind(|| run(seed));
        let Ok(found) = result else { panic!("seed {seed}") };
        seen.torn += found.torn;
        seen.stopped += found.stopped;
        seen.failed += found.failed;
        seen.rolled += found.rolled;
        seen.compacted += found.compacted;
        seen.reset += found.reset;
        seen.undone += found.undone;
        seen.group += found.group;
    }
    println!("{seen:?}");
    let Seen { torn, stopped, failed, rolled, compacted, reset, undone, group } = seen;
    assert!(
        [torn, stopped, failed, rolled, compacted, reset, undone, group].iter().all(|times| *times > 0),
        "{seen:?}"
    );
}

fn run(seed: u64) -> Seen {
    let mut random = Random::new(seed);
    let flush_time = (Duration::from_nanos(1), Duration::from_nanos(50));
    let failing = if random.below(3) == 0 { 0.02 } else { 0.0 };
    let config = SimDiskConfig { flush_time, flush_failures: failing, ..SimDiskConfig::default() };
    let mut disk = SimDisk::new(!seed, config);
    let settings = WalConfig { segment_bytes: [1 << 10, 2 << 10, 8 << 10][random.below(3) as usize], ..small() };
    let mut seen = Seen::default();
    // Each seed has one group, or several that share the log.
    let groups = [1, 3][random.below(2) as usize];
    let mut models: Option<(Vec<Model>, dunlin_smr::wal::Ticket)> = None;
    for life in 0..LIVES {
        // Nothing disturbs the last opening.
        if life + 1 == LIVES {
            disk.configure(SimDiskConfig { flush_failures: 0.0, ..config });
        } else if random.below(4) == 0 {
            disk.stop_after(random.below(8));
        }
        let before = disk.faults();
        let (wal, opening) = match open_stepped(disk.clone(), settings) {
            Ok(opened) => opened,
            Err(WalError::Io { .. }) if disk.faults() > before => {
                seen.stopped += 1;
                disk = disk.crash(crash(&mut random));
                continue;
            }
            Err(error) => panic!("life {life}: {error}: {:?}", std::error::Error::source(&error)),
        };
        seen.torn += u64::from(opening.torn.is_some());
        let mut wals: Vec<Wal<SimDisk>> = (0..groups).map(|group| wal.of_group(group * 700)).collect();
        let found: Vec<State> = wals.iter_mut().map(look).collect();
        if let Some((models, durable)) = &models {
            for (model, found) in models.iter().zip(&found) {
                model.check_found(*durable, found);
                seen.undone += u64::from(found != model.now());
            }
        } else {
            assert!(found.iter().all(|found| *found == State::default()));
        }
        let mut now: Vec<Model> = found.into_iter().map(|found| Model::new(wal.durable(), found)).collect();
        if random.below(2) == 0 {
            disk.stop_after(random.below(40));
        }
        work(&mut random, &mut wals, &mut now, &mut seen);
        let mut wal = wals.swap_remove(0);
        let durable = wal.durable();
        let failed = wal.failure().is_some();
        assert!(!failed || disk.faults() > before, "life {life}: it failed, and its disk did not");
        seen.failed += u64::from(failed);
        if failed {
            // It stays failed, and accepts nothing.
            assert!(
                wal.append(dunlin_smr::wal::Entry {
                    index: wal.last().index + 1,
                    term: u64::MAX,
                    kind: 0,
                    payload: b""
                })
                .is_err()
            );
            wal.submit();
            let _ = wal.wait();
            assert_eq!(wal.durable(), durable);
        } else if random.below(8) == 0 {
            now.iter_mut().for_each(|now| now.submit(&mut wal));
            match wal.close() {
                // A log that was closed must lose nothing.
                Ok(_) => now = now.iter().map(|now| Model::new(durable, now.now().clone())).collect(),
                Err(why) => assert!(disk.faults() > before, "life {life}: {why:?}, and its disk did nothing"),
            }
        }
        models = Some((now, durable));
        disk = disk.crash(crash(&mut random));
    }
    seen
}

fn crash(random: &mut Random) -> Crash {
    if random.below(3) == 0 { Crash::Process } else { Crash::Power }
}

fn work(random: &mut Random, wals: &mut [Wal<SimDisk>], models: &mut [Model], seen: &mut Seen) {
    let term_of = |model: &Model| model.now().last.term.max(model.now().hard_state.term).max(1);
    let (mut now, mut term) = (0, models.iter().map(term_of).max().unwrap_or(1));
    let segments = wals[0].segments();
    for _ in 0..random.below(STEPS_MAX) {
        let group = random.below(wals.len() as u64) as usize;
        let (wal, model) = (&mut wals[group], &mut models[group]);
        match random.below(16) {
            0..=6 => {
                let len = if random.below(20) == 0 { random.below(3000) } else { random.below(120) };
                model.append(wal, term, len as usize);
            }
            7 => {
                term += random.below(3);
                model.set_hard_state(wal, HardState { term, vote: random.below(4), commit: model.now().last.index });
            }
            8 => {
                let (first, last) = (model.now().compaction.snapshot.index + 1, model.now().last.index);
                if first <= last && random.below(2) == 0 {
                    model.truncate(wal, random.between(first, last));
                }
            }
            9 => {
                let (snapshot, compacted) =
                    (model.now().compaction.snapshot.index, model.now().compaction.compacted.index);
                let last = model.now().last.index;
                if snapshot < last && random.below(2) == 0 {
                    let snapshot = random.between((snapshot + 1).max(compacted), last);
                    model.compact(wal, snapshot, random.between(compacted, snapshot));
                    seen.compacted += 1;
                }
            }
            10 => {
                if random.below(8) == 0 {
                    let after = model.now().compaction.snapshot.index + 1;
                    let index = random.between(after, model.now().last.index.max(after) + 10);
                    term += 1;
                    model.reset(wal, Position { index, term });
                    seen.reset += 1;
                }
            }
            // One group's submit includes the changes of the others.
            11..=13 => models.iter_mut().for_each(|model| model.submit(wal)),
            _ => {
                now += random.below(80);
                let before = wal.durable();
                wal.stepper().unwrap().step(now);
                seen.group += u64::from(wal.durable() > before);
            }
        }
    }
    seen.rolled += u64::from(wals[0].segments() > segments);
}
