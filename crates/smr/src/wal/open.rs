//! Opens a log, or creates one.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::commit::{Shared, Stepper, Threaded};
use super::config::WalConfig;
use super::disk::{Disk, DiskFile};
use super::error::{Failure, WalError};
use super::format::{
    FRAME_HEADER_BYTES, FrameHeader, Place, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION, frame_bytes,
};
use super::log::{Driver, Parts, Wal, frame_of};
use super::part::Part;
use super::record::{BASE_BYTES, Base, Record};
use super::recover::{Recovered, Torn, recover};
use super::segment::{UNFINISHED, segment_name, segment_number};
use super::segments::Segments;
use super::snapshot::{SnapshotReader, is_snapshot_name, snapshot_name};
use super::work::put_header;
use super::writer::{Writer, create_segment};

/// Findings of an opening.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opening {
    /// Whether the log was created now.
    pub is_new: bool,
    /// The part left unfinished by a crash, which was cut off at the end. No durable data is lost by that, unless the
    /// disk damaged exactly the batches that were flushed last, which cannot be told apart.
    pub torn: Option<Torn>,
    /// Files that were left over, and are now removed.
    pub removed: Vec<String>,
}

/// Opens the log in a directory, with a writer thread. Creates one if there is none.
///
/// Reads all segments once; needs memory for the longest frame and 32 bytes for each entry.
///
/// # Errors
/// [`WalError`]. The message says which file is wrong, where, and what to do.
pub fn open<D: Disk>(disk: D, config: WalConfig) -> Result<(Wal<D>, Opening), WalError> {
    open_with(disk, config, |shared, writer| Ok(Driver::Threaded { _thread: Threaded::start(shared, writer)? }))
}

/// Opens the log in a directory, without a thread: [`Wal::stepper`] does the thread's work, in virtual time.
///
/// # Errors
/// As [`open`].
pub fn open_stepped<D: Disk>(disk: D, config: WalConfig) -> Result<(Wal<D>, Opening), WalError> {
    open_with(disk, config, |shared, writer| Ok(Driver::Stepped(Stepper::new(shared, writer))))
}

fn open_with<D: Disk>(
    disk: D,
    config: WalConfig,
    drive: impl FnOnce(Arc<Shared>, Writer<D>) -> Result<Driver<D>, WalError>,
) -> Result<(Wal<D>, Opening), WalError> {
    config.check()?;
    let io = |what, name: &str, source| WalError::Io { what, path: disk.place(name), source };
    let mut names = disk.list().map_err(|source| io("list", "", source))?;
    names.sort_unstable();
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    // A crash may have removed some of the obsolete ones, and not others.
    let first = (1..numbers.len()).rev().find(|at| numbers[at - 1] + 1 != numbers[*at]).unwrap_or(0);
    let needed = &numbers[first..];

    let mut opening = Opening { is_new: needed.is_empty(), ..Opening::default() };
    if needed.is_empty() {
        if names.iter().any(|name| is_snapshot_name(name)) {
            // The log that the snapshot belonged to is gone, and with it everything acknowledged after the snapshot.
            return Err(WalError::Missing { path: disk.place(&segment_name(1)) });
        }
        // Remains of an earlier attempt are removed first: so they cannot be mistaken for a part of this one, whatever
        // a crash leaves of both.
        for name in names.extract_if(.., |name| is_unfinished(name)) {
            disk.remove(&name).map_err(|source| io("remove", &name, source))?;
            opening.removed.push(name);
        }
        if !opening.removed.is_empty() {
            disk.flush_directory().map_err(|source| io("flush", "", source))?;
        }
        create(&disk, &config)?;
    }
    let needed = if needed.is_empty() { &[1] } else { needed };
    let recovered = recover(&disk, config.owner, needed)?;
    opening.torn = recovered.torn;

    // The snapshots that the log refers to.
    let mut kept = BTreeSet::new();
    for (group, of) in &recovered.groups {
        let snapshot = of.state.base().compaction.snapshot;
        let (part, name) = (Part { log: recovered.log, group: *group }, snapshot_name(*group, snapshot));
        if part.needs_file(snapshot) || names.contains(&name) {
            SnapshotReader::open(&disk, part, snapshot)?;
            kept.insert(name);
        }
    }
    // Leftovers of removals, unfinished segments and snapshots, and snapshots that the log does not refer to.
    for name in names {
        let is_left_over = is_unfinished(&name)
            || segment_number(&name).is_some_and(|number| !needed.contains(&number))
            || is_snapshot_name(&name) && !kept.contains(&name);
        if is_left_over {
            disk.remove(&name).map_err(|source| io("remove", &name, source))?;
            opening.removed.push(name);
        }
    }
    // The names as well: the previous process may have ended before it flushed them.
    disk.flush_directory().map_err(|source| io("flush", "", source))?;
    Ok((start(disk, config, recovered, drive)?, opening))
}

/// Whether a file is an unfinished segment or snapshot.
fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(|name| segment_number(name).is_some() || is_snapshot_name(name))
}

/// Creates the first segment of a new log.
fn create<D: Disk>(disk: &D, config: &WalConfig) -> Result<(), WalError> {
    let log = disk.random().map_err(|source| WalError::Io {
        what: "find a random number for",
        path: disk.place(""),
        source,
    })?;
    let header = SegmentHeader {
        log,
        owner: config.owner,
        number: 1,
        sequence: 1,
        file_bytes: config.segment_bytes,
        version: VERSION,
    };
    let mut first = frame_of(&Record::Base(Base::default()));
    let payload = &first[FRAME_HEADER_BYTES..];
    let offset = SEGMENT_HEADER_BYTES as u32;
    let frame = FrameHeader {
        payload_bytes: payload.len() as u32,
        payload_checksum: crc32c::crc32c(payload),
        sequence: 1,
        group: 1,
        group_start: offset,
    };
    put_header(&mut first, &frame, Place { log, segment: 1, offset });
    first.resize(frame_bytes(BASE_BYTES), 0);
    let made = create_segment(disk, header, &first);
    made.map(drop).map_err(|Failure { what, path, source }| {
        let source = Arc::into_inner(source).unwrap_or_else(|| std::io::ErrorKind::Other.into());
        WalError::Io { what, path, source }
    })
}

fn start<D: Disk>(
    disk: D,
    config: WalConfig,
    recovered: Recovered,
    drive: impl FnOnce(Arc<Shared>, Writer<D>) -> Result<Driver<D>, WalError>,
) -> Result<Wal<D>, WalError> {
    let Recovered { groups, log, segments, end, sequence, group, version, .. } = recovered;
    let last = segments.last().map_or(1, |(number, _)| *number);
    let name = segment_name(last);
    let file = disk.open(&name).map_err(|source| WalError::Io { what: "open", path: disk.place(&name), source })?;
    debug_assert!(file.len().is_ok_and(|len| u64::from(end) <= len), "the end is in the file");
    let shared = Arc::new(Shared::new(sequence));
    let driver = drive(shared.clone(), Writer::new(disk.clone(), file, log, last, group))?;
    let segments = Segments {
        bytes: segments.iter().map(|(_, bytes)| u64::from(*bytes)).sum(),
        // A segment of an older version gets no frames of this one: the next frame begins another segment.
        end: if version == VERSION { end } else { segments.last().map_or(end, |(_, bytes)| *bytes) },
        all: segments.into(),
    };
    Ok(Wal::new(Parts { config, disk, log, groups, segments, sequence, shared, driver }))
}
