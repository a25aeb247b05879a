//! Work that can wait until messages are sent: the endpoint sends at the end of its iteration, so a task does this work
//! in the next one.
//!
//! Followers execute committed entries there, since nobody waits for that, while the leader waits for their
//! acknowledgements. A leader prefetches the state machine's memory for its new commands there, while followers append
//! them.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use arrayvec::ArrayVec;
use raft::GetEntriesContext;
use raft::eraftpb::{Entry, EntryType};

use super::core::Core;
use crate::machine::PREFETCHED_MAX;
use crate::probe::Stage;
use crate::wire::command::Command;

/// Entries, and bytes of entries, that a non-leader executes in one turn of the event loop.
const TURN_ENTRIES_MAX: usize = 1024;
const TURN_BYTES_MAX: usize = 1 << 20;
/// A replica that lacks more entries than this is behind: it would have to fetch or execute all of them before it can
/// serve, and others can serve sooner. So it gets no votes, does not stand for election, and answers no reads.
pub(super) const BEHIND_MAX: u64 = 4096;

/// The work that waits.
#[derive(Default)]
pub(super) struct Later {
    /// Committed entries that are not executed.
    entries: VecDeque<Entry>,
    /// The last entry whose memory was prefetched.
    prefetched: u64,
    is_due: bool,
    /// The task has seen that work is due, and lets one iteration of the event loop pass.
    has_yielded: bool,
    waker: Option<Waker>,
}

impl Later {
    /// Makes the task run in the next iteration of the event loop.
    pub fn set_due(&mut self) {
        if std::mem::replace(&mut self.is_due, true) {
            return;
        }
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Tells the task whether to work now.
    pub fn is_time(&mut self, context: &Context<'_>) -> bool {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
        if !self.is_due {
            return false;
        }
        if !std::mem::replace(&mut self.has_yielded, true) {
            context.waker().wake_by_ref();
            return false;
        }
        (self.is_due, self.has_yielded) = (false, false);
        true
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets the entries: a snapshot contains their effects.
    pub fn forget(&mut self) {
        self.entries.clear();
    }
}

impl Core {
    /// Executes committed entries, now or later.
    pub fn commit(&mut self, entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        if self.later.entries.is_empty() {
            self.later.entries = entries.into();
        } else {
            self.later.entries.extend(entries);
        }
        if self.is_leader() {
            self.execute_committed();
        } else {
            self.later.set_due();
        }
    }

    /// Executes all committed entries.
    pub fn execute_committed(&mut self) {
        while self.execute_burst() > 0 {}
    }

    /// Executes as many committed entries as a turn may take.
    fn execute_for_a_turn(&mut self) {
        let (mut entries, mut bytes) = (0, 0);
        while entries < TURN_ENTRIES_MAX && bytes < TURN_BYTES_MAX {
            let waiting = self.later.entries.len();
            match self.execute_burst() {
                0 => return,
                executed => bytes += executed,
            }
            entries += waiting - self.later.entries.len();
        }
        if !self.later.entries.is_empty() {
            self.later.set_due();
        }
    }

    /// Executes the next entries, unless the state is not restored yet. Returns their bytes; 0 if there are none.
    fn execute_burst(&mut self) -> usize {
        if self.own_restoring.is_some() {
            return 0;
        }
        if self.later.entries.len() <= 1 {
            let Some(entry) = self.later.entries.pop_front() else { return 0 };
            self.execute_entry(&entry);
            return size_of::<Entry>() + entry.data.len();
        }
        let burst: ArrayVec<Entry, PREFETCHED_MAX> =
            (0..PREFETCHED_MAX).map_while(|_| self.later.entries.pop_front()).collect();
        self.prefetch(&burst);
        burst.iter().for_each(|entry| self.execute_entry(entry));
        burst.iter().map(|entry| size_of::<Entry>() + entry.data.len()).sum()
    }

    /// Whether so many entries wait to be executed that this replica cannot serve for a while.
    pub fn has_backlog(&self) -> bool {
        self.later.entries.len() as u64 > BEHIND_MAX
    }

    fn execute_entry(&mut self, entry: &Entry) {
        self.counters.applied += 1;
        match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => self.waiters.pass(entry.index),
            EntryType::EntryNormal => self.execute(entry),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => self.change_members(entry),
        }
        self.applied = entry.index;
    }

    fn prefetch(&self, entries: &[Entry]) {
        self.begin(Stage::Prefetch);
        let of_machine = entries.iter().filter(|entry| entry.get_entry_type() == EntryType::EntryNormal);
        let bodies = of_machine.filter_map(|entry| Some(Command::parse(&entry.data).ok()?.body));
        let bodies: ArrayVec<&[u8], PREFETCHED_MAX> = bodies.take(PREFETCHED_MAX).collect();
        self.state.machine.prefetch(&bodies);
        self.end(Stage::Prefetch);
    }

    /// This leader has appended new commands.
    pub fn prefetch_later(&mut self) {
        self.later.set_due();
    }

    /// Does the work that waited.
    pub fn work_later(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if !self.later.entries.is_empty() {
            self.execute_for_a_turn();
            self.report_applied();
            self.compact_if_due();
        }
        if self.is_leader() {
            self.prefetch_appended();
        }
    }

    /// Prefetches memory for commands that are in the log and not executed.
    fn prefetch_appended(&mut self) {
        let log = self.raft.store();
        let first = self.applied.max(self.later.prefetched) + 1;
        // Those of an election that was just won are not in the log yet.
        let last = log.last_index().unwrap_or(0).min(self.applied + PREFETCHED_MAX as u64);
        if first > last {
            return;
        }
        let end = last + 1;
        self.later.prefetched = last;
        if let Ok(entries) = log.entries(first, end, None, GetEntriesContext::empty(false)) {
            self.prefetch(&entries);
        }
    }
}
