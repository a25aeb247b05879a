//! A snapshot that was handed over: the log continues while it is written, and forgets entries only when it is durable.

use std::time::Duration;

use dunlin_smr::log::{Batch, DurableLog, LogStore, Urgency};
use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Stepper, WalConfig, open_stepped};
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{GetEntriesContext, Storage};

/// The entry that the snapshot ends with, and the first that is kept.
const SNAPSHOT: u64 = 30;
const KEEP_FROM: u64 = 25;
/// Size of the snapshot: several blocks and pieces.
const STATE_BYTES: usize = 600_000;
const PIECE_BYTES: usize = 50_000;

fn open(disk: &SimDisk) -> (DurableLog<SimDisk>, Stepper<SimDisk>) {
    let config = WalConfig { segment_bytes: 4096, snapshot_piece_bytes: PIECE_BYTES, ..WalConfig::new(1) };
    let (wal, _) = open_stepped(disk.clone(), config).unwrap();
    let stepper = wal.stepper().unwrap();
    (DurableLog::new(wal).unwrap(), stepper)
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, data: vec![index as u8; 30].into(), ..Entry::default() }
}

fn append(log: &mut DurableLog<SimDisk>, from: u64, to: u64) -> dunlin_smr::log::Ticket {
    let hard_state = Some(HardState { term: 1, vote: 1, commit: from, ..HardState::default() });
    let entries = (from..=to).map(entry).collect();
    log.append(Batch { entries, hard_state, urgency: Urgency::Urgent, ..Batch::default() }).unwrap()
}

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot {
        data: (0..STATE_BYTES).map(|at| (at / 11) as u8).collect::<Vec<u8>>().into(),
        ..Snapshot::default()
    };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (SNAPSHOT, 1);
    snapshot
}

/// Returns a log with 40 durable entries and a snapshot that was just handed over, its stepper, and the time.
fn handed_over(disk: &SimDisk) -> (DurableLog<SimDisk>, Stepper<SimDisk>, u64) {
    let (mut log, stepper) = open(disk);
    let ticket = append(&mut log, 1, 40);
    let mut now = 0;
    while log.durable().unwrap() < ticket {
        now = stepper.step(now).unwrap_or(now);
    }
    assert_eq!(stepper.step(now), None, "nothing is to be done");
    log.compact(snapshot(), KEEP_FROM).unwrap();
    (log, stepper, now)
}

fn disk() -> SimDisk {
    let flush_time = (Duration::from_micros(10), Duration::from_micros(50));
    SimDisk::new(3, SimDiskConfig { flush_time, ..SimDiskConfig::default() })
}

fn base(log: &DurableLog<SimDisk>) -> u64 {
    log.base().get_metadata().index
}

#[test]
fn entries_become_durable_while_a_snapshot_is_written() {
    let (mut log, stepper, mut now) = handed_over(&disk());
    let mut last = 40;
    while base(&log) == 0 {
        last += 1;
        let ticket = append(&mut log, last, last);
        // First the piece that is being written, then these entries.
        for _ in 0..4 {
            now = stepper.step(now).unwrap_or(now);
        }
        assert!(log.durable().unwrap() >= ticket, "entry {last} waits for more than a piece");
    }
    assert!(last > 43, "{last}");
    assert_eq!((log.first_index().unwrap(), base(&log), log.is_compacting()), (KEEP_FROM, SNAPSHOT, false));
}

/// The disk stops after a number of changes, which rises until the snapshot is known: all durable entries are there
/// afterwards, from the log or the snapshot.
#[test]
fn a_crash_while_a_snapshot_is_written_loses_nothing() {
    let (mut snapshots, mut crashes) = ([0, 0], 0);
    for changes in 0.. {
        let disk = disk();
        let (mut log, stepper, mut now) = handed_over(&disk);
        disk.stop_after(changes);
        let (mut last, mut durable) = (40, 40);
        let has_stopped = loop {
            let ticket = append(&mut log, last + 1, last + 1);
            last += 1;
            for _ in 0..4 {
                now = stepper.step(now).unwrap_or(now);
            }
            match log.durable() {
                Err(error) => {
                    assert!(disk.faults() > 0, "{error}");
                    break true;
                }
                Ok(done) if done >= ticket => durable = last,
                Ok(_) => {}
            }
            if base(&log) == 0 {
                assert_eq!(log.first_index().unwrap(), 1, "nothing is forgotten before the snapshot is durable");
            } else if last > 70 {
                break false;
            }
        };
        crashes += 1;
        let crash = if changes % 3 == 0 { Crash::Process } else { Crash::Power };
        drop((log, stepper));
        let (log, _) = open(&disk.crash(crash));
        assert!(log.last_index().unwrap() >= durable, "after {changes} changes");
        let first = match base(&log) {
            0 => 1,
            _ => {
                assert_eq!((log.base().get_metadata().index, &log.base().data), (SNAPSHOT, &snapshot().data));
                KEEP_FROM
            }
        };
        snapshots[usize::from(first == KEEP_FROM)] += 1;
        assert_eq!(log.first_index().unwrap(), first);
        let entries = log.entries(first, durable + 1, None, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(entries, (first..=durable).map(entry).collect::<Vec<_>>(), "after {changes} changes");
        if !has_stopped {
            break;
        }
    }
    assert!(crashes > 20 && snapshots.iter().all(|seen| *seen > 1), "{crashes} crashes, {snapshots:?}");
}

#[test]
fn a_snapshot_that_cannot_be_written_ends_the_log() {
    for flushes in 0..10 {
        let disk = disk();
        let (mut log, stepper, mut now) = handed_over(&disk);
        disk.fail_flush_after(flushes);
        for _ in 0..100 {
            now = stepper.step(now).unwrap_or(now);
        }
        assert!(log.durable().is_err(), "flush {flushes} failed");
        assert_eq!((base(&log), log.first_index().unwrap()), (0, 1));
    }
}

/// A leader's snapshot arrives while one of the replica's own is being written.
#[test]
fn a_snapshot_from_a_leader_comes_after_the_own() {
    let disk = disk();
    let (mut log, stepper, now) = handed_over(&disk);
    stepper.step(now);
    let mut received = snapshot();
    received.mut_metadata().index = 90;
    let batch =
        Batch { snapshot: Some(received), entries: vec![entry(91)], urgency: Urgency::Urgent, ..Batch::default() };
    log.append(batch).unwrap();
    assert_eq!((base(&log), log.first_index().unwrap(), log.is_compacting()), (90, 91, false));
    drop((log, stepper));
    let (log, _) = open(&disk.crash(Crash::Power));
    assert_eq!((base(&log), log.first_index().unwrap()), (90, 91));
    let snapshots = disk.crash(Crash::Process);
    let names = dunlin_smr::wal::Disk::list(&snapshots).unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with("snapshot-")).count(), 1, "{names:?}");
}
