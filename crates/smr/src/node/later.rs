//! What can wait until messages are on their way: the endpoint sends at the end of its iteration, so this is done by a task in the next.
//!
//! Followers execute committed entries then, since nobody waits for that, but the leader waits for their answers. A leader has its state machine ask for the
//! memory that its new commands need, while followers append them.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use arrayvec::ArrayVec;
use raft::GetEntriesContext;
use raft::eraftpb::{Entry, EntryType};

use super::core::Core;
use crate::config::NodeError;
use crate::log::LogStore;
use crate::machine::{PREFETCHED_MAX, StateMachine};
use crate::probe::Stage;
use crate::wire::command::Command;

/// Entries, and bytes of them, that are executed in one turn of the event loop by a replica that does not lead.
const TURN_ENTRIES_MAX: usize = 1024;
const TURN_BYTES_MAX: usize = 1 << 20;
/// A replica where more entries wait to be executed does not ask for votes: it would have to execute all of them
/// before it serves anybody.
const BACKLOG_MAX: usize = 4096;
/// What waits.
#[derive(Default)]
pub(super) struct Later {
    /// Committed, and not executed.
    entries: VecDeque<Entry>,
    /// Up to which entry memory was asked for.
    prefetched: u64,
    is_due: bool,
    /// The task has seen that it is due, and lets one iteration of the event loop pass.
    has_yielded: bool,
    waker: Option<Waker>,
}

impl Later {
    /// Has the task run in the next iteration of the event loop.
    pub fn set_due(&mut self) {
        if std::mem::replace(&mut self.is_due, true) {
            return;
        }
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Asked by the task whether it is to work now.
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

    /// Forgets entries: a snapshot has what they did.
    pub fn forget(&mut self) {
        self.entries.clear();
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Executes committed entries, now or later.
    pub fn commit(&mut self, entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        self.later.entries.extend(entries);
        if self.is_leader() {
            self.execute_committed();
        } else {
            self.later.set_due();
        }
    }

    /// Executes all that is committed.
    pub fn execute_committed(&mut self) {
        while self.execute_burst() > 0 {}
    }

    /// Executes as much of what is committed as a turn may take.
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

    /// Executes the next entries, unless the state is not there yet. Gives the bytes that they take; 0 if there are
    /// none.
    fn execute_burst(&mut self) -> usize {
        if self.own_restoring.is_some() {
            return 0;
        }
        let burst: ArrayVec<Entry, PREFETCHED_MAX> =
            (0..PREFETCHED_MAX).map_while(|_| self.later.entries.pop_front()).collect();
        if burst.len() > 1 {
            self.prefetch(&burst);
        }
        burst.iter().for_each(|entry| self.execute_entry(entry));
        burst.iter().map(|entry| size_of::<Entry>() + entry.data.len()).sum()
    }

    /// Whether so much waits to be executed that this replica could serve nobody for a while.
    pub fn has_backlog(&self) -> bool {
        self.later.entries.len() > BACKLOG_MAX
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

    /// New commands were appended by this leader.
    pub fn prefetch_later(&mut self) {
        self.later.set_due();
    }

    /// What waited.
    ///
    /// # Errors
    /// As for taking a snapshot, which may be due now.
    pub fn work_later(&mut self) -> Result<(), NodeError> {
        if self.failure.is_some() {
            return Ok(());
        }
        if !self.later.entries.is_empty() {
            self.execute_for_a_turn();
            self.report_applied();
            self.compact_if_due()?;
        }
        if self.is_leader() {
            self.prefetch_appended();
        }
        Ok(())
    }

    /// Asks for the memory of commands that are in the log and not executed.
    fn prefetch_appended(&mut self) {
        let log = &self.raft.raft.raft_log;
        let first = self.applied.max(self.later.prefetched) + 1;
        let end = log.last_index().min(self.applied + PREFETCHED_MAX as u64) + 1;
        if first >= end {
            return;
        }
        self.later.prefetched = end - 1;
        if let Ok(entries) = self.raft.store().entries(first, end, None, GetEntriesContext::empty(false)) {
            self.prefetch(&entries);
        }
    }
}
