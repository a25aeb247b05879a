//! Several groups that share a log.

use dunlin_smr::wal::sim::{Crash, SimDisk};
use dunlin_smr::wal::{Disk, HardState, Position, SnapshotWriter, Wal, WalConfig, WalError, open_stepped};

use super::{OWNER, append, flush, new_log, small};

const FIRST: &str = "log-0000000000000001";

/// Takes a snapshot of everything that a group has, and forgets its entries.
fn cut(wal: &mut Wal<SimDisk>) {
    let last = wal.last();
    let writer = SnapshotWriter::create(wal.disk().clone(), wal.part(), last, b"").unwrap();
    let position = writer.finish().unwrap();
    wal.compact(position, position.index).unwrap();
    flush(wal);
}

fn names(disk: &SimDisk, start: &str) -> Vec<String> {
    let mut names: Vec<String> = disk.list().unwrap().into_iter().filter(|name| name.starts_with(start)).collect();
    names.sort_unstable();
    names
}

#[test]
fn one_flush_is_for_all_groups() {
    let (disk, zero) = new_log(WalConfig::new(OWNER));
    let mut wals: Vec<Wal<SimDisk>> = (0..100).map(|group| zero.of_group(group)).collect();
    for (number, wal) in wals.iter_mut().enumerate() {
        append(wal, 1, 10 + number);
        wal.set_hard_state(HardState { term: 1, vote: number as u64, commit: 0 }).unwrap();
    }
    let before = zero.flushes();
    flush(&mut wals[7]);
    assert_eq!(zero.flushes(), before + 1);
    drop((wals, zero));
    let (zero, _) = open_stepped(disk.crash(Crash::Power), WalConfig::new(OWNER)).unwrap();
    assert_eq!(zero.groups(), (0..100).collect::<Vec<u16>>());
    for group in 0..100 {
        let wal = zero.of_group(group);
        let mut payload = Vec::new();
        wal.read(1, &mut payload).unwrap();
        assert_eq!((payload.len(), wal.hard_state().vote), (10 + usize::from(group), group.into()));
    }
}

/// A segment is removed when no group has an entry in it.
#[test]
fn segments_go_when_no_group_needs_them() {
    let config = WalConfig { log_bytes_max: 12 << 10, ..small() };
    let (disk, mut zero) = new_log(config);
    let mut cold = zero.of_group(9);
    append(&mut cold, 1, 10);
    assert_eq!(zero.held_by(), None);
    while zero.segments() < 5 {
        append(&mut zero, 1, 300);
        flush(&mut zero);
    }
    cut(&mut zero);
    assert_eq!((names(&disk, "log-").len(), zero.held_by()), (5, Some(9)), "group 9 has its entry in the first");
    cut(&mut cold);
    assert_eq!((names(&disk, "log-").len(), zero.held_by()), (1, None));
    assert_eq!(
        names(&disk, "snapshot-"),
        [
            &format!("snapshot-{:016x}-0000000000000001", zero.last().index),
            "snapshot-0009-0000000000000001-0000000000000001",
        ]
    );
    let last = (zero.last(), cold.last());
    drop((zero, cold));
    let (zero, _) = open_stepped(disk.crash(Crash::Power), config).unwrap();
    assert_eq!((zero.last(), zero.of_group(9).last()), last, "the segments that went are not needed");
}

#[test]
fn the_snapshot_of_another_group_is_refused() {
    let (disk, mut zero) = new_log(small());
    let mut one = zero.of_group(1);
    for wal in [&mut zero, &mut one] {
        append(wal, 1, 10);
        cut(wal);
    }
    let name = "snapshot-0001-0000000000000001-0000000000000001";
    disk.put(name, disk.contents("snapshot-0000000000000001-0000000000000001").unwrap());
    let said = open_stepped(disk, small()).unwrap_err().to_string();
    assert!(said.contains(name) && said.contains("another group"), "{said}");
}

/// Snapshots of several groups are written one after the other, in whatever order they are handed over.
#[test]
fn several_groups_hand_over_snapshots_at_once() {
    let (_, mut zero) = new_log(small());
    let mut one = zero.of_group(1);
    let position = Position { index: 1, term: 1 };
    for wal in [&mut zero, &mut one] {
        append(wal, 1, 10);
        wal.write_snapshot(position, Vec::new(), vec![7; 3000].into());
    }
    flush(&mut zero);
    assert_eq!(one.wait_for_snapshot().unwrap(), Some(position));
    assert_eq!(zero.take_written_snapshot(), Some(position), "it was before");
}

/// Creates a directory as written by a program without groups.
fn of_version_1(disk: &SimDisk) {
    for name in names(disk, "log-") {
        let mut bytes = disk.contents(&name).unwrap();
        bytes[8] = 1;
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
        disk.put(&name, bytes);
    }
}

#[test]
fn a_log_of_version_1_is_read_and_goes_on() {
    let (disk, mut wal) = new_log(small());
    append(&mut wal, 1, 10);
    flush(&mut wal);
    of_version_1(&disk);
    drop(wal);
    let (mut zero, _) = open_stepped(disk.crash(Crash::Power), small()).unwrap();
    assert_eq!((zero.last().index, zero.groups()), (1, vec![0]));
    let mut one = zero.of_group(1);
    append(&mut one, 3, 20);
    append(&mut zero, 1, 30);
    flush(&mut zero);
    let disk = zero.disk().clone();
    let versions: Vec<u8> = names(&disk, "log-").iter().map(|name| disk.contents(name).unwrap()[8]).collect();
    assert_eq!(versions, [1, 2], "no program of version 1 takes a record of a group for damage");
    let (zero, _) = open_stepped(disk.crash(Crash::Power), small()).unwrap();
    assert_eq!((zero.last().index, zero.of_group(1).last()), (2, Position { index: 1, term: 3 }));
}

#[test]
fn a_record_of_a_group_in_a_segment_of_version_1_is_damage() {
    let (disk, zero) = new_log(WalConfig::new(OWNER));
    let mut one = zero.of_group(1);
    append(&mut one, 1, 10);
    flush(&mut one);
    of_version_1(&disk);
    let error = open_stepped(disk, WalConfig::new(OWNER)).unwrap_err();
    assert!(matches!(&error, WalError::Damaged { path, .. } if path.ends_with(FIRST)), "{error}");
}
