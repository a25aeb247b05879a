//! Restores a state from a snapshot, one entry at a time, so that a piece may end between any two.

use dunlin_smr::machine::RestoreError;

use super::SNAPSHOT_VERSION;
use super::state::{Held, Leaf, Record, State};
use crate::types::{EpochChange, Event, Revision};
use crate::wire::{Wire, WireError, take_len};

/// A partly restored state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Restore {
    state: State,
    part: Part,
}

/// The part that comes next, and how many items of a repeated part are left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    Epochs(usize),
    Members(usize),
    Leases(usize),
    Tree(usize),
    History(usize),
    Nothing,
}

fn wrong(why: WireError) -> RestoreError {
    RestoreError::new(why.to_string())
}

fn take<W: Wire>(rest: &mut &[u8]) -> Result<W, RestoreError> {
    W::take(rest).map_err(wrong)
}

fn count(rest: &mut &[u8]) -> Result<usize, RestoreError> {
    take_len(rest).map_err(wrong)
}

impl Restore {
    /// Takes about `bytes` bytes from the byte `from` on; returns where the next piece begins.
    ///
    /// # Errors
    /// If it is not a snapshot.
    pub fn take_piece(&mut self, snapshot: &[u8], from: usize, bytes: usize) -> Result<usize, RestoreError> {
        let mut rest = &snapshot[from..];
        let end = rest.len().saturating_sub(bytes);
        while self.part != Part::Nothing && (rest.len() > end || rest.is_empty()) {
            self.part = self.take_entry(&mut rest)?;
        }
        if self.part == Part::Nothing && !rest.is_empty() {
            return Err(wrong(WireError::Long));
        }
        Ok(snapshot.len() - rest.len())
    }

    /// The state, once all pieces were taken.
    pub fn into_state(self) -> State {
        self.state
    }

    fn take_entry(&mut self, rest: &mut &[u8]) -> Result<Part, RestoreError> {
        Ok(match self.part {
            Part::Head => {
                let version: u8 = take(rest)?;
                if version != SNAPSHOT_VERSION {
                    let why = format!("it has version {version}, and this program reads {SNAPSHOT_VERSION}");
                    return Err(RestoreError::new(why));
                }
                (self.state.revision, self.state.epoch, self.state.reign) = (take(rest)?, take(rest)?, take(rest)?);
                self.state.failure_timeout_ms = take(rest)?;
                Part::Epochs(count(rest)?)
            }
            Part::Epochs(0) => {
                let last = self.state.epochs.back().map_or(self.state.epoch, |last| last.epoch);
                check(last == self.state.epoch, "its epochs end before it does")?;
                Part::Members(count(rest)?)
            }
            Part::Epochs(left) => {
                let change: EpochChange = take(rest)?;
                self.check_time(change.revision)?;
                let follows =
                    self.state.epochs.back().is_none_or(|before| before.epoch.checked_add(1) == Some(change.epoch));
                check(follows && change.epoch > 0, "its epochs have gaps")?;
                self.state.epochs.push_back(change);
                Part::Epochs(left - 1)
            }
            Part::Members(0) => Part::Leases(count(rest)?),
            Part::Members(left) => {
                let (id, record): (_, Record) = (take(rest)?, take(rest)?);
                self.check_time(record.incarnation)?;
                self.state.members.insert(id, record);
                Part::Members(left - 1)
            }
            Part::Leases(0) => Part::Tree(count(rest)?),
            Part::Leases(left) => {
                let (name, held): (_, Held) = (take(rest)?, take(rest)?);
                self.check_time(held.token)?;
                self.state.leases.insert(name, held);
                Part::Leases(left - 1)
            }
            Part::Tree(0) => {
                check(self.state.tree_bytes == take(rest)?, "the bytes of its tree are not what it says")?;
                Part::History(count(rest)?)
            }
            Part::Tree(left) => {
                let (path, leaf): (String, Leaf) = (take(rest)?, take(rest)?);
                self.check_time(leaf.version)?;
                self.state.tree_bytes += (path.len() + leaf.value.len()) as u64;
                self.state.tree.insert(path, leaf);
                Part::Tree(left - 1)
            }
            Part::History(0) => {
                let is_counted = self.state.history_bytes() == take(rest)?;
                check(is_counted, "the bytes of its events are not what it says")?;
                check(self.state.history_is_up_to_date(), "its events end before it does")?;
                Part::Nothing
            }
            Part::History(left) => {
                let event: Event = take(rest)?;
                check(self.state.restore_event(event), "its events have gaps")?;
                Part::History(left - 1)
            }
            Part::Nothing => Part::Nothing,
        })
    }

    fn check_time(&self, revision: Revision) -> Result<(), RestoreError> {
        check(revision <= self.state.revision, "it has revisions of the future")
    }
}

fn check(is_right: bool, why: &str) -> Result<(), RestoreError> {
    if is_right { Ok(()) } else { Err(RestoreError::new(why)) }
}
