//! Recovers the state of a log from files: reads all segments in order, and reports damage.
//!
//! A crash can damage only the end of the last write: frames of the group that was not flushed yet, torn in any way.
//! They are cut off, which loses nothing that was reported as durable. Any other deviation is damage, and the log is
//! not opened.

use std::collections::BTreeMap;

use super::disk::{Disk, DiskFile};
use super::error::{Misplaced, WalError};
use super::format::{FRAME_HEADER_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, VERSION, frame_bytes};
use super::part::GroupState;
use super::record::{Base, ENTRY_HEADER_BYTES, Record};
use super::segment::{Found, Segment, segment_name};
use super::state::Slot;

/// Numbers of frames and groups never reach the end of this range.
const NUMBERS: std::ops::Range<u64> = 1..1 << 63;

/// Where a crash cut the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    /// The number of the segment.
    pub segment: u64,
    /// The offset in it at which the last whole frame ends.
    pub offset: u32,
    /// The bytes after that, which are lost.
    pub bytes: u32,
}

/// A log as it was found.
#[derive(Debug)]
pub struct Recovered {
    pub groups: BTreeMap<u16, GroupState>,
    pub log: u64,
    /// The version of the last segment.
    pub version: u32,
    /// Numbers and lengths of the segments, without gaps.
    pub segments: Vec<(u64, u32)>,
    /// The offset of the next frame in the last of them.
    pub end: u32,
    pub sequence: u64,
    pub group: u64,
    pub torn: Option<Torn>,
}

/// Reads the segments with these numbers, which ascend without gaps, and repairs the end of the last one.
pub fn recover<D: Disk>(disk: &D, owner: u64, numbers: &[u64]) -> Result<Recovered, WalError> {
    let mut found: Option<Recovered> = None;
    for (at, number) in numbers.iter().enumerate() {
        let mut segment = Segment::open(disk, *number)?;
        let header = segment.header;
        if header.owner != owner {
            return Err(WalError::Owner { path: segment.path, found: header.owner, owner });
        }
        let base = first_record(&mut segment)?;
        let recovered = match &mut found {
            None => found.insert(Recovered {
                groups: groups_of(&base.bases).map_err(|Misplaced(what)| segment.damaged(base.offset, what))?,
                log: header.log,
                version: header.version,
                segments: Vec::new(),
                end: 0,
                sequence: header.sequence - 1,
                group: base.group - 1,
                torn: None,
            }),
            Some(before) => {
                if before.log != header.log {
                    return Err(segment.damaged(16, "the segment is one of another log"));
                }
                if before.sequence + 1 != header.sequence || before.group + 1 != base.group {
                    return Err(segment.damaged(40, "frames are missing at the end of the segment before"));
                }
                if !before.is_at(&base.bases) {
                    return Err(segment.damaged(base.offset, "the segment does not go on where the one before it ends"));
                }
                before
            }
        };
        recovered.version = header.version;
        recovered.segments.push((*number, header.file_bytes));
        read_frames(&mut segment, recovered, at + 1 == numbers.len())?;
    }
    let Some(mut recovered) = found else {
        return Err(WalError::Missing { path: disk.place(&segment_name(1)) });
    };
    if !recovered.groups.values().all(|group| group.state.is_complete()) {
        let first = numbers.first().copied().unwrap_or(1);
        return Err(WalError::Missing { path: disk.place(&segment_name(first.saturating_sub(1))) });
    }
    recovered.groups.values_mut().for_each(|group| group.handed = group.state.base());
    Ok(recovered)
}

/// What a segment says about the earlier ones.
struct First {
    bases: BTreeMap<u16, Base>,
    offset: u64,
    group: u64,
}

/// Returns the state that a segment begins with, which was flushed before the segment got its name.
fn first_record<F: DiskFile>(segment: &mut Segment<F>) -> Result<First, WalError> {
    let start = SEGMENT_HEADER_BYTES as u32;
    let offset = u64::from(start);
    let header = match segment.found_at(start)? {
        Found::Frame(header) => header,
        Found::End => return Err(segment.damaged(offset, "the segment has no first frame")),
        Found::Broken(what) => return Err(segment.damaged(offset, what)),
    };
    if header.sequence != segment.header.sequence
        || !NUMBERS.contains(&header.sequence)
        || !NUMBERS.contains(&header.group)
    {
        return Err(segment.damaged(offset, "the first frame has a wrong number"));
    }
    match bases(segment.records(start, &header)?) {
        Some(bases) => Ok(First { bases, offset, group: header.group }),
        None => Err(segment.damaged(offset, "the segment does not begin with a state")),
    }
}

/// Parses the groups' states in a segment's first frame: one of each, and nothing else.
fn bases(mut records: &[u8]) -> Option<BTreeMap<u16, Base>> {
    let mut bases = BTreeMap::new();
    while !records.is_empty() {
        let (group, record, len) = Record::parse(records).ok()?;
        let Record::Base(base) = record else { return None };
        if bases.insert(group, base).is_some() {
            return None;
        }
        records = &records[len..];
    }
    (!bases.is_empty()).then_some(bases)
}

fn groups_of(bases: &BTreeMap<u16, Base>) -> Result<BTreeMap<u16, GroupState>, Misplaced> {
    bases.iter().map(|(group, base)| Ok((*group, GroupState::found(*base)?))).collect()
}

impl Recovered {
    /// Whether all groups have the state that a segment beginning here claims. It may name groups that were never
    /// written to.
    fn is_at(&self, bases: &BTreeMap<u16, Base>) -> bool {
        let found = |group: &u16| self.groups.get(group).map_or_else(Base::default, |of| of.state.base());
        self.groups.keys().all(|group| bases.contains_key(group))
            && bases.iter().all(|(group, base)| found(group) == *base)
    }
}

fn read_frames<F: DiskFile>(
    segment: &mut Segment<F>,
    recovered: &mut Recovered,
    is_last: bool,
) -> Result<(), WalError> {
    let mut offset = SEGMENT_HEADER_BYTES as u32;
    let mut group_start = offset;
    loop {
        let header = match segment.found_at(offset)? {
            Found::Frame(header) => header,
            Found::End => break,
            Found::Broken(what) if !is_last || segment.was_flushed(offset)? => {
                return Err(segment.damaged(u64::from(offset), what));
            }
            Found::Broken(_) => {
                recovered.torn = cut(segment, offset)?;
                break;
            }
        };
        if header.group == recovered.group + 1 && header.group_start == offset {
            group_start = offset;
        } else if header.group != recovered.group || header.group_start != group_start {
            return Err(segment.damaged(u64::from(offset), "a frame has the number of another flush"));
        }
        if header.sequence != recovered.sequence + 1 {
            return Err(segment.damaged(u64::from(offset), "a frame has a wrong number"));
        }
        recovered.sequence = header.sequence;
        recovered.group = header.group;
        apply(segment, offset, &header, recovered)?;
        offset += frame_bytes(header.payload_bytes as usize) as u32;
    }
    recovered.end = offset;
    if is_last {
        write_again(segment, group_start, offset)?;
    }
    Ok(())
}

fn apply<F: DiskFile>(
    segment: &mut Segment<F>,
    offset: u32,
    header: &FrameHeader,
    recovered: &mut Recovered,
) -> Result<(), WalError> {
    let number = segment.header.number;
    let is_first = offset as usize == SEGMENT_HEADER_BYTES;
    let mut at = 0;
    while at < header.payload_bytes as usize {
        let place = offset + FRAME_HEADER_BYTES as u32 + at as u32;
        let groups = &mut recovered.groups;
        let version = segment.header.version;
        let done = Record::parse(&segment.records(offset, header)?[at..]).and_then(|(group, record, len)| {
            if group != 0 && version < VERSION {
                return Err("reserved bytes are not zero");
            }
            let state = &mut groups.entry(group).or_default().state;
            match record {
                Record::Entry(entry) => {
                    let slot = Slot {
                        term: entry.term,
                        segment: number,
                        offset: place + ENTRY_HEADER_BYTES as u32,
                        payload_bytes: entry.payload.len() as u32,
                        checksum: crc32c::crc32c(entry.payload),
                        kind: entry.kind,
                    };
                    state.append(entry.index, slot)
                }
                Record::HardState(hard_state) => {
                    state.set_hard_state(hard_state);
                    Ok(())
                }
                Record::Truncate(last) => state.truncate(last),
                Record::Compact(compaction) => state.compact(compaction),
                Record::Reset(snapshot) => state.reset(snapshot),
                Record::Base(_) if is_first => Ok(()),
                Record::Base(_) => Err(Misplaced("a segment begins inside of another one")),
            }
            .map_err(|Misplaced(what)| what)?;
            Ok(len)
        });
        at += done.map_err(|what| segment.damaged(u64::from(place), what))?;
    }
    Ok(())
}

/// Overwrites partial frames left by a crash with zeros, so that they cannot be mistaken for later frames.
fn cut<F: DiskFile>(segment: &mut Segment<F>, offset: u32) -> Result<Option<Torn>, WalError> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let Some(last) = segment.last_nonzero_from(offset)? else { return Ok(None) };
    let mut at = offset;
    while at <= last {
        let len = ZEROS.len().min((last - at) as usize + 1);
        segment.file.write_at(u64::from(at), &ZEROS[..len]).map_err(|source| segment.io("write", source))?;
        at += len as u32;
    }
    segment.file.flush().map_err(|source| segment.io("flush", source))?;
    Ok(Some(Torn { segment: segment.header.number, offset, bytes: last + 1 - offset }))
}

/// Rewrites the last group unchanged, and flushes it. That it can be read does not mean that it is durable: the process
/// may have ended before its flush, or because the flush failed, after which the system marks pages clean that it could
/// not write. All earlier groups were flushed.
fn write_again<F: DiskFile>(segment: &mut Segment<F>, start: u32, end: u32) -> Result<(), WalError> {
    let mut at = start;
    let mut bytes = vec![0; (64 << 10).min((end - start) as usize)];
    while at < end {
        let len = bytes.len().min((end - at) as usize);
        let read =
            segment.file.read_at(u64::from(at), &mut bytes[..len]).map_err(|source| segment.io("read", source))?;
        if read < len {
            return Err(segment.damaged(u64::from(at) + read as u64, "the segment was truncated"));
        }
        segment.file.write_at(u64::from(at), &bytes[..len]).map_err(|source| segment.io("write", source))?;
        at += len as u32;
    }
    segment.file.flush().map_err(|source| segment.io("flush", source))
}
