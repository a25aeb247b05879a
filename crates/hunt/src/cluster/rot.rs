//! Bit rot on the disks of some replicas: each of these must refuse to start, and is then replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use dunlin_smr::log::OpenError;
use dunlin_smr::wal::sim::SimDisk;
use dunlin_smr::wal::{Disk as _, WalError};
use dunlin_trial::Random;

/// A flipped bit.
#[derive(Debug, Clone)]
struct Flipped {
    path: PathBuf,
    /// Offset of its byte in the file.
    offset: u64,
}

/// The planned fate of a replica's disk.
#[derive(Debug, Clone, Default)]
enum Fate {
    /// It rots once its replica has crashed and there is old data on it.
    #[default]
    Due,
    /// It has rotted, and its replica must refuse to start.
    Rotten(Flipped),
    /// Its replica refused to start.
    Refused,
    /// Another member has replaced its replica.
    Replaced,
}

/// The disks that rot in a run.
#[derive(Debug, Default)]
pub struct Rot {
    /// By replica.
    fates: BTreeMap<u64, Fate>,
}

impl Rot {
    /// Plans rot for the disks of these replicas.
    pub fn new(replicas: &[u64]) -> Rot {
        Rot { fates: replicas.iter().map(|id| (*id, Fate::Due)).collect() }
    }

    /// Handles the crash of a replica, with the present state of its disk.
    pub fn crashed(&mut self, id: u64, disk: &SimDisk, random: &mut Random) {
        if let Some(fate @ Fate::Due) = self.fates.get_mut(&id)
            && let Some(flipped) = flip(disk, random)
        {
            *fate = Fate::Rotten(flipped);
        }
    }

    /// Checks the result of opening the log of a replica that is about to start.
    ///
    /// # Panics
    /// If the disk has rotted and the replica did not report that with its position, or if it reported damage without
    /// rot.
    pub fn judge<L>(&mut self, id: u64, opened: Result<L, OpenError>) -> Option<L> {
        let fate = self.fates.get_mut(&id);
        let error = match opened {
            Ok(log) => {
                let is_well = matches!(fate, None | Some(Fate::Due));
                assert!(is_well, "replica {id} starts, though its disk is {fate:?}");
                return Some(log);
            }
            Err(error) => error,
        };
        match fate {
            Some(Fate::Rotten(flipped)) => check_place(id, &error, flipped),
            // No change.
            Some(Fate::Refused | Fate::Replaced) => return None,
            _ => panic!("replica {id} cannot open its log after a crash: {error}"),
        }
        self.fates.insert(id, Fate::Refused);
        None
    }

    /// Whether the disk of a replica has rotted.
    pub fn is_rotten(&self, id: u64) -> bool {
        self.fates.get(&id).is_some_and(|fate| !matches!(fate, Fate::Due))
    }

    /// A replica that refused to start and has not been replaced yet.
    pub fn to_replace(&self) -> Option<u64> {
        self.fates.iter().find(|(_, fate)| matches!(fate, Fate::Refused)).map(|(id, _)| *id)
    }

    /// Records that another member has replaced a replica.
    pub fn replaced(&mut self, id: u64) {
        self.fates.insert(id, Fate::Replaced);
    }

    /// Replicas that were replaced.
    pub fn count_replaced(&self) -> u64 {
        self.fates.values().filter(|fate| matches!(fate, Fate::Replaced)).count() as u64
    }
}

/// Flips a bit where a crash cannot be the cause: in a segment that is not the last, or in the snapshot. `None` if
/// there is no such place.
fn flip(disk: &SimDisk, random: &mut Random) -> Option<Flipped> {
    let names: BTreeSet<String> = disk.list().ok()?.into_iter().filter(|name| !name.ends_with(".tmp")).collect();
    let number = |name: &String| u64::from_str_radix(name.strip_prefix("log-")?, 16).ok();
    let segments: Vec<u64> = names.iter().filter_map(number).collect();
    // Segments before a gap were about to be removed.
    let follows = |at: &usize| segments[*at] + 1 == segments[at + 1];
    let old = (0..segments.len().saturating_sub(1)).rev().take_while(follows);
    let mut files: Vec<String> = old.map(|at| format!("log-{:016x}", segments[at])).collect();
    if files.is_empty() {
        return None;
    }
    // Of two, one is no longer needed, or not needed yet.
    let mut snapshots = names.iter().filter(|name| name.starts_with("snapshot-"));
    if let (Some(only), None) = (snapshots.next(), snapshots.next()) {
        files.push(only.clone());
    }
    let name = random.pick(&files)?;
    let mut contents = disk.contents(name)?;
    let at = random.index(contents.len());
    contents[at] ^= 1 << random.between(0, 7);
    disk.put(name, contents);
    Some(Flipped { path: disk.place(name), offset: at as u64 })
}

/// # Panics
/// If the error does not name the position of the bit.
fn check_place(id: u64, error: &OpenError, flipped: &Flipped) {
    let OpenError::Wal(WalError::Damaged { path, offset, .. } | WalError::Version { path, offset, .. }) = error else {
        panic!("replica {id} has a bit flipped at {flipped:?}, and says: {error}");
    };
    assert!(
        *path == flipped.path && *offset <= flipped.offset,
        "replica {id} has a bit flipped at {flipped:?}, and blames byte {offset} of {}",
        path.display()
    );
}
