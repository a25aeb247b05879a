//! Loads a snapshot into partitions.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::error::{NoRoom, SnapshotError};
use super::reader::Reader;
use super::record::Record;
use crate::error::Refused;
use crate::item::{Put, UnixSeconds};
use crate::moment::Moment;
use crate::store::Store;

/// Bytes per read of a file.
const READ_BYTES: usize = 256 << 10;
/// Records stored as one burst.
const BURST: usize = 16;

/// What to do with an item that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// Count it and leave it out: for a cache, which may lose items.
    Count,
    /// End loading with an error that gives the number of such items.
    Refuse,
}

/// The progress of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Records seen.
    pub records: u64,
    /// Bytes of the file read.
    pub bytes: u64,
    /// Length of the file; zero if unknown.
    pub file_bytes: u64,
}

/// What happened to the records of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loaded {
    /// When the snapshot was taken.
    pub taken_at: UnixSeconds,
    /// Records stored. Later ones may have evicted some of them.
    pub stored: u64,
    /// Records that expired since the snapshot was taken.
    pub expired: u64,
    /// Records rejected by a partition that is too small.
    pub misfits: u64,
    /// Bytes of their keys and values.
    pub misfit_bytes: u64,
    /// Items that a cache evicted for others.
    pub evicted: u64,
    /// Records that belong to none of these partitions.
    pub elsewhere: u64,
}

/// Loads a snapshot from a file: see [`load`]. If a partition [foresees](Store::foresee) its items, the file is read
/// twice.
///
/// # Errors
/// [`SnapshotError`].
pub fn load_file<S: Store>(
    path: &Path,
    now: impl Into<Moment>,
    partitions: &mut [S],
    mut route: impl FnMut(&[u8]) -> Option<usize>,
    misfit: Misfit,
    mut progress: impl FnMut(Progress),
) -> Result<Loaded, SnapshotError> {
    let now = now.into();
    let open = |source| SnapshotError::Open { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(open)?;
    let file_bytes = file.metadata().map_err(open)?.len();
    if partitions.iter().any(Store::has_foresight) {
        foresee(BufReader::with_capacity(READ_BYTES, &file), now, partitions, &mut route)?;
        file.rewind().map_err(open)?;
    }
    let input = BufReader::with_capacity(READ_BYTES, file);
    load(input, now, partitions, route, misfit, |at| progress(Progress { file_bytes, ..at }))
}

/// Announces the expected items to the partitions.
fn foresee<S: Store>(
    input: impl Read,
    now: Moment,
    partitions: &mut [S],
    mut route: impl FnMut(&[u8]) -> Option<usize>,
) -> Result<(), SnapshotError> {
    let mut reader = Reader::new(input)?;
    while let Some(records) = reader.next_block()? {
        for record in records {
            let record = record?;
            if record.expires.is_none_or(|at| now.from_wall(at) > now.now)
                && let Some(to) = route(record.key)
            {
                partitions[to].foresee(record.key.len(), record.value.len());
            }
        }
    }
    Ok(())
}

/// Loads a snapshot. `now` converts the file's wall-clock times to partition time. `route` returns the index of a key's
/// partition, or `None` if it is not among these. So either one thread loads everything, or each loads its own
/// partitions from the same file.
///
/// Reports progress after each block. After an error the partitions hold a part of the snapshot: discard them.
///
/// # Errors
/// [`SnapshotError`]; [`SnapshotError::NoRoom`] only with [`Misfit::Refuse`].
///
/// # Panics
/// If `route` returns the index of a partition that does not exist.
pub fn load<S: Store>(
    input: impl Read,
    now: impl Into<Moment>,
    partitions: &mut [S],
    mut route: impl FnMut(&[u8]) -> Option<usize>,
    misfit: Misfit,
    mut progress: impl FnMut(Progress),
) -> Result<Loaded, SnapshotError> {
    let now = now.into();
    let mut reader = Reader::new(input)?;
    let mut loaded = Loaded { taken_at: reader.taken_at(), ..Loaded::default() };
    partitions.iter_mut().for_each(|partition| partition.set_now(now.now));
    let evicted = |partitions: &[S]| -> u64 {
        let stats = partitions.iter().map(|partition| partition.stats());
        stats.map(|stats| stats.evicted_log + stats.evicted_index).sum()
    };
    let evicted_before = evicted(partitions);
    let origin = reader.origin().cloned();
    let mut at = Progress::default();
    while let Some(mut records) = reader.next_block()? {
        let mut burst = Vec::with_capacity(BURST);
        loop {
            burst.clear();
            while burst.len() < BURST {
                let offset = records.offset();
                let Some(record) = records.next().transpose()? else { break };
                let record = Record { expires: record.expires.map(|at| now.from_wall(at)), ..record };
                at.records += 1;
                match route(record.key) {
                    None => loaded.elsewhere += 1,
                    Some(_) if record.expires.is_some_and(|at| at <= now.now) => loaded.expired += 1,
                    Some(to) => burst.push((to, record, offset)),
                }
            }
            if burst.is_empty() {
                break;
            }
            store(partitions, &burst, &mut loaded)?;
        }
        at.bytes = reader.offset();
        progress(at);
    }
    partitions.iter_mut().for_each(Store::loaded);
    loaded.evicted = evicted(partitions) - evicted_before;
    if misfit == Misfit::Refuse && loaded.misfits > 0 {
        let memory = partitions.iter().map(|partition| partition.stats().memory_bytes_max).fold(0, u64::saturating_add);
        return Err(SnapshotError::NoRoom(NoRoom::new(&loaded, memory, origin.as_ref())));
    }
    Ok(loaded)
}

fn store<S: Store>(
    partitions: &mut [S],
    burst: &[(usize, Record<'_>, u64)],
    loaded: &mut Loaded,
) -> Result<(), SnapshotError> {
    for (to, record, _) in burst {
        // Records of a snapshot have keys that every store accepts.
        if let Ok(key) = partitions[*to].key(record.key) {
            partitions[*to].prefetch(&key);
        }
    }
    for (to, record, offset) in burst {
        let put = Put { flags: record.flags, expires: record.expires, is_stale: record.is_stale, ..Put::default() };
        let partition = &mut partitions[*to];
        let Ok(key) = partition.key(record.key) else {
            return Err(SnapshotError::Malformed { offset: *offset, what: "no store takes a key of that length" });
        };
        match partition.put(&key, record.value, put) {
            Ok(_) => loaded.stored += 1,
            Err(Refused::TooLarge { .. } | Refused::Full) => {
                loaded.misfits += 1;
                loaded.misfit_bytes += (record.key.len() + record.value.len()) as u64;
            }
            Err(source) => {
                let key = String::from_utf8_lossy(record.key).into_owned();
                return Err(SnapshotError::Misfit { offset: *offset, key, source });
            }
        }
    }
    Ok(())
}
