//! Snapshot files: every truncation and every flipped bit is noticed, and one that was not finished is none.

use std::time::Duration;

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{
    Entry, Position, SNAPSHOT_BLOCK_BYTES, SnapshotReader, SnapshotWriter, WalConfig, WalError, open_stepped,
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
    // In pieces that do not fit blocks.
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

/// A writer that comes back 20 us after each flush of 100 us, while a snapshot of so many pieces is written. Gives how many
/// writes there were, and the time.
fn written_beside(pieces: usize, log_bytes_max: u64, writes: bool) -> (u64, u64) {
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
        if wal.take_written_snapshot().is_some() {
            return (count, now);
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
    let (count, time) = written_beside(60, 1 << 20, true);
    let alone = time / 120_000;
    assert!(count * 100 >= 78 * alone, "{count} writes of {alone} in {} us", time / 1000);
    // It takes a fifth, and not less.
    assert!(time < 60 * 6 * 120_000, "{} us", time / 1000);
    let (_, time) = written_beside(60, 1 << 20, false);
    assert!(time <= 2 * 61 * 100_000, "{} us while nobody writes", time / 1000);
    let (_, time) = written_beside(60, 2048, true);
    assert!(time <= 61 * 2 * 120_000, "{} us when the log is full", time / 1000);
}
