//! Any bytes are refused as the segment of a log, with a place inside of them, or make a log that goes on and is found
//! again as it was.
//!
//! The first byte of an input says whether lengths, checksums and numbers are put right before; without that nothing
//! but the header would ever be reached.

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Entry, HardState, Position, Wal, WalConfig, WalError, open_stepped};

const OWNER: u64 = 1;
const NAME: &str = "log-0000000000000001";
const HEADER: usize = 64;
const FRAME_HEADER: usize = 40;
/// Where a segment of these tests ends at the latest.
const SEGMENT: u32 = 4096;

/// Opens `bytes` as the first segment of a log.
///
/// # Panics
/// If opening does, or what is opened does not stay.
pub fn check(input: &[u8]) {
    let Some((flags, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if flags & 1 != 0 {
        put_right(&mut bytes);
    }
    let len = bytes.len() as u64;
    let disk = SimDisk::new(1, SimDiskConfig::default());
    disk.put(NAME, bytes);
    match open(&disk) {
        Ok((mut wal, _)) => {
            let before = look(&mut wal);
            let last = wal.last();
            // Behind the largest number there is none.
            let appended = wal.append(Entry {
                index: last.index.saturating_add(1),
                term: last.term.max(1),
                kind: 0,
                payload: b"more",
            });
            assert!(appended.is_ok() || last.index == u64::MAX - 1, "{appended:?}");
            let all = look(&mut wal);
            assert!(all.last.index >= before.last.index);
            wal.close().expect("a disk that does not fail");
            let (mut wal, opening) = open(&disk.crash(Crash::Power)).expect("what was opened once is opened again");
            assert_eq!((look(&mut wal), opening.torn), (all, None));
        }
        Err(WalError::Damaged { offset, .. } | WalError::Version { offset, .. }) => {
            assert!(offset <= len.max(HEADER as u64))
        }
        Err(WalError::Owner { .. } | WalError::Missing { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

fn open(disk: &SimDisk) -> Result<(Wal<SimDisk>, dunlin_smr::wal::Opening), WalError> {
    open_stepped(disk.clone(), WalConfig { segment_bytes: SEGMENT, ..WalConfig::new(OWNER) })
}

#[derive(Debug, PartialEq)]
struct Look {
    hard_state: HardState,
    first: u64,
    last: Position,
    terms: Vec<Option<u64>>,
}

fn look(wal: &mut Wal<SimDisk>) -> Look {
    let terms = (wal.first_index()..=wal.last().index).map(|index| wal.term(index)).collect();
    Look { hard_state: wal.hard_state(), first: wal.first_index(), last: wal.last(), terms }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Makes the header that of the first segment of a log, and gives every frame that is there the right numbers and
/// checksums. Each is a group of its own.
pub fn put_right(bytes: &mut Vec<u8>) {
    bytes.truncate(SEGMENT as usize);
    if bytes.len() < HEADER {
        return;
    }
    let len = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    put(bytes, 24, OWNER);
    put(bytes, 32, 1);
    put(bytes, 40, 1);
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    let (mut at, mut number) = (HEADER, 1);
    while bytes.len() >= at + FRAME_HEADER && bytes[at..].starts_with(b"FRAM") {
        let payload = at + FRAME_HEADER;
        let end = payload.saturating_add(u32_at(bytes, at + 4) as usize).min(bytes.len());
        bytes[at + 4..at + 8].copy_from_slice(&((end - payload) as u32).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[payload..end]);
        bytes[at + 8..at + 12].copy_from_slice(&checksum.to_le_bytes());
        put(bytes, at + 12, number);
        put(bytes, at + 20, number);
        bytes[at + 28..at + 32].copy_from_slice(&(at as u32).to_le_bytes());
        let place = [&bytes[16..24], &1u64.to_le_bytes(), &(at as u32).to_le_bytes()].concat();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&place), &bytes[at..at + 36]);
        bytes[at + 36..at + 40].copy_from_slice(&checksum.to_le_bytes());
        number += 1;
        at = end.next_multiple_of(8);
    }
}

/// Names and inputs: a new log, one with each kind of record, and both with numbers that are put right.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let log = |fill: &dyn Fn(&mut Wal<SimDisk>)| {
        let disk = SimDisk::new(1, SimDiskConfig::default());
        let (mut wal, _) =
            open_stepped(disk.clone(), WalConfig { segment_bytes: 1024, ..WalConfig::new(OWNER) }).expect("a new log");
        fill(&mut wal);
        wal.submit();
        wal.wait().expect("a disk that does not fail");
        disk.contents(NAME).expect("the first segment")
    };
    let entry = |index| Entry { index, term: 1, kind: 1, payload: b"payload" };
    let full = log(&|wal| {
        (1..=4).for_each(|index| wal.append(entry(index)).expect("it follows"));
        wal.submit();
        wal.set_hard_state(HardState { term: 2, vote: 1, commit: 3 }).expect("any");
        wal.truncate(4).expect("it is there");
        wal.submit();
        wal.append(Entry { term: 2, ..entry(4) }).expect("it follows");
    });
    let new = log(&|_| {});
    let with = |flags: u8, bytes: &[u8]| [&[flags], bytes].concat();
    vec![
        ("new", with(0, &new)),
        ("new_put_right", with(1, &new)),
        ("full", with(0, &full)),
        ("full_put_right", with(1, &full)),
    ]
}
