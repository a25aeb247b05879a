//! Sends and receives snapshots: one request for each piece, and the next when the previous one was taken. Snapshots of
//! all groups for one process are sent one after the other. So they use one of the requests that a session has room
//! for, and heartbeats are sent beside them.

use std::rc::Weak;
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::Addr;
use dunlin_net::clock::nanos;
use dunlin_rpc::{CallError, CallOptions, DeferredReply, MsgBuf, RequestBurst, Timers};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType, Snapshot};

use super::core::{Claim, Core, Job};
use super::link::Queued;
use super::replica::WeakReplica;
use super::restore::Restoring;
use super::shared::Shared;
use crate::cluster_id::{ClusterId, bits};
use crate::config::NodeError;
use crate::discard::discard;
use crate::state::{Origin, Replicated};
use crate::wire::chunk::{Chunk, parse};
use crate::wire::message::Addressed;
use crate::wire::{CHUNK, cluster_of};

/// A piece that is not taken in this time ends the attempt. Each attempt after one that ended so gives its pieces twice
/// the time, with [`DOUBLINGS_MAX`] doublings: the path may be that slow.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last piece is answered when the snapshot is on the receiver's disk.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Times to look for a session, a tick apart, before the attempt ends.
const SESSION_TRIES: u32 = 100;
/// After a failed attempt the next one waits for an election timeout, then for twice as long, and so on, with this many
/// doublings.
const DOUBLINGS_MAX: u32 = 4;
/// A partly received snapshot is dropped after this many ticks without data, or with less than one full piece. Members
/// have as long as they take for a piece, and this much more.
const PATIENCE_TICKS: u32 = 1000;
/// After the first of these periods, a member's snapshot gives way to another member's if it comes so slowly that it
/// takes more of them than this; after one was given up, than twice as many, and so on, with this many doublings. So two
/// that come slowly do not take turns for ever.
const PERIODS_MAX: u32 = 60;
const PERIOD_DOUBLINGS_MAX: u32 = 6;

/// A snapshot to send.
pub(super) struct Outgoing {
    group: u16,
    to: u64,
    from: u64,
    term: u64,
    snapshot: Snapshot,
}

impl Outgoing {
    pub fn new(Addressed { group, mut message, .. }: Addressed) -> Outgoing {
        Outgoing { group, to: message.to, from: message.from, term: message.term, snapshot: message.take_snapshot() }
    }

    /// Returns the group whose state it holds.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Returns its receiver.
    pub fn to(&self) -> u64 {
        self.to
    }

    /// Returns its bytes.
    pub fn data(&self) -> &Bytes {
        &self.snapshot.data
    }

    /// Whether the receiver is a member in the state that it holds. Others do not take it: it is older than their
    /// addition.
    fn has_its_receiver(&self) -> bool {
        let members = self.snapshot.get_metadata().get_conf_state();
        members.voters.contains(&self.to) || members.learners.contains(&self.to)
    }
}

/// A completely received snapshot, which the log writes to disk before the library hears of it: the event loop does not
/// wait for that.
pub(super) struct Staging {
    message: Message,
    /// The member that sent it; `None` if that might be anybody.
    sender: Option<u64>,
    /// The cluster that it is from.
    origin: Origin,
    is_handed_over: bool,
    /// The reply to its last piece.
    reply: Option<DeferredReply>,
    restoring: Restoring,
}

impl Staging {
    pub fn total(&self) -> u64 {
        self.message.get_snapshot().data.len() as u64
    }

    /// Returns the state that is being restored from it.
    pub fn restoring(&mut self) -> &mut Restoring {
        &mut self.restoring
    }

    /// Whether it has pieces left to restore.
    pub fn is_being_restored(&self) -> bool {
        self.restoring.is_under_way()
    }

    /// Whether its outcome is still open: it is being restored, or waits for the log.
    fn is_waiting(&self) -> bool {
        self.is_being_restored() || !self.is_handed_over && !self.restoring.is_wrong()
    }

    /// Discards it.
    pub fn discard(mut self) {
        discard(std::mem::take(&mut self.message.mut_snapshot().data));
        self.restoring.discard();
    }
}

/// Consecutive failed attempts to send a member a snapshot. Without this, a member that takes none would be sent the
/// first piece of one after each heartbeat.
pub(super) struct Failures {
    count: u32,
    /// Ticks until the next attempt; 0 during one.
    ticks: u32,
    /// Attempts that ended since a piece was not taken in time, less those that needed half of their time at most.
    late: u32,
}

/// Why a snapshot was not sent.
enum Unsent {
    /// A piece was not taken in time.
    Late,
    /// The receiver has no use for it, or is not reached.
    Failed,
}

/// The result of a piece.
enum Taken {
    /// The next piece must begin here.
    Next(u64),
    /// It was the last one: this message is answered when the snapshot is installed.
    Last(Box<Message>, Origin),
    /// It comes again when other groups have made room: a member sends it.
    Crowded,
}

/// A partly received snapshot.
pub(super) struct Incoming {
    /// The member that sends it; `None` if that might be anybody.
    sender: Option<u64>,
    from: u64,
    term: u64,
    index: u64,
    total: u64,
    data: Vec<u8>,
    checksum: u32,
    /// Ticks since enough data arrived, and the bytes that arrived since then.
    idle: u32,
    fresh: usize,
    /// Ticks since it began.
    age: u32,
    /// Ticks in which it must come, at this pace, to give way to no other.
    due: u32,
    /// After this many it is dropped.
    patience: u32,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The log may have another by now.
        discard(std::mem::take(&mut self.snapshot.data));
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        discard(std::mem::take(&mut self.data));
    }
}

impl Incoming {
    /// Begins a snapshot with its first piece.
    fn new(chunk: &Chunk<'_>, sender: Option<u64>, given_up: u32, piece_ticks: u32) -> Incoming {
        let Chunk { from, term, index, total, .. } = *chunk;
        let due = (PERIODS_MAX * PATIENCE_TICKS) << given_up.min(PERIOD_DOUBLINGS_MAX);
        Incoming {
            sender,
            from,
            term,
            index,
            total,
            data: Vec::new(),
            checksum: 0,
            idle: 0,
            fresh: 0,
            age: 0,
            due,
            patience: PATIENCE_TICKS.saturating_add(piece_ticks),
        }
    }

    /// Whether a piece of this sender may change anything: no other sender speaks for a member, or takes its place.
    fn gives_way_to(&self, sender: Option<u64>) -> bool {
        self.sender.is_none() || sender.is_some()
    }

    /// Whether its memory is to be given to another snapshot.
    pub fn leaves_memory_to(&self, claim: Claim) -> bool {
        match claim {
            Claim::Stranger => false,
            Claim::Member => self.sender.is_none() || self.is_slow(),
            Claim::Own => true,
        }
    }

    /// Whether it is from a member that might hold the memory for as long as it likes.
    pub fn is_slow(&self) -> bool {
        let expected = u128::from(self.total) * u128::from(self.age) / u128::from(self.due);
        self.sender.is_some() && self.age > PATIENCE_TICKS && (self.data.len() as u128) < expected
    }

    /// A tick has passed; returns whether it has expired.
    fn tick(&mut self) -> bool {
        (self.idle, self.age) = (self.idle.saturating_add(1), self.age.saturating_add(1));
        self.idle > self.patience
    }

    /// Whether this is the next piece.
    fn continues_with(&self, chunk: &Chunk<'_>) -> bool {
        let is_same =
            (self.from, self.term, self.index, self.total) == (chunk.from, chunk.term, chunk.index, chunk.total);
        is_same && self.data.len() as u64 == chunk.offset
    }

    /// Takes the bytes of the next piece. Only after `worth` bytes does the idle time start over: otherwise a sender of
    /// a few bytes at a time could hold the memory for ever.
    fn take(&mut self, bytes: &[u8], worth: usize) {
        self.data.extend_from_slice(bytes);
        self.fresh += bytes.len();
        if self.fresh >= worth {
            (self.fresh, self.idle) = (0, 0);
        }
    }

    /// Returns its total length in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// Returns the ticks that a sender may take for a piece.
fn piece_ticks_max(tick: Duration) -> u32 {
    let longest = PIECE_TIMEOUT * (1 << DOUBLINGS_MAX);
    longest.as_nanos().div_ceil(tick.as_nanos().max(1)).try_into().unwrap_or(u32::MAX)
}

/// Sends the snapshots that wait for a process, of all groups, until none is left.
pub(super) async fn send_all(shared: Weak<Shared>, to: u64, timers: Timers) {
    loop {
        let next = shared.upgrade().and_then(|shared| shared.common.links.borrow_mut().next_snapshot(to));
        let Some(outgoing) = next else { return };
        send(WeakReplica { shared: shared.clone(), group: outgoing.group }, outgoing, &timers).await;
    }
}

/// Sends a snapshot, and reports the result to the library.
async fn send(node: WeakReplica, outgoing: Outgoing, timers: &Timers) {
    let sent = match outgoing.has_its_receiver() {
        true => send_pieces(&node, &outgoing, timers).await,
        false => Err(Unsent::Failed),
    };
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.sent_snapshot(&outgoing, sent));
    }
}

/// Returns whether each piece was taken within half of its time.
async fn send_pieces(node: &WeakReplica, outgoing: &Outgoing, timers: &Timers) -> Result<bool, Unsent> {
    let alive = || node.upgrade().ok_or(Unsent::Failed);
    let Outgoing { group, to, from, term, snapshot } = outgoing;
    let (mut session, mut tries) = (None, 0);
    let (cluster, piece, tick, patience) = {
        let node = alive()?;
        let core = node.core();
        let late = core.failures.get(to).map_or(0, |failures| failures.late.min(DOUBLINGS_MAX));
        (bits(core.cluster()), core.config.chunk_bytes, core.config.tick, PIECE_TIMEOUT * (1 << late))
    };
    while session.is_none() {
        session = alive()?.core().common.links.borrow().session(*to);
        if session.is_none() {
            tries += 1;
            if tries > SESSION_TRIES {
                return Err(Unsent::Failed);
            }
            timers.sleep(tick).await;
        }
    }
    let session = session.ok_or(Unsent::Failed)?;
    let metadata = snapshot.get_metadata();
    let conf_state = metadata.get_conf_state();
    let data: &Bytes = &snapshot.data;
    let (mut offset, mut checksum, mut is_quick) = (0, 0, true);
    loop {
        if !alive()?.core().goes_on_sending(outgoing) {
            return Err(Unsent::Failed);
        }
        let end = (offset + piece).min(data.len());
        checksum = crc32c::crc32c_append(checksum, &data[offset..end]);
        let chunk = Chunk {
            group: *group,
            cluster,
            from: *from,
            to: *to,
            term: *term,
            index: metadata.index,
            index_term: metadata.term,
            voters: conf_state.voters.clone(),
            learners: conf_state.learners.clone(),
            total: data.len() as u64,
            offset: offset as u64,
            checksum,
            bytes: &data[offset..end],
        };
        let written = MsgBuf::written(chunk.encoded_len(), |out| chunk.encode(out));
        let buffer = written.map_err(|_| Unsent::Failed)?;
        let timeout = if end == data.len() { INSTALL_TIMEOUT } else { patience };
        let sent_at = timers.now();
        let reply = session.call_with(CHUNK, buffer, CallOptions::timeout(timeout)).await;
        is_quick &= timers.now() - sent_at <= nanos(timeout) / 2;
        let reply = reply.map_err(|failure| match failure.error {
            CallError::DeadlineExceeded => Unsent::Late,
            _ => Unsent::Failed,
        })?;
        // The offset of the next piece. If it is past the end, the receiver already has all that the snapshot has,
        // however much was sent.
        let next = reply.response[..].try_into().map(u64::from_le_bytes).map_err(|_| Unsent::Failed)?;
        if next == data.len() as u64 {
            return Ok(is_quick);
        }
        if next != end as u64 {
            return Err(Unsent::Failed);
        }
        offset = end;
    }
}

impl Core {
    /// Queues a snapshot behind the earlier ones for the same process.
    pub fn send_snapshot(&mut self, outgoing: Outgoing) {
        let (to, data) = (outgoing.to, outgoing.data().clone());
        if let Some(failures) = self.failures.get_mut(&to) {
            // The library no longer waits for the previous one.
            failures.ticks = 0;
        }
        let queued = self.common.links.borrow_mut().add_snapshot(outgoing);
        match queued {
            Queued::Nowhere => return,
            Queued::First => self.jobs.push(Job::SendSnapshots { to }),
            Queued::InsteadOf(earlier) => self.forget_sent(earlier.data()),
            Queued::Behind => {}
        }
        self.sending.push(data);
    }

    /// Forgets one transfer of a snapshot.
    pub fn forget_sent(&mut self, data: &Bytes) {
        if let Some(place) = self.sending.iter().position(|sent| sent.as_ptr() == data.as_ptr()) {
            self.sending.swap_remove(place);
        }
    }

    /// Whether to go on sending a snapshot. It gives way to a snapshot of the own state, if the log has no room left;
    /// and one of a deposed leader is of no use.
    fn goes_on_sending(&self, outgoing: &Outgoing) -> bool {
        self.is_kept(outgoing.data()) && self.is_leader() && self.raft.raft.term == outgoing.term
    }

    /// The transfer of a snapshot has ended.
    fn sent_snapshot(&mut self, outgoing: &Outgoing, sent: Result<bool, Unsent>) {
        self.forget_sent(outgoing.data());
        self.counters.snapshots_sent += u64::from(sent.is_ok());
        if !outgoing.has_its_receiver() {
            return self.snapshot_for(outgoing.to);
        }
        // This replica may lead again by now, and be sending another.
        if self.raft.raft.term != outgoing.term || !self.is_leader() {
            return;
        }
        let failures = self.failures.entry(outgoing.to).or_insert(Failures { count: 0, ticks: 0, late: 0 });
        let why = match sent {
            Err(why) => why,
            Ok(is_quick) => {
                // The next one comes the same way.
                *failures = Failures { count: 0, ticks: 0, late: failures.late.saturating_sub(is_quick.into()) };
                return self.raft.report_snapshot(outgoing.to, SnapshotStatus::Finish);
            }
        };
        failures.late = (failures.late + u32::from(matches!(why, Unsent::Late))).min(DOUBLINGS_MAX);
        failures.ticks = self.config.election_ticks << failures.count.min(DOUBLINGS_MAX);
        failures.count += 1;
    }

    /// A tick has passed: has the library retry snapshots whose last attempt failed some time ago.
    pub fn resend_snapshots(&mut self) {
        for (to, failures) in self.failures.iter_mut().filter(|(_, failures)| failures.ticks > 0) {
            failures.ticks -= 1;
            if failures.ticks == 0 {
                self.raft.report_snapshot(*to, SnapshotStatus::Failure);
            }
        }
    }

    /// Takes a current snapshot, for a member that was added after the last one. The library asks for it again.
    fn snapshot_for(&mut self, to: u64) {
        if self.failure.is_none() {
            self.compact();
        }
        self.raft.report_snapshot(to, SnapshotStatus::Failure);
    }

    /// A piece of a snapshot, which is answered with where the next is to begin; says whether it is to come again when
    /// other groups have made room.
    pub fn on_piece(&mut self, burst: &mut RequestBurst<'_>, i: usize) -> bool {
        let peer = burst.context(i).peer().cloned();
        match self.on_chunk(burst.payload(i), peer.as_ref()) {
            // Without an answer, the sender learns that the attempt failed.
            None => {}
            Some(Taken::Crowded) => return true,
            Some(Taken::Next(next)) => burst.respond(i, &next.to_le_bytes()),
            Some(Taken::Last(message, origin)) => {
                let reply = burst.defer_reply(i).ok();
                let restoring = Restoring::new(message.get_snapshot().data.clone(), self.state.fresh());
                let sender = self.sender_at(message.from, peer.as_ref());
                self.staging =
                    Some(Staging { message: *message, sender, origin, is_handed_over: false, reply, restoring });
                self.await_turn();
            }
        }
        false
    }

    /// Hands a leader's snapshot to the log, once that has no other in progress, and to the library, once it is durable
    /// and a state was restored from it.
    pub fn install_staged(&mut self) -> Result<(), NodeError> {
        self.hand_over_staged()?;
        let is_on_its_way = |staging: &Staging| staging.is_handed_over && !self.raft.store().is_staged();
        if self.staging.as_ref().is_none_or(|staging| staging.is_waiting() || is_on_its_way(staging)) {
            return Ok(());
        }
        let Some(staging) = self.staging.take() else { return Ok(()) };
        let total = staging.total();
        let Staging { message, sender, origin, reply, restoring, .. } = staging;
        match restoring.into_state() {
            Ok(state) => self.install(message, origin, state),
            Err(error) => {
                self.reject(sender, &message, &error);
                discard(message.snapshot.unwrap_or_default().data);
                // Without an answer, the sender learns that the attempt failed. The own snapshot may be due.
                self.compact_if_due();
                return Ok(());
            }
        }
        if let (Some(reply), Ok(mut buffer)) = (reply, MsgBuf::with_len(size_of::<u64>())) {
            buffer.copy_from_slice(&total.to_le_bytes());
            // The sender may have given up.
            let _ = reply.enqueue_response(buffer);
        }
        Ok(())
    }

    /// Hands a snapshot from a leader to the log. A snapshot of the own state that is being taken gives way to it only
    /// if a state was restored from it: otherwise a sender of invalid ones could keep this replica from ever having its
    /// own.
    fn hand_over_staged(&mut self) -> Result<(), NodeError> {
        let is_compacting = self.raft.store().is_compacting();
        let Some(staging) = self.staging.as_mut().filter(|staging| !staging.is_handed_over) else { return Ok(()) };
        let must_wait = is_compacting || self.snapshots.is_taking() && staging.is_being_restored();
        if must_wait || staging.restoring.is_wrong() {
            return Ok(());
        }
        staging.is_handed_over = true;
        self.raft.mut_store().stage(staging.message.get_snapshot())?;
        self.abandon_snapshot();
        Ok(())
    }

    /// Hands a snapshot to the library, and keeps its state until the library has accepted it.
    fn install(&mut self, message: Message, origin: Origin, state: Replicated) {
        let (data, metadata) = (message.get_snapshot().data.clone(), message.get_snapshot().get_metadata());
        let position = (metadata.index, metadata.term);
        let before = self.common.cluster.get();
        // Another group may have joined another cluster since this one was received.
        let is_ours = self.takes_snapshots_of(origin.cluster);
        let joins = is_ours && self.join(origin);
        if is_ours && position.0 > self.raft.raft.raft_log.committed {
            self.receive(message.from, Addressed { group: self.group, asks_to_rest: false, message });
        }
        let taken = self.raft.raft.raft_log.unstable_snapshot().as_ref().map(Snapshot::get_metadata);
        if taken.is_some_and(|taken| (taken.index, taken.term) == position) {
            self.restored = Some(state);
            return;
        }
        // It came too late: entries of another leader have brought this replica further, or it belongs to a cluster
        // that this process is not in.
        self.raft.mut_store().unstage();
        discard(data);
        state.discard();
        if joins {
            self.wait_again(before);
        }
    }

    fn on_chunk(&mut self, bytes: &[u8], peer: Option<&Addr>) -> Option<Taken> {
        let theirs = ClusterId::from_bits(cluster_of(bytes).ok()?)?;
        if !self.takes_snapshots_of(theirs) {
            return None;
        }
        let Ok(chunk) = parse(bytes, theirs.bits()) else {
            self.counters.bad += 1;
            return None;
        };
        if !self.takes_piece(&chunk) || self.staging.is_some() {
            return None;
        }
        self.wake();
        if chunk.index <= self.raft.raft.raft_log.committed {
            // Its sender did not get the answer to the last piece, or is late. The file of this snapshot may be the
            // log's own.
            return Some(Taken::Next(chunk.total));
        }
        let sender = self.sender_at(chunk.from, peer);
        self.forget_deposed();
        if !self.incoming.as_ref().is_none_or(|incoming| incoming.gives_way_to(sender)) {
            self.counters.bad += 1;
            return None;
        }
        if chunk.offset == 0 {
            let is_misfit = Origin::of_snapshot(chunk.bytes).is_ok_and(|origin| self.is_misfit(&origin));
            if is_misfit || self.is_too_early(sender) {
                return None;
            }
            self.incoming = None;
            if !self.has_memory_for(chunk.total) {
                self.give_up_copy();
            }
            if !self.has_memory_for(chunk.total) {
                // The host has the other groups make room.
                let claim = sender.map_or(Claim::Stranger, |_| Claim::Member);
                self.common.crowded.set(Some(claim));
                if !self.is_received_beyond_limit(claim) {
                    tracing::warn!(
                        id = self.config.id,
                        total = chunk.total,
                        "a snapshot is refused until others are gone: see snapshot_memory_max"
                    );
                    // Its sender tries again.
                    return sender.map(|_| Taken::Crowded);
                }
            }
            // One that joins knows no members yet.
            let is_patient = sender.is_some() || self.cluster.is_none();
            let piece_ticks = if is_patient { piece_ticks_max(self.config.tick) } else { 0 };
            self.incoming = Some(Incoming::new(&chunk, sender, self.given_up, piece_ticks));
            // Now, since pieces for other groups may come in the same burst.
            self.note_snapshots();
        }
        let incoming = self.incoming.as_mut()?;
        if !incoming.continues_with(&chunk) {
            return None;
        }
        incoming.checksum = crc32c::crc32c_append(incoming.checksum, chunk.bytes);
        if incoming.checksum != chunk.checksum {
            tracing::debug!(id = self.config.id, from = chunk.from, "a piece of a snapshot has a wrong checksum");
            self.counters.bad += 1;
            self.incoming = None;
            return None;
        }
        incoming.take(chunk.bytes, self.config.chunk_bytes);
        let next = incoming.data.len() as u64;
        if next < chunk.total {
            return Some(Taken::Next(next));
        }
        let Some(origin) = Origin::of_snapshot(&incoming.data).ok().filter(|origin| origin.cluster == theirs) else {
            self.counters.bad += 1;
            self.incoming = None;
            return None;
        };
        if self.is_misfit(&origin) {
            self.incoming = None;
            return None;
        }
        let mut incoming = self.incoming.take()?;
        // Anybody may send one that is wrong.
        if incoming.sender.is_some() {
            self.given_up = 0;
        }
        let mut snapshot = chunk.header();
        snapshot.data = std::mem::take(&mut incoming.data).into();
        let mut message = Message { from: chunk.from, to: chunk.to, term: chunk.term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.set_snapshot(snapshot);
        Some(Taken::Last(Box::new(message), origin))
    }

    /// Forgets what was received from a leader of an earlier term: it sends no more. The next leader may have been
    /// added or moved after the state here, so it may not be known as a member.
    fn forget_deposed(&mut self) {
        let term = self.raft.raft.term;
        self.incoming.take_if(|incoming| incoming.term < term);
    }

    /// Whether a snapshot is from a cluster with another number of groups. A process that waits to be added cannot join
    /// that cluster; but anybody may send such a snapshot, so it keeps waiting.
    fn is_misfit(&mut self, origin: &Origin) -> bool {
        let Err(why) = origin.check_groups(self.common.groups) else { return false };
        self.counters.bad += 1;
        // A process that has joined knows its own cluster's number of groups better.
        if self.common.cluster.get().is_none() {
            self.rejected.note_groups(self.config.id, origin.groups, &why);
        }
        true
    }

    /// Whether a piece can belong to a snapshot for this replica.
    fn takes_piece(&self, chunk: &Chunk<'_>) -> bool {
        let own = self.config.id;
        self.failure.is_none()
            && chunk.group == self.group
            && chunk.to == own
            && chunk.from != own
            && (chunk.voters.contains(&own) || chunk.learners.contains(&own))
            && chunk.term >= self.raft.raft.term
            && self.is_possible_term(chunk.term, MessageType::MsgSnapshot)
            && chunk.total <= self.config.snapshot_bytes_max
    }

    /// Drops a partly received snapshot whose sender sends nothing more, or too little.
    pub fn expire_incoming(&mut self) {
        self.rejected.tick();
        self.forget_deposed();
        self.incoming.take_if(Incoming::tick);
    }
}
