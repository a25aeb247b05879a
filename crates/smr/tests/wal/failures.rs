//! Disks that fail, are full, or are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;
use std::time::Duration;

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{AppendError, ENTRY_BYTES_MAX, Entry, FRAME_BYTES_MAX, HardState, WalConfig, open_stepped};

use super::{OWNER, append, flush, new_log, small};

const ENTRY: Entry<'static> = Entry { index: 1, term: 1, kind: 0, payload: b"payload" };

#[test]
fn a_failed_flush_is_for_good() {
    for crash in [Crash::Process, Crash::Power] {
        for seed in 0..40 {
            let disk = SimDisk::new(seed, SimDiskConfig::default());
            let (mut wal, _) = open_stepped(disk.clone(), small()).unwrap();
            append(&mut wal, 1, 100);
            let durable = flush(&mut wal);
            disk.fail_flush_after(0);
            append(&mut wal, 1, 600);
            wal.submit();
            let failure = wal.wait().unwrap_err();
            assert_eq!(
                failure.to_string(),
                "cannot flush simulated/log-0000000000000001: the log takes nothing more. End this node, look after the disk, and start it again"
            );
            // The next flush would succeed, and prove nothing.
            assert!(matches!(wal.append(Entry { index: 3, ..ENTRY }), Err(AppendError::Failed(_))));
            assert!(matches!(wal.set_hard_state(HardState::default()), Err(AppendError::Failed(_))));
            assert_eq!((wal.stepper().unwrap().step(u64::MAX), wal.durable()), (None, durable));
            // What a process then finds in the system's cache is not on the disk. Once it is reported as durable, it
            // is.
            let (found, _) = open_stepped(disk.crash(crash), small()).unwrap();
            let last = found.last();
            assert!(last.index >= 1);
            if crash == Crash::Process {
                assert_eq!(last.index, 2);
            }
            let (again, opening) = open_stepped(disk.crash(Crash::Power), small()).unwrap();
            assert_eq!((again.last(), opening.torn), (last, None));
        }
    }
}

#[test]
fn a_full_disk_ends_the_log_and_loses_nothing() {
    let config = SimDiskConfig { capacity_bytes: 5 << 10, ..SimDiskConfig::default() };
    let disk = SimDisk::new(1, config);
    let (mut wal, _) = open_stepped(disk.clone(), small()).unwrap();
    let mut kept = 0;
    let failure = loop {
        append(&mut wal, 1, 300);
        wal.submit();
        match wal.wait() {
            Ok(()) => kept = wal.last().index,
            Err(failure) => break failure,
        }
    };
    assert!(kept > 5 && failure.to_string().starts_with("cannot make simulated/log-0000000000000003"), "{failure}");
    let disk = disk.crash(Crash::Power);
    disk.configure(SimDiskConfig::default());
    let (mut wal, _) = open_stepped(disk, small()).unwrap();
    assert_eq!(wal.last().index, kept);
    append(&mut wal, 1, 300);
    flush(&mut wal);
}

#[test]
fn a_disk_that_is_behind_pushes_back() {
    let (_, mut wal) = new_log(WalConfig { unflushed_bytes_max: 1000, ..small() });
    assert!(wal.has_room());
    let mut taken = 0;
    let refused = loop {
        match wal.append(Entry { index: taken + 1, ..ENTRY }) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        wal.submit();
    };
    assert!(taken > 3 && !wal.has_room());
    assert!(matches!(refused, AppendError::Behind { bytes: 1001..1200 }), "{refused}");
    assert_eq!(wal.last().index, taken);
    wal.wait().unwrap();
    assert!(wal.has_room());
    wal.append(Entry { index: taken + 1, ..ENTRY }).unwrap();
}

#[test]
fn a_log_that_is_full_takes_no_entries_but_a_snapshot() {
    let (_, mut wal) = new_log(WalConfig { log_bytes_max: 5 << 10, ..small() });
    let refused = loop {
        let index = wal.last().index + 1;
        if let Err(error) = wal.append(Entry { index, payload: &[1; 500], ..ENTRY }) {
            break error;
        }
        flush(&mut wal);
    };
    assert!(matches!(refused, AppendError::Full { bytes: 6144 }), "{refused}");
    let position = wal.last();
    let writer = dunlin_smr::wal::SnapshotWriter::create(wal.disk().clone(), wal.log(), position, b"").unwrap();
    wal.compact(writer.finish().unwrap(), position.index).unwrap();
    flush(&mut wal);
    assert_eq!((wal.segments(), wal.bytes()), (1, 2 << 10));
    append(&mut wal, 1, 10);
}

#[test]
fn what_cannot_be_is_not_taken() {
    let (_, mut wal) = new_log(small());
    let refused = |error: Result<(), AppendError>, why: &str| assert_eq!(error.unwrap_err().to_string(), why);
    refused(wal.append(Entry { index: 2, ..ENTRY }), "an entry does not follow the one before it");
    refused(wal.append(Entry { index: 1, term: 0, ..ENTRY }), "an entry has a lower term than the one before it");
    refused(wal.truncate(0), "entries are numbered from 1");
    refused(wal.truncate(1), "there is nothing to truncate");
    let long = vec![0; ENTRY_BYTES_MAX + 1];
    refused(wal.append(Entry { payload: &long, ..ENTRY }), "an entry of 8388609 bytes is longer than entries may be");
    assert_eq!(wal.submit(), wal.durable());
    append(&mut wal, 5, 1);
    refused(wal.append(Entry { index: 2, term: 4, ..ENTRY }), "an entry has a lower term than the one before it");
    let sized =
        |segment_bytes| open_stepped(SimDisk::new(0, SimDiskConfig::default()), WalConfig { segment_bytes, ..small() });
    assert!(sized(1000).is_err() && sized(1028).is_err() && sized(u32::MAX).is_err());
}

#[test]
fn long_entries_get_segments_of_their_own_size() {
    let (disk, mut wal) = new_log(WalConfig::new(OWNER));
    let long = vec![9; ENTRY_BYTES_MAX];
    // The third does not fit into the frame of the first two.
    for index in 1..=3 {
        wal.append(Entry { index, payload: &long[..ENTRY_BYTES_MAX - 100], ..ENTRY }).unwrap();
    }
    let before = wal.durable();
    flush(&mut wal);
    assert_eq!(wal.durable(), { wal.submit() });
    assert!(wal.durable() > before);
    drop(wal);
    let config = WalConfig { segment_bytes: 1 << 10, ..WalConfig::new(OWNER) };
    let (mut wal, _) = open_stepped(disk.crash(Crash::Power), config).unwrap();
    wal.append(Entry { index: 4, payload: &long, ..ENTRY }).unwrap();
    flush(&mut wal);
    let mut read = Vec::new();
    wal.read(4, &mut read).unwrap();
    assert!(read == long && wal.bytes() > (FRAME_BYTES_MAX / 2) as u64);
}

/// Counts how often it is woken.
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn one_flush_is_for_all_that_came_meanwhile_and_wakes() {
    let flush_time = (Duration::from_nanos(100), Duration::from_nanos(100));
    let disk = SimDisk::new(1, SimDiskConfig { flush_time, ..SimDiskConfig::default() });
    let (mut wal, _) = open_stepped(disk, WalConfig::new(OWNER)).unwrap();
    let count = Arc::new(Count(AtomicU64::new(0)));
    wal.set_waker(Some(count.clone().into()));
    let mut tickets = Vec::new();
    let mut submit = |wal: &mut dunlin_smr::wal::Wal<SimDisk>| {
        append(wal, 1, 10);
        tickets.push(wal.submit());
    };
    submit(&mut wal);
    let stepper = wal.stepper().unwrap();
    assert_eq!(stepper.step(1000), Some(1100));
    (0..20).for_each(|_| submit(&mut wal));
    assert_eq!(stepper.step(1099), Some(1100));
    assert!(wal.durable() < tickets[0]);
    assert_eq!(stepper.step(1100), Some(1200));
    assert_eq!((wal.durable(), wal.flushes()), (tickets[0], 1));
    assert_eq!(stepper.step(1200), None);
    assert_eq!((wal.durable(), wal.flushes()), (tickets[20], 2));
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    // The owner of the stepper is woken for the next batch, once.
    let wanted = Arc::new(Count(AtomicU64::new(0)));
    stepper.set_waker(Some(wanted.clone().into()));
    for _ in 0..3 {
        append(&mut wal, 1, 10);
        wal.submit();
    }
    assert_eq!(wanted.0.load(Ordering::Relaxed), 1);
}
