//! Records as bytes.

use super::format::{ENTRY_BYTES_MAX, u32_at, u64_at};

const ENTRY: u8 = 1;
const HARD_STATE: u8 = 2;
const TRUNCATE: u8 = 3;
const COMPACT: u8 = 4;
const RESET: u8 = 5;
const BASE: u8 = 6;

/// Bytes of an entry before its payload.
pub const ENTRY_HEADER_BYTES: usize = 24;
const HARD_STATE_BYTES: usize = 32;
const TRUNCATE_BYTES: usize = 24;
const COMPACT_BYTES: usize = 40;
const RESET_BYTES: usize = 24;
/// Bytes of the record that a segment begins with.
pub const BASE_BYTES: usize = 80;

/// An entry of the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its number; entries are numbered from 1 without gaps.
    pub index: u64,
    /// The term of the leader that created it: at least 1, and at least that of the entry before.
    pub term: u64,
    /// A number for the user, which says what the payload is.
    pub kind: u8,
    /// The payload, up to [`ENTRY_BYTES_MAX`] bytes.
    pub payload: &'a [u8],
}

/// The state that a node must remember besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// The latest term that it knows.
    pub term: u64,
    /// The node that it voted for in that term; 0 for none.
    pub vote: u64,
    /// The last entry that it knows to be committed.
    pub commit: u64,
}

/// An entry's place in the history of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Its index; 0 for the place before the first entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// What of the log is removed, and the snapshot that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compaction {
    /// The last entry in the snapshot; index 0 if there is none.
    pub snapshot: Position,
    /// The last removed entry: at most that of the snapshot.
    pub compacted: Position,
}

/// The state of a log at the start of a segment, so that the segments before it can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Base {
    /// As last set.
    pub hard_state: HardState,
    /// As last set.
    pub compaction: Compaction,
    /// The last entry.
    pub last: Position,
}

/// One change of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Appends an entry.
    Entry(Entry<'a>),
    /// A new hard state.
    HardState(HardState),
    /// Removes the entries after this one.
    Truncate(Position),
    /// Entries are covered by a snapshot.
    Compact(Compaction),
    /// Removes all entries: the log continues after a snapshot that came from elsewhere.
    Reset(Position),
    /// The start of a segment.
    Base(Base),
}

impl Record<'_> {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Record::Entry(entry) => ENTRY_HEADER_BYTES + entry.payload.len(),
            Record::HardState(_) => HARD_STATE_BYTES,
            Record::Truncate(_) => TRUNCATE_BYTES,
            Record::Compact(_) => COMPACT_BYTES,
            Record::Reset(_) => RESET_BYTES,
            Record::Base(_) => BASE_BYTES,
        }
    }

    /// Appends it to a frame, as a record of this group.
    pub fn write(&self, group: u16, to: &mut Vec<u8>) {
        let [low, high] = group.to_le_bytes();
        let mut start = |kind, second, len: usize| {
            to.extend_from_slice(&[kind, second, low, high]);
            to.extend_from_slice(&(len as u32).to_le_bytes());
        };
        match *self {
            Record::Entry(Entry { index, term, kind, payload }) => {
                start(ENTRY, kind, payload.len());
                numbers(to, &[index, term]);
                to.extend_from_slice(payload);
            }
            Record::HardState(state) => {
                start(HARD_STATE, 0, 0);
                numbers(to, &[state.term, state.vote, state.commit]);
            }
            Record::Compact(Compaction { snapshot, compacted }) => {
                start(COMPACT, 0, 0);
                numbers(to, &[snapshot.index, snapshot.term, compacted.index, compacted.term]);
            }
            Record::Truncate(last) => {
                start(TRUNCATE, 0, 0);
                numbers(to, &[last.index, last.term]);
            }
            Record::Reset(snapshot) => {
                start(RESET, 0, 0);
                numbers(to, &[snapshot.index, snapshot.term]);
            }
            Record::Base(Base { hard_state, compaction, last }) => {
                start(BASE, 0, 0);
                numbers(to, &[hard_state.term, hard_state.vote, hard_state.commit]);
                numbers(to, &[compaction.snapshot.index, compaction.snapshot.term]);
                numbers(to, &[compaction.compacted.index, compaction.compacted.term, last.index, last.term]);
            }
        }
    }

    /// Parses the record at the start of `bytes`: returns its group, the record, and its length.
    pub fn parse(bytes: &[u8]) -> Result<(u16, Record<'_>, usize), &'static str> {
        const CUT: &str = "a record is longer than its frame";
        let (header, rest) = bytes.split_at_checked(8).ok_or(CUT)?;
        let (kind, second, len) = (header[0], header[1], u32_at(header, 4) as usize);
        let group = u16::from_le_bytes([header[2], header[3]]);
        if kind != ENTRY && (second != 0 || len != 0) {
            return Err("reserved bytes are not zero");
        }
        let fixed = match kind {
            ENTRY => ENTRY_HEADER_BYTES,
            HARD_STATE => HARD_STATE_BYTES,
            TRUNCATE => TRUNCATE_BYTES,
            COMPACT => COMPACT_BYTES,
            RESET => RESET_BYTES,
            BASE => BASE_BYTES,
            _ => return Err("a record has an unknown kind"),
        };
        if rest.len() < fixed - 8 {
            return Err(CUT);
        }
        let number = |at: usize| u64_at(rest, 8 * at);
        let position = |at| Position { index: number(at), term: number(at + 1) };
        let hard_state = || HardState { term: number(0), vote: number(1), commit: number(2) };
        let record = match kind {
            ENTRY => {
                if len > ENTRY_BYTES_MAX {
                    return Err("an entry is longer than entries may be");
                }
                let payload = rest[fixed - 8..].get(..len).ok_or(CUT)?;
                Record::Entry(Entry { index: number(0), term: number(1), kind: second, payload })
            }
            HARD_STATE => Record::HardState(hard_state()),
            TRUNCATE => Record::Truncate(position(0)),
            COMPACT => Record::Compact(Compaction { snapshot: position(0), compacted: position(2) }),
            RESET => Record::Reset(position(0)),
            _ => {
                let compaction = Compaction { snapshot: position(3), compacted: position(5) };
                Record::Base(Base { hard_state: hard_state(), compaction, last: position(7) })
            }
        };
        Ok((group, record, fixed + len))
    }
}

fn numbers(to: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}
