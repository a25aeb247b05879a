//! Snapshot files: every truncation and every flipped bit is detected, and an unfinished snapshot does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{
    Entry, Position, SNAPSHOT_BLOCK_BYTES, SnapshotReader, SnapshotWriter, Stepper, Wal, WalConfig, WalError,
    open_stepped,
};

use super::{append, flush, new_log, small};

const POSITION: Position = Position { index: 3, term: 2 };
const NAME: &str = "snapshot-0000000000000003-0000000000000002";
const LOG: u64 = 99;

fn disk() -> SimDisk {
    SimDisk::new(1, SimDiskConfig::default())
}

fn write(disk: &SimDisk, contents: &[u8]) {
    let mut writer = SnapshotWriter::create(disk.clone(), LOG, POSITION, b"about").unwrap();
    // In pieces that do not match blocks.
    contents.chunks(100_000).for_each(|piece| writer.write(piece).unwrap());
    assert_eq!(writer.finish().unwrap(), POSITION);
}

fn read(disk: &SimDisk) -> Result<Vec<u8>, WalError> {
    let mut reader = SnapshotReader::open(disk, LOG, POSITION)?;
    assert_eq!(reader.about(), b"about");
    let mut contents = Vec::new();
    while let Some(block) = reader.next_block()? {
        contents.extend_from_slice(block);
    }
    assert_eq!(reader.next_block()?, None);
    Ok(contents)
}

#[test]
fn snapshots_of_all_sizes_are_read_as_they_were_written() {
    for len in
        [0, 1, 5000, SNAPSHOT_BLOCK_BYTES - 1, SNAPSHOT_BLOCK_BYTES, SNAPSHOT_BLOCK_BYTES + 1, 3 * SNAPSHOT_BLOCK_BYTES]
    {
        let contents: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
        let disk = disk();
        write(&disk, &contents);
        assert!(read(&disk.crash(Crash::Power)).unwrap() == contents, "{len} bytes");
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    let disk = disk();
    write(&disk, b"some bytes");
    let whole = disk.contents(NAME).unwrap();
    for len in 0..whole.len() {
        disk.put(NAME, whole[..len].to_vec());
        assert!(matches!(read(&disk), Err(WalError::Damaged { .. })), "cut at {len}");
    }
    for bit in 0..8 * whole.len() {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        disk.put(NAME, damaged);
        assert!(matches!(read(&disk), Err(WalError::Damaged { .. } | WalError::Version { .. })), "bit {bit}");
    }
    disk.put(NAME, [&whole[..], &[0]].concat());
    assert!(read(&disk).is_err());
}

#[test]
fn a_snapshot_that_is_not_finished_or_not_known_is_removed() {
    let (disk, mut wal) = new_log(small());
    for _ in 0..4 {
        append(&mut wal, 2, 10);
    }
    flush(&mut wal);
    let mut unfinished = SnapshotWriter::create(disk.clone(), wal.log(), POSITION, b"").unwrap();
    unfinished.write(b"bytes").unwrap();
    let known = SnapshotWriter::create(disk.clone(), wal.log(), Position { index: 2, term: 2 }, b"").unwrap();
    let known = known.finish().unwrap();
    wal.compact(known, 1).unwrap();
    flush(&mut wal);
    SnapshotWriter::create(disk.clone(), wal.log(), Position { index: 4, term: 2 }, b"").unwrap().finish().unwrap();
    let (wal, opening) = open_stepped(disk.crash(Crash::Process), small()).unwrap();
    let unknown = "snapshot-0000000000000004-0000000000000002".to_owned();
    assert_eq!(opening.removed, [format!("{NAME}.tmp"), unknown]);
    assert_eq!(wal.compaction().snapshot, known);
}

/// Simulates a writer that returns 20 us after each flush of 100 us, while this many snapshots of this many pieces are
/// written. Returns the number of writes, and the time.
fn written_beside(mut snapshots: usize, pieces: usize, log_bytes_max: u64, writes: bool) -> (u64, u64) {
    const PIECE: usize = 1000;
    let flush = Duration::from_micros(100);
    let disk = SimDisk::new(1, SimDiskConfig { flush_time: (flush, flush), ..SimDiskConfig::default() });
    let config = WalConfig { snapshot_piece_bytes: PIECE, log_bytes_max, ..small() };
    let (mut wal, _) = open_stepped(disk, config).unwrap();
    append(&mut wal, 1, 4000);
    super::flush(&mut wal);
    assert_eq!(wal.is_full(), log_bytes_max < 4000);
    let stepper = wal.stepper().unwrap();
    wal.write_snapshot(wal.last(), Vec::new(), vec![7; pieces * PIECE].into());
    let (mut now, mut count, mut next_write) = (0, 0, if writes { 0 } else { u64::MAX });
    let mut waits = None;
    loop {
        let due = stepper.step(now);
        if let Some(written) = wal.take_written_snapshot() {
            snapshots -= 1;
            if snapshots == 0 {
                return (count, now);
            }
            // As if it were another group's.
            wal.discard_snapshot(written);
            wal.write_snapshot(wal.last(), Vec::new(), vec![7; pieces * PIECE].into());
            continue;
        }
        if waits.is_some_and(|ticket| wal.durable() >= ticket) {
            (count, next_write, waits) = (count + 1, now + 20_000, None);
        }
        if waits.is_none() && now >= next_write {
            wal.append_admitted(Entry { index: wal.last().index + 1, term: 1, kind: 3, payload: b"x" }).unwrap();
            waits = Some(wal.submit());
            continue;
        }
        let next_write = if waits.is_none() { next_write } else { u64::MAX };
        now = due.unwrap_or(u64::MAX).min(next_write);
    }
}

#[test]
fn writers_keep_most_of_their_rate_while_a_snapshot_is_written() {
    let (count, time) = written_beside(1, 60, 1 << 20, true);
    let alone = time / 120_000;
    assert!(count * 100 >= 78 * alone, "{count} writes of {alone} in {} us", time / 1000);
    // It takes a fifth, and no less.
    assert!(time < 60 * 6 * 120_000, "{} us", time / 1000);
    let (_, time) = written_beside(1, 60, 1 << 20, false);
    assert!(time <= 2 * 61 * 100_000, "{} us while nobody writes", time / 1000);
    let (_, time) = written_beside(1, 60, 2048, true);
    assert!(time <= 61 * 2 * 120_000, "{} us when the log is full", time / 1000);
    let (count, time) = written_beside(60, 1, 1 << 20, true);
    let alone = time / 120_000;
    assert!(count * 100 >= 75 * alone, "{count} writes of {alone} beside many short snapshots in {} us", time / 1000);
}

/// Records that the writer is woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const SECOND: u64 = 1_000_000_000;

/// Returns a log with a snapshot of four pieces, the first of which takes as long as the disk hangs, and the time at
/// which the hang ends.
fn hung_for(seconds: u64) -> (Wal<SimDisk>, Stepper<SimDisk>, u64) {
    let (disk, mut wal) = new_log(WalConfig { snapshot_piece_bytes: 1000, log_bytes_max: 8 << 10, ..small() });
    append(&mut wal, 1, 10);
    flush(&mut wal);
    let stepper = wal.stepper().unwrap();
    wal.write_snapshot(wal.last(), Vec::new(), vec![7; 4000].into());
    stepper.step(0);
    disk.hang_until(seconds * SECOND);
    let now = seconds * SECOND;
    assert_eq!(stepper.step(now - 1), Some(now), "it waits for the disk");
    (wal, stepper, now)
}

/// Returns when the snapshot is on the disk.
fn written(wal: &mut Wal<SimDisk>, stepper: &Stepper<SimDisk>, mut now: u64) -> u64 {
    loop {
        let due = stepper.step(now);
        if wal.take_written_snapshot().is_some() {
            return now;
        }
        now = due.expect("there is a snapshot to be written");
    }
}

#[test]
fn a_disk_that_hung_does_not_delay_the_rest_of_a_snapshot() {
    let (mut wal, stepper, begun) = hung_for(30);
    let now = written(&mut wal, &stepper, begun);
    assert!(now < begun + 5 * SECOND, "{} s after the disk came back", (now - begun) / SECOND);
}

/// The writer sleeps until the snapshot's turn, and nothing is submitted to a full log.
#[test]
fn a_log_that_fills_up_has_its_snapshot_written_at_once() {
    let (mut wal, stepper, now) = hung_for(1);
    let woken = Arc::new(Woken::default());
    // It writes the entry that fills the log, and waits until the next piece is due.
    append(&mut wal, 1, 4000);
    append(&mut wal, 1, 4000);
    append(&mut wal, 1, 4000);
    wal.submit();
    let mut at = now;
    while let Some(due) = stepper.step(at).filter(|due| *due < now + SECOND / 10) {
        at = due;
    }
    stepper.set_waker(Some(woken.clone().into()));
    assert!(wal.is_full() && woken.0.load(Ordering::Relaxed));
    at = written(&mut wal, &stepper, at);
    assert!(at < now + SECOND / 10, "{} ms", (at - now) / 1_000_000);
}
