//! The part that one group has of a log that several share.

use super::disk::Disk;
use super::error::Misplaced;
use super::log::Wal;
use super::record::{Base, Position};
use super::state::LogState;

/// Spreads numbers of groups over the bits of an identity.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The snapshot that all first members of a cluster make alike.
const FIRST: Position = Position { index: 1, term: 1 };

/// Names a group's part of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The identity of the log.
    pub log: u64,
    /// The number of the group.
    pub group: u16,
}

impl Part {
    /// The identity that snapshots of this part have. That of group 0 is the log's own.
    pub(super) fn identity(self) -> u64 {
        self.log ^ u64::from(self.group).wrapping_mul(SPREAD)
    }

    /// Whether a snapshot of this group must be a file. The first of a group other than 0 need not be: what is in it
    /// follows from that of group 0, so whoever has that can make it again, and a thousand groups are founded with the
    /// flushes of one.
    pub fn needs_file(self, snapshot: Position) -> bool {
        snapshot.index > 0 && (self.group == 0 || snapshot != FIRST)
    }
}

impl From<u64> for Part {
    /// Group 0 of the log with this identity.
    fn from(log: u64) -> Part {
        Part { log, group: 0 }
    }
}

/// What the log knows of a group.
#[derive(Debug, Default)]
pub struct GroupState {
    pub state: LogState,
    /// Its first entry in the frame that is being collected.
    pub frame_entries: Option<u64>,
    /// Its state at the end of the last frame that was handed to the writer.
    pub handed: Base,
}

impl GroupState {
    /// One as it was found at the start of a segment.
    pub fn found(base: Base) -> Result<GroupState, Misplaced> {
        Ok(GroupState { state: LogState::new(base)?, frame_entries: None, handed: base })
    }
}

impl<D: Disk> Wal<D> {
    /// Gives the handle of another group of the same log: one directory, one writer, one flush for all groups. A group that was never
    /// written to is empty. Keep one handle for each group: a snapshot that was handed over is known to its handle alone.
    pub fn of_group(&self, group: u16) -> Wal<D> {
        self.handle(group)
    }

    /// The group whose handle this is.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Names this group's part of the log, for its snapshots.
    pub fn part(&self) -> Part {
        Part { log: self.log(), group: self.group }
    }

    /// The groups that were written to.
    pub fn groups(&self) -> Vec<u16> {
        self.inner().groups.keys().copied().collect()
    }
}
