//! One history, with a crash at each of its steps and every kind of loss, and a crash at each step of the recovery from
//! that.

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{HardState, Position, Wal, WalError, open_stepped};

use super::model::{Model, look};
use super::small;

/// Variants of each crash.
const SEEDS: u64 = 12;

/// Two flushes never overlap, but batches come faster than flushes.
fn history(wal: &mut Wal<SimDisk>, model: &mut Model) {
    model.set_hard_state(wal, HardState { term: 1, vote: 2, commit: 0 });
    for len in [10, 200, 600, 0, 900] {
        model.append(wal, 1, len);
        model.submit(wal);
        model.append(wal, 1, len / 2);
        model.submit(wal);
        let _ = wal.wait();
    }
    model.truncate(wal, 8);
    model.append(wal, 2, 700);
    model.submit(wal);
    model.compact(wal, 6, 5);
    model.append(wal, 2, 300);
    model.submit(wal);
    let _ = wal.wait();
    model.append(wal, 3, 800);
    model.compact(wal, 9, 9);
    model.submit(wal);
    let _ = wal.wait();
    model.reset(wal, Position { index: 20, term: 4 });
    model.append(wal, 4, 100);
    model.submit(wal);
    model.append(wal, 4, 1500);
    model.submit(wal);
    let _ = wal.wait();
}

/// Runs the history until the disk stops after this many changes.
fn until(seed: u64, changes: u64) -> (SimDisk, Model, dunlin_smr::wal::Ticket, bool) {
    let disk = SimDisk::new(seed, SimDiskConfig::default());
    let (mut wal, _) = open_stepped(disk.clone(), small()).unwrap();
    let mut model = Model::new(wal.durable(), look(&mut wal));
    disk.stop_after(changes);
    history(&mut wal, &mut model);
    let durable = wal.durable();
    (disk, model, durable, wal.failure().is_some())
}

/// Opens a log, unless the disk stops meanwhile: a crash causes no other error.
fn try_open(disk: &SimDisk) -> Option<Wal<SimDisk>> {
    let before = disk.faults();
    match open_stepped(disk.clone(), small()) {
        Ok((wal, _)) => Some(wal),
        Err(WalError::Io { .. }) if disk.faults() > before => None,
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// A new log and the openings after it are all interrupted: whatever they leave behind, the next opening still
/// succeeds.
#[test]
fn a_log_is_made_whatever_crashes_before_have_left() {
    let mut is_made = [0, 0];
    for seed in 0..8 {
        for (first, second) in (0..14).flat_map(|first| (0..14).map(move |second| (first, second))) {
            for crash in [Crash::Process, Crash::Power] {
                println!("seed {seed}, {first} and {second} changes, {crash:?}");
                let mut disk = SimDisk::new(seed, SimDiskConfig::default());
                for (count, changes) in is_made.iter_mut().zip([first, second]) {
                    disk.stop_after(changes);
                    *count += u64::from(try_open(&disk).is_some());
                    disk = disk.crash(crash);
                }
                let (mut wal, _) = open_stepped(disk, small()).unwrap();
                let mut model = Model::new(wal.durable(), look(&mut wal));
                model.append(&mut wal, 1, 50);
                model.submit(&mut wal);
                wal.wait().unwrap();
                let (mut wal, opening) = open_stepped(wal.disk().crash(Crash::Power), small()).unwrap();
                assert_eq!((&look(&mut wal), opening.is_new), (model.now(), false));
            }
        }
    }
    assert!(is_made.iter().all(|made| (1..3136).contains(made)), "{is_made:?}");
}

#[test]
fn a_crash_at_every_step_loses_nothing_that_was_durable() {
    let mut changes = 0;
    loop {
        let mut is_stopped = false;
        for seed in 0..SEEDS {
            let (disk, model, durable, failed) = until(seed, changes);
            is_stopped |= failed;
            println!("seed {seed}, {changes} changes");
            let disk = disk.crash(if seed == 0 { Crash::Process } else { Crash::Power });
            let (mut wal, _) = open_stepped(disk, small()).unwrap();
            let found = look(&mut wal);
            model.check_found(durable, &found);
            // The log continues from there.
            let mut model = Model::new(wal.durable(), found);
            model.append(&mut wal, 9, 50);
            model.submit(&mut wal);
            wal.wait().unwrap();
            let disk = wal.disk().crash(Crash::Power);
            let (mut wal, opening) = open_stepped(disk, small()).unwrap();
            assert_eq!((&look(&mut wal), opening.torn), (model.now(), None));
        }
        if !is_stopped {
            break;
        }
        changes += 1;
    }
    assert!(changes > 60, "the history has {changes} steps");
}

#[test]
fn a_crash_at_every_step_of_a_recovery_loses_nothing_either() {
    for changes in (0..70).step_by(3) {
        for seed in 0..SEEDS {
            for later in 0.. {
                println!("seed {seed}, {changes} changes, {later} changes of the recovery");
                let (disk, model, durable, _) = until(seed, changes);
                let disk = disk.crash(Crash::Power);
                disk.stop_after(later);
                let is_over = try_open(&disk).is_some();
                let (mut wal, _) = open_stepped(disk.crash(Crash::Power), small()).unwrap();
                model.check_found(durable, &look(&mut wal));
                if is_over {
                    break;
                }
            }
        }
    }
}
