//! The log on a disk: crashes at every step, damage, failures, and threads. `DUNLIN_SEEDS=100000 cargo test -p
//! dunlin-smr --test wal` tries more.

mod damage;
mod directory;
mod failures;
mod groups;
mod model;
mod random;
mod snapshots;
mod steps;

use dunlin_smr::wal::sim::{SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Entry, Ticket, Wal, WalConfig, open_stepped};

/// The node that owns the log.
const OWNER: u64 = 7;

/// Settings with segments so small that there are many.
fn small() -> WalConfig {
    WalConfig { segment_bytes: 2 << 10, ..WalConfig::new(OWNER) }
}

/// Returns a payload that no other entry has.
fn payload(index: u64, term: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (index * 31 + term * 7 + at as u64) as u8).collect()
}

/// Appends the next entry.
fn append(wal: &mut Wal<SimDisk>, term: u64, len: usize) {
    let index = wal.last().index + 1;
    wal.append(Entry { index, term, kind: 3, payload: &payload(index, term, len) }).unwrap();
}

/// Makes everything durable.
fn flush(wal: &mut Wal<SimDisk>) -> Ticket {
    let ticket = wal.submit();
    wal.wait().unwrap();
    assert_eq!(wal.durable(), ticket);
    ticket
}

/// Creates a log on a new disk.
fn new_log(config: WalConfig) -> (SimDisk, Wal<SimDisk>) {
    let disk = SimDisk::new(1, SimDiskConfig::default());
    let (wal, opening) = open_stepped(disk.clone(), config).unwrap();
    assert!(opening.is_new);
    (disk, wal)
}
