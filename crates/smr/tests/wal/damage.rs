//! Damaged files. Whatever is truncated or flipped, recovery finds what was written, up to a torn end that is reported,
//! or the log is not opened and the error says where and why.

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{
    Directory, HardState, Opening, Position, SnapshotWriter, Wal, WalConfig, WalError, open, open_stepped,
};

use super::model::{Model, State, look};
use super::{OWNER, append, flush, new_log, small};

const FIRST: &str = "log-0000000000000001";
const SECOND: &str = "log-0000000000000002";

fn config() -> WalConfig {
    WalConfig { segment_bytes: 1 << 10, ..WalConfig::new(OWNER) }
}

/// Returns the files of a log with two segments, and every state that it went through.
fn files(is_closed: bool) -> (Vec<(String, Vec<u8>)>, Vec<State>) {
    let (disk, mut wal) = new_log(config());
    let mut states = vec![look(&mut wal)];
    let mut model = Model::new(wal.durable(), states[0].clone());
    let step = |wal: &mut Wal<SimDisk>, model: &mut Model, states: &mut Vec<State>| {
        model.submit(wal);
        wal.wait().unwrap();
        states.push(model.now().clone());
    };
    model.set_hard_state(&mut wal, HardState { term: 1, vote: 2, commit: 0 });
    model.append(&mut wal, 1, 250);
    step(&mut wal, &mut model, &mut states);
    model.append(&mut wal, 1, 260);
    step(&mut wal, &mut model, &mut states);
    model.truncate(&mut wal, 2);
    model.append(&mut wal, 2, 240);
    step(&mut wal, &mut model, &mut states);
    // Two batches in one flush.
    model.append(&mut wal, 2, 30);
    model.submit(&mut wal);
    states.push(model.now().clone());
    model.append(&mut wal, 2, 31);
    step(&mut wal, &mut model, &mut states);
    assert_eq!(wal.segments(), 2);
    if is_closed {
        wal.close().unwrap();
    }
    let read = |name: &str| (name.to_owned(), disk.contents(name).unwrap());
    (vec![read(FIRST), read(SECOND)], states)
}

fn opened(files: &[(String, Vec<u8>)]) -> Result<(State, Opening), WalError> {
    let disk = SimDisk::new(2, SimDiskConfig::default());
    for (name, contents) in files {
        disk.put(name, contents.clone());
    }
    let (mut wal, opening) = open_stepped(disk.clone(), config())?;
    let state = look(&mut wal);
    // The repaired log is intact the next time.
    let (mut again, later) = open_stepped(disk.crash(Crash::Power), config())?;
    assert_eq!((look(&mut again), later.torn), (state.clone(), None));
    Ok((state, opening))
}

fn is_refused(error: &WalError, name: &str, near: usize) {
    let message = error.to_string();
    assert!(message.contains(name), "{message}");
    match error {
        WalError::Damaged { offset, .. } => {
            assert!(
                message.contains(&format!("at byte {offset}"))
                    && message.contains("add another with an id that was never used"),
                "{message}"
            );
            // The damage begins before this offset, or is in what follows a wrong length.
            assert!(*offset as usize <= near.max(1024), "{message}, {near}");
        }
        WalError::Version { .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn whole_files_are_read() {
    for is_closed in [false, true] {
        let (files, states) = files(is_closed);
        let (state, opening) = opened(&files).unwrap();
        assert_eq!((Some(&state), opening), (states.last(), Opening::default()));
    }
}

#[test]
fn every_truncation_is_refused() {
    let (files, _) = files(false);
    for at in 0..files.len() {
        for len in 0..files[at].1.len() {
            let mut damaged = files.clone();
            damaged[at].1.truncate(len);
            is_refused(&opened(&damaged).unwrap_err(), &files[at].0, len);
        }
        let mut longer = files.clone();
        longer[at].1.push(0);
        is_refused(&opened(&longer).unwrap_err(), &files[at].0, 1024);
    }
}

#[test]
fn every_flipped_bit_is_refused_or_is_a_torn_end() {
    let (files, states) = files(false);
    let mut torn = 0;
    for at in 0..files.len() {
        for byte in 0..files[at].1.len() {
            for bit in 0..8 {
                let mut damaged = files.clone();
                damaged[at].1[byte] ^= 1 << bit;
                match opened(&damaged) {
                    Err(error) => is_refused(&error, &files[at].0, byte),
                    Ok((state, opening)) => {
                        let cut =
                            opening.torn.unwrap_or_else(|| panic!("bit {bit} of byte {byte} makes no difference"));
                        // Only the last flush is ever cut off: both of its batches, or the second.
                        assert!(states[states.len() - 3..].contains(&state), "{state:?}");
                        assert!(at == 1 && cut.segment == 2 && cut.offset as usize <= byte && cut.bytes > 0);
                        torn += 1;
                    }
                }
            }
        }
    }
    assert!(torn > 0);
}

#[test]
fn every_flipped_bit_of_a_log_that_was_closed_loses_nothing() {
    let (files, states) = files(true);
    let all = states.last();
    for at in 0..files.len() {
        for byte in 0..files[at].1.len() {
            let mut damaged = files.clone();
            damaged[at].1[byte] ^= 0x10;
            match opened(&damaged) {
                Err(error) => is_refused(&error, &files[at].0, byte),
                // The damage was the mark itself, or after it.
                Ok((state, opening)) => assert!(Some(&state) == all && opening.torn.is_some()),
            }
        }
    }
}

#[test]
fn every_lost_sector_is_refused_or_is_a_torn_end() {
    let (disk, mut wal) = new_log(WalConfig { segment_bytes: 32 << 10, ..WalConfig::new(OWNER) });
    for len in [700, 900, 600, 2000] {
        append(&mut wal, 1, len);
        flush(&mut wal);
    }
    let whole = disk.contents(FIRST).unwrap();
    let last = wal.last().index;
    let mut kept = Vec::new();
    for sector in 0..whole.len() / 512 {
        let mut damaged = whole.clone();
        damaged[sector * 512..][..512].fill(0);
        if damaged == whole {
            continue;
        }
        let disk = SimDisk::new(2, SimDiskConfig::default());
        disk.put(FIRST, damaged);
        match open_stepped(disk, WalConfig::new(OWNER)) {
            Err(error) => is_refused(&error, FIRST, 4096),
            Ok((wal, opening)) => {
                assert!(opening.torn.is_some());
                kept.push(wal.last().index);
            }
        }
    }
    // The sector with the header of the last frame also has the end of the previous one, and with it all evidence that
    // this one was flushed.
    assert_eq!(kept, [last - 2, last - 1, last - 1, last - 1, last - 1]);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let (files, _) = files(false);
    let refused = |files: &[(String, Vec<u8>)]| opened(files).unwrap_err().to_string();
    let said = refused(&files[1..]);
    assert!(
        said.contains("log-0000000000000001 is missing") && said.contains("add another with an id that was never used"),
        "{said}"
    );
    // The second segment of another log, which has another identity.
    let other = SimDisk::new(77, SimDiskConfig::default());
    let (mut wal, _) = open_stepped(other.clone(), config()).unwrap();
    for len in [400, 400, 400] {
        append(&mut wal, 1, len);
        flush(&mut wal);
    }
    let mixed = [files[0].clone(), (SECOND.to_owned(), other.contents(SECOND).unwrap())];
    assert!(refused(&mixed).contains("another log"), "{}", refused(&mixed));
    let renamed = [files[0].clone(), (SECOND.to_owned(), files[0].1.clone())];
    assert!(refused(&renamed).contains("name of another one"), "{}", refused(&renamed));
    let mut newer = files.clone();
    newer[0].1[8] = 3;
    assert!(
        refused(&newer).contains("version 3 of the format, which this program does not read"),
        "{}",
        refused(&newer)
    );
}

#[test]
fn the_log_of_another_node_is_refused() {
    let (disk, mut wal) = new_log(config());
    append(&mut wal, 1, 10);
    wal.close().unwrap();
    let error = open_stepped(disk, WalConfig { owner: 8, ..config() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "simulated/log-0000000000000001 is the log of node 7, not of node 8: give each node its own directory"
    );
}

#[test]
fn a_payload_that_looks_like_a_frame_is_none() {
    let (disk, mut wal) = new_log(small());
    append(&mut wal, 1, 100);
    flush(&mut wal);
    let first = disk.contents(FIRST).unwrap();
    // The log's own frames, all from the same segment, as a payload at another place.
    let payload = first[64..64 + 400].to_vec();
    wal.append(dunlin_smr::wal::Entry { index: 2, term: 1, kind: 0, payload: &payload }).unwrap();
    flush(&mut wal);
    let mut torn = disk.contents(FIRST).unwrap();
    let at = torn.windows(400).rposition(|window| window == payload).unwrap();
    torn[at - 30] ^= 1;
    disk.put(FIRST, torn);
    let (wal, opening) = open_stepped(disk.crash(Crash::Power), small()).unwrap();
    assert_eq!((wal.last().index, opening.torn.is_some()), (1, true));
}

#[test]
fn a_missing_or_damaged_snapshot_is_refused() {
    let (disk, mut wal) = new_log(small());
    for _ in 0..5 {
        append(&mut wal, 1, 300);
    }
    let position = Position { index: 4, term: 1 };
    let mut writer = SnapshotWriter::create(disk.clone(), wal.log(), position, b"members").unwrap();
    writer.write(&[5; 100]).unwrap();
    let position = writer.finish().unwrap();
    wal.compact(position, 4).unwrap();
    flush(&mut wal);
    let name = "snapshot-0000000000000004-0000000000000001";
    let whole = disk.contents(name).unwrap();
    for byte in 0..48 + 7 {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1;
        disk.put(name, damaged);
        let error = open_stepped(disk.clone(), small()).unwrap_err();
        is_refused(&error, name, 100);
    }
    use dunlin_smr::wal::Disk;
    disk.remove(name).unwrap();
    let said = open_stepped(disk, small()).unwrap_err().to_string();
    assert!(said.starts_with("simulated/snapshot-0000000000000004-0000000000000001 is missing"), "{said}");
}

#[test]
fn an_entry_that_rots_later_is_not_given_out() {
    let (disk, mut wal) = new_log(small());
    append(&mut wal, 1, 100);
    flush(&mut wal);
    let mut contents = disk.contents(FIRST).unwrap();
    let at = contents.len() - contents.iter().rev().position(|byte| *byte != 0).unwrap() - 10;
    contents[at] ^= 4;
    disk.put(FIRST, contents);
    let error = wal.read(1, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, WalError::Damaged { .. }) && error.to_string().contains(FIRST), "{error}");
}

#[test]
fn real_files_are_refused_in_the_same_way() {
    let path = std::env::temp_dir().join(format!("dunlin-wal-damage-{}", std::process::id()));
    let (mut wal, _) = open(Directory::open(&path).unwrap(), config()).unwrap();
    wal.append(dunlin_smr::wal::Entry { index: 1, term: 1, kind: 0, payload: b"a" }).unwrap();
    wal.close().unwrap();
    let file = path.join(FIRST);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[64 + 40 + 80 + 50] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = open(Directory::open(&path).unwrap(), config()).unwrap_err().to_string();
    std::fs::remove_dir_all(&path).unwrap();
    assert!(error.contains(&format!("{}, at byte 184: ", file.display())), "{error}");
}
