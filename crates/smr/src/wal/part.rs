//! One group's part of a shared log.

use super::disk::Disk;
use super::error::Misplaced;
use super::log::Wal;
use super::record::{Base, Position};
use super::state::LogState;

/// Spreads group numbers over the bits of an identity.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The snapshot that is identical for all first members of a cluster.
const FIRST: Position = Position { index: 1, term: 1 };

/// Identifies a group's part of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The identity of the log.
    pub log: u64,
    /// The number of the group.
    pub group: u16,
}

impl Part {
    /// Returns the identity that snapshots of this part have. For group 0, it is the log's own.
    pub(super) fn identity(self) -> u64 {
        self.log ^ u64::from(self.group).wrapping_mul(SPREAD)
    }

    /// Whether a snapshot of this group must be a file. The first snapshot of a group other than 0 need not be: its
    /// contents follow from group 0's, so the owner can make it again, and a thousand groups are founded with the
    /// flushes of one.
    pub fn needs_file(self, snapshot: Position) -> bool {
        snapshot.index > 0 && (self.group == 0 || snapshot != FIRST)
    }
}

impl From<u64> for Part {
    /// Returns the part of group 0 of the log with this identity.
    fn from(log: u64) -> Part {
        Part { log, group: 0 }
    }
}

/// The log's state of a group.
#[derive(Debug, Default)]
pub struct GroupState {
    pub state: LogState,
    /// The group's first entry in the frame being collected.
    pub frame_entries: Option<u64>,
    /// The group's state at the end of the last frame handed to the writer.
    pub handed: Base,
}

impl GroupState {
    /// Returns a group's state as found at the start of a segment.
    pub fn found(base: Base) -> Result<GroupState, Misplaced> {
        Ok(GroupState { state: LogState::new(base)?, frame_entries: None, handed: base })
    }
}

impl<D: Disk> Wal<D> {
    /// Returns the handle of another group of the same log: one directory, one writer, one flush for all groups. A
    /// group that was never written to is empty. Keep one handle for each group: only the handle that handed a snapshot
    /// over knows of it.
    pub fn of_group(&self, group: u16) -> Wal<D> {
        self.handle(group)
    }

    /// Returns the group of this handle.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Returns the identity of this group's part of the log, for its snapshots.
    pub fn part(&self) -> Part {
        Part { log: self.log(), group: self.group }
    }

    /// Returns the groups that were written to.
    pub fn groups(&self) -> Vec<u16> {
        self.inner().groups.keys().copied().collect()
    }
}
