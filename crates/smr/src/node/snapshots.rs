//! Snapshots of a replica's own state: when one is taken, and how. It is taken one piece in a turn of the event loop
//! while commands are executed. Then the log writes it in the background, and forgets entries when it is durable.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use dunlin_serve::long_work;
use raft::eraftpb::{ConfState, HardState, Snapshot};

use super::core::{Claim, Core};
use super::transfer::{Incoming, Staging};
use crate::config::NodeError;
use crate::discard::discard;
use crate::log::{Batch, Room, Urgency};
use crate::machine::Piece;
use crate::state::Replicated;

/// Term and index of the snapshot that is identical for all first members of a cluster. It gives them an entry that no
/// later member has in its log. So a later member always gets a snapshot first, and with it the configuration.
pub(super) const FIRST: u64 = 1;
/// Replicas whose ids differ modulo this number take their snapshots at different entries.
const PHASES: u64 = 8;

/// The snapshot that is being taken.
#[derive(Default)]
pub(super) struct Snapshots {
    taking: Option<Taking>,
    /// The group waits for its turn to take or to restore a piece.
    has_turn: bool,
    waits: Waits,
    /// The last entry of the log's snapshot, and the entry with which the next one is due.
    due: Option<(u64, u64)>,
    pause_max: u64,
    /// This group keeps the shared log from getting shorter; its next snapshot keeps no entries.
    holds_log: bool,
}

/// Whether a group waits to take a snapshot.
#[derive(Default, PartialEq, Eq)]
enum Waits {
    #[default]
    No,
    /// For the groups before it.
    InLine,
    /// For its turn of the event loop: no other group takes one.
    Reserved,
}

/// An incomplete snapshot.
struct Taking {
    /// Everything except the state.
    snapshot: Snapshot,
    state: Vec<u8>,
}

/// The groups that have pieces to take or to restore. In each turn of the event loop one of them does one, however many
/// there are.
#[derive(Default)]
pub(super) struct Turns {
    groups: VecDeque<u16>,
    waker: Option<Waker>,
}

impl Turns {
    fn add(&mut self, group: u16) {
        self.groups.push_back(group);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Returns the group whose turn it is. The task that asks runs again in the next iteration of the event loop if
    /// there are others, and when there are again.
    pub fn next(&mut self, context: &Context<'_>) -> Option<u16> {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
        let next = self.groups.pop_front();
        if !self.groups.is_empty() {
            context.waker().wake_by_ref();
        }
        next
    }
}

impl Snapshots {
    /// Whether a snapshot of the own state is being taken.
    pub fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    /// Returns the longest pause of the event loop for a snapshot, in nanoseconds.
    pub fn pause_max(&self) -> u64 {
        self.pause_max
    }
}

impl Core {
    /// Takes a snapshot if the log has grown long.
    pub fn compact_if_due(&mut self) {
        // This runs after each burst, and finding out the length of a log may take a look at all of it. The log only
        // grows while a snapshot is being taken, or waits.
        if self.is_taking() || self.snapshots.waits != Waits::No {
            return;
        }
        let base = self.raft.store().base().get_metadata().index;
        if self.is_turn(base) || self.is_large(base) || self.is_full(base) {
            self.compact();
        }
    }

    /// Takes a snapshot if the log takes no more entries.
    pub fn compact_if_full(&mut self) {
        let base = self.raft.store().base().get_metadata().index;
        if !self.is_taking() && self.is_full(base) {
            self.compact();
        }
    }

    /// Has this group do a piece in its turn.
    pub fn await_turn(&mut self) {
        if !std::mem::replace(&mut self.snapshots.has_turn, true) {
            self.common.turns.borrow_mut().add(self.group);
        }
    }

    /// Reserves a turn to take a snapshot for this group, if it still waits in line, and takes no leader's meanwhile.
    pub fn reserve_taking(&mut self) {
        if std::mem::take(&mut self.snapshots.waits) == Waits::InLine && !self.is_taking() {
            self.snapshots.waits = Waits::Reserved;
            self.common.taking.set(Some(self.group));
            self.await_turn();
        }
    }

    /// Whether this group keeps others from taking a snapshot.
    pub fn keeps_taking(&self) -> bool {
        self.snapshots.waits == Waits::Reserved || self.snapshots.is_taking() || self.raft.store().is_compacting()
    }

    /// It is this group's turn: takes a piece of the snapshot of the own state, and restores one.
    pub fn take_turn(&mut self) {
        self.snapshots.has_turn = false;
        if self.failure.is_none()
            && let Err(error) = self.take_snapshot().and_then(|()| self.continue_restore())
        {
            self.fail(error);
        }
    }

    /// Continues the snapshot of the own state, or begins one if that was reserved for this group.
    fn take_snapshot(&mut self) -> Result<(), NodeError> {
        if self.snapshots.waits == Waits::Reserved { self.begin_snapshot() } else { self.continue_snapshot() }
    }

    /// Whether a snapshot is under way.
    pub fn is_taking(&self) -> bool {
        self.own_restoring.is_some()
            || self.snapshots.taking.is_some()
            || self.staging.is_some()
            || self.raft.store().is_compacting()
    }

    /// Whether enough entries were executed since the snapshot of `base`. Replicas take turns, by their ids.
    fn is_turn(&mut self, base: u64) -> bool {
        let (_, due) = match self.snapshots.due {
            Some(known) if known.0 == base => known,
            _ => *self.snapshots.due.insert((base, self.due_after(base))),
        };
        self.applied >= due
    }

    fn due_after(&self, base: u64) -> u64 {
        let every = self.config.snapshot_entries;
        let offset = every / PHASES * (self.config.id % PHASES);
        ((base + offset) / every + 1).saturating_mul(every) - offset
    }

    /// Whether the log has reached its limit in bytes, or its turn's share of it, and half of the limit was added since
    /// the snapshot of `base`: otherwise another snapshot would not make the log shorter.
    fn is_large(&self, base: u64) -> bool {
        let (log, bytes_max) = (self.raft.store(), self.config.snapshot_log_bytes);
        let earlier = bytes_max / 2 / PHASES * (self.config.id % PHASES);
        log.entry_bytes() >= bytes_max - earlier && log.first_within(self.applied, bytes_max / 2) > base + 1
    }

    /// Whether the log takes no more entries, and a snapshot might make room.
    fn is_full(&self, base: u64) -> bool {
        self.applied > base && self.raft.store().room() == Room::Full
    }

    /// Has this group take a snapshot in its turn, unless one is under way.
    pub fn compact(&mut self) {
        if self.is_taking() || self.snapshots.waits != Waits::No {
            return;
        }
        self.snapshots.waits = Waits::InLine;
        let mut line = self.common.next_taking.borrow_mut();
        // It may have kept its place while it waited no more.
        if !line.contains(&self.group) {
            line.push_back(self.group);
        }
    }

    /// Takes a snapshot at once, unless another group is taking one: others have just given up memory for it.
    pub fn compact_now(&mut self) {
        if self.common.taking.get().is_some() {
            return self.compact();
        }
        if self.failure.is_none()
            && let Err(error) = self.begin_snapshot()
        {
            self.fail(error);
        }
    }

    /// Begins to take a snapshot, unless there is nothing new, or one is under way. No other group takes one.
    ///
    /// # Errors
    /// If the log has failed.
    pub fn begin_snapshot(&mut self) -> Result<(), NodeError> {
        self.snapshots.waits = Waits::No;
        if self.is_taking() || self.applied == self.raft.store().base().get_metadata().index {
            return Ok(());
        }
        if !self.has_memory_for_own() {
            self.give_up_copy();
        }
        if !self.has_memory_for_own() {
            // A replica that keeps up by its log needs no snapshot of another. While the log has room, snapshots being
            // sent finish first.
            self.incoming = None;
            if self.raft.store().room() == Room::Full {
                self.stop_sending_replaced();
            }
            if !self.has_memory_for_own() {
                // The host makes the other groups do the same.
                self.common.starved.set(Some(self.group));
                return Ok(());
            }
        }
        self.common.taking.set(Some(self.group));
        let begun = self.now();
        let snapshot = header(self.applied, self.raft.store().term(self.applied)?, self.conf_state());
        // A machine without support for pieces copies everything now.
        let state = long_work(|| self.state.begin_snapshot());
        self.snapshots.taking = Some(Taking { snapshot, state });
        self.take_piece()?;
        // Now, since pieces for other groups may come in the same burst.
        self.note_snapshots();
        self.note_pause(begun);
        Ok(())
    }

    /// Whether there is memory for the next snapshot of the own state, which is about as large as the one before. These
    /// two always fit.
    pub fn has_memory_for_own(&self) -> bool {
        let others = self.memory_of_others().saturating_add(self.memory_of_other_groups());
        let base = self.raft.store().base().data.len() as u64;
        others == 0 || others.saturating_add(2 * base) <= self.config.snapshot_memory_max
    }

    /// Returns the bytes of other snapshots: one being received, and replaced ones that are still sent.
    pub fn memory_of_others(&self) -> u64 {
        self.memory_of_received() + self.memory_of_replaced()
    }

    /// Returns the bytes of the snapshots that are still sent, although another has replaced them in the log.
    fn memory_of_replaced(&self) -> u64 {
        let base = self.raft.store().base().data.as_ptr();
        let mut sent: Vec<_> = self.sending.iter().map(|data| (data.as_ptr(), data.len() as u64)).collect();
        sent.sort_unstable();
        sent.dedup();
        sent.iter().filter(|(place, _)| *place != base).map(|(_, bytes)| bytes).sum()
    }

    fn stop_sending_replaced(&mut self) {
        let base = self.raft.store().base().data.as_ptr();
        self.sending.retain(|sent| sent.as_ptr() == base);
    }

    /// Returns the bytes of the snapshots that leaders send: one that comes, and one that is restored and written.
    fn memory_of_received(&self) -> u64 {
        self.incoming.as_ref().map_or(0, Incoming::total) + self.staging.as_ref().map_or(0, Staging::total)
    }

    /// Whether there is memory to receive another snapshot of this many bytes, besides all others.
    pub fn has_memory_for(&self, bytes: u64) -> bool {
        let own = self.raft.store().base().data.len() as u64;
        let bases = self.common.base_bytes.get() - self.own_base_bytes + own;
        let others = self.memory_of_other_groups().saturating_add(self.memory_under_way());
        others.saturating_add(bases).saturating_add(bytes) <= self.config.snapshot_memory_max
    }

    /// Whether a snapshot is received though there is no memory. The snapshots that the logs begin with may exceed the
    /// limit for good, and this replica must catch up. So one of a member is always received, also while groups take
    /// snapshots of their own all the time; and another one while there is no other under way.
    pub fn is_received_beyond_limit(&self, claim: Claim) -> bool {
        if claim == Claim::Stranger {
            return self.memory_of_other_groups() + self.memory_under_way() == 0;
        }
        self.common.received_bytes.get() - self.own_received_bytes + self.memory_of_received() == 0
    }

    /// Returns the bytes of this group's snapshots, without the one that its log begins with. The one that is being
    /// taken becomes about as large as that.
    fn memory_under_way(&self) -> u64 {
        let base = self.raft.store().base().data.len();
        let taking = self.snapshots.taking.as_ref().map_or(0, |taking| taking.state.capacity().max(base) as u64);
        self.memory_of_others() + taking + self.raft.store().compacting_bytes()
    }

    /// Tells the other groups how much memory the snapshot takes that this group's log begins with.
    #[inline]
    pub fn note_base(&mut self) {
        let bytes = self.raft.store().base().data.len() as u64;
        if bytes != self.own_base_bytes {
            self.common.base_bytes.set(self.common.base_bytes.get() - self.own_base_bytes + bytes);
            self.own_base_bytes = bytes;
        }
    }

    /// Returns the bytes of the other groups' snapshots, including those being taken.
    fn memory_of_other_groups(&self) -> u64 {
        self.common.snapshot_bytes.get() - self.own_snapshot_bytes
    }

    /// Tells the other groups how much memory this group's snapshots use, and lets the next group take one when this
    /// one has finished.
    #[inline]
    pub fn note_snapshots(&mut self) {
        self.note_base();
        let has_none = self.own_snapshot_bytes == 0 && self.sending.is_empty() && self.incoming.is_none();
        if !has_none || self.is_taking() || self.common.taking.get() == Some(self.group) {
            self.note_other_snapshots();
        }
    }

    fn note_other_snapshots(&mut self) {
        if self.common.taking.get() == Some(self.group) && !self.keeps_taking() {
            self.common.taking.set(None);
        }
        let bytes = self.memory_under_way();
        self.common.snapshot_bytes.set(self.memory_of_other_groups() + bytes);
        self.own_snapshot_bytes = bytes;
        let received = self.memory_of_received();
        self.common.received_bytes.set(self.common.received_bytes.get() - self.own_received_bytes + received);
        self.own_received_bytes = received;
    }

    /// Whether a snapshot of another group gets memory if this one gives up what it keeps or has in part, or, if the log
    /// that all of them share is full, what it still sends.
    pub fn has_memory_to_leave(&self, claim: Claim) -> bool {
        self.copies.are_made()
            || self.incoming.as_ref().is_some_and(|incoming| incoming.leaves_memory_to(claim))
            || self.memory_of_replaced() > 0 && self.stops_sending_for(claim)
    }

    fn stops_sending_for(&self, claim: Claim) -> bool {
        claim == Claim::Own && self.raft.store().room() == Room::Full
    }

    /// Gives that up.
    pub fn leave_memory(&mut self, claim: Claim) {
        self.give_up_copy();
        let incoming = self.incoming.take_if(|incoming| incoming.leaves_memory_to(claim));
        if claim == Claim::Member && incoming.is_some_and(|incoming| incoming.is_slow()) {
            self.given_up += 1;
        }
        if self.stops_sending_for(claim) {
            self.stop_sending_replaced();
        }
        self.note_snapshots();
    }

    /// Takes a snapshot, since this group keeps the shared log from getting shorter. If the last snapshot has all
    /// executed entries, forgets the entries that were kept with it.
    pub fn make_room_in_log(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if self.applied > self.raft.store().base().get_metadata().index {
            self.snapshots.holds_log = true;
            self.compact();
        } else if !self.is_taking()
            && let Err(error) = self.raft.mut_store().forget_kept()
        {
            self.fail(error.into());
        }
    }

    /// Continues the snapshot that is being taken.
    fn continue_snapshot(&mut self) -> Result<(), NodeError> {
        let begun = self.now();
        self.take_piece()?;
        self.note_pause(begun);
        Ok(())
    }

    fn take_piece(&mut self) -> Result<(), NodeError> {
        let Some(mut taking) = self.snapshots.taking.take() else { return Ok(()) };
        match self.state.machine.continue_snapshot(self.config.snapshot_step_bytes, &mut taking.state) {
            Piece::Last => self.keep(Snapshot { data: taking.state.into(), ..taking.snapshot }),
            Piece::Another => {
                self.snapshots.taking = Some(taking);
                self.await_turn();
                Ok(())
            }
        }
    }

    /// Gives a snapshot to the log, which then forgets the entries before it, except those that are kept: at most
    /// `keep_entries`, and at most half of the log's limit in bytes. A full log keeps none.
    fn keep(&mut self, snapshot: Snapshot) -> Result<(), NodeError> {
        let (index, log) = (snapshot.get_metadata().index, self.raft.store());
        let is_cut = log.room() == Room::Full || std::mem::take(&mut self.snapshots.holds_log);
        let keep_entries = if is_cut { 0 } else { self.config.keep_entries };
        let kept = (index + 1).saturating_sub(keep_entries);
        let keep_from = kept.max(log.first_within(index, self.config.snapshot_log_bytes / 2)).max(log.first_index()?);
        self.counters.snapshots_taken += 1;
        Ok(self.raft.mut_store().compact(snapshot, keep_from)?)
    }

    /// Gives up the snapshot that is being taken: the state has been replaced.
    pub fn abandon_snapshot(&mut self) {
        self.snapshots.waits = Waits::No;
        if let Some(taking) = self.snapshots.taking.take() {
            discard(taking.state);
        }
        self.state.machine.abandon_snapshot();
    }

    /// Notes how long the event loop was paused for a snapshot, since `begun`.
    pub fn note_pause(&mut self, begun: u64) {
        self.snapshots.pause_max = self.snapshots.pause_max.max(self.now() - begun);
    }
}

/// Returns the batch that the first members of a cluster begin with.
pub(super) fn first_batch(state: &Replicated) -> Batch {
    let voters = state.members.keys().copied().collect();
    let header = header(FIRST, FIRST, ConfState { voters, ..ConfState::default() });
    let snapshot = Snapshot { data: state.snapshot().into(), ..header };
    let hard_state = HardState { term: FIRST, commit: FIRST, ..HardState::default() };
    Batch { snapshot: Some(snapshot), hard_state: Some(hard_state), urgency: Urgency::Urgent, ..Batch::default() }
}

/// Returns a snapshot without the state.
fn header(index: u64, term: u64, conf_state: ConfState) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.set_conf_state(conf_state);
    snapshot
}
