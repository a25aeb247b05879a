//! Snapshots on their way: one request for each piece, the next when the one before was taken. Those of all groups for
//! one process go one after the other, so that they take one of the requests that a session has room for: heartbeats
//! go beside them.

use std::rc::Weak;
use std::time::Duration;

use bytes::Bytes;
use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, DeferredReply, MsgBuf, RequestBurst, Timers};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType, Snapshot};

use super::WeakNode;
use super::core::{Core, Job};
use super::host::Shared;
use super::link::Queued;
use super::restore::Restoring;
use crate::cluster_id::{ClusterId, bits};
use crate::config::NodeError;
use crate::discard::discard;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::state::{Origin, Replicated};
use crate::wire::chunk::{Chunk, parse};
use crate::wire::message::Addressed;
use crate::wire::{CHUNK, cluster_of};

/// A piece that is not taken for so long ends the attempt.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last one is answered when the snapshot is on the disk of its receiver.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Times that a session is looked for, a tick apart, before the attempt ends.
const SESSION_TRIES: u32 = 100;
/// What was received of a snapshot is forgotten when nothing came for so many ticks, or less than a piece of the length that is sent here.
const PATIENCE_TICKS: u32 = 1000;

/// A snapshot to be sent.
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

    /// The group whose state it holds.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// For whom it is.
    pub fn to(&self) -> u64 {
        self.to
    }

    /// Its bytes.
    pub fn data(&self) -> &Bytes {
        &self.snapshot.data
    }

    /// Whether it goes to a member of the state that it holds. Others do not take it: it is of before they were added.
    fn has_its_receiver(&self) -> bool {
        let members = self.snapshot.get_metadata().get_conf_state();
        members.voters.contains(&self.to) || members.learners.contains(&self.to)
    }
}

/// A snapshot that has come, and that the log brings to the disk before the library hears of it: the event loop does not wait for that.
pub(super) struct Staging<M> {
    message: Message,
    /// The member that sent it; `None` if that might be anybody.
    sender: Option<u64>,
    /// Of which cluster it is.
    origin: Origin,
    is_handed_over: bool,
    /// To its last piece.
    reply: Option<DeferredReply>,
    restoring: Restoring<M>,
}

impl<M: StateMachine> Staging<M> {
    pub fn total(&self) -> u64 {
        self.message.get_snapshot().data.len() as u64
    }

    /// The state that is being restored from it.
    pub fn restoring(&mut self) -> &mut Restoring<M> {
        &mut self.restoring
    }

    /// Whether pieces of it are left to be restored.
    pub fn is_being_restored(&self) -> bool {
        self.restoring.is_under_way()
    }

    /// Whether it is too early to tell what comes of it: it is being restored, or waits for the log.
    fn is_waiting(&self) -> bool {
        self.is_being_restored() || !self.is_handed_over && !self.restoring.is_wrong()
    }

    /// Gives it up.
    pub fn discard(mut self) {
        discard(std::mem::take(&mut self.message.mut_snapshot().data));
        self.restoring.discard();
    }
}

/// What becomes of a piece.
enum Taken {
    /// The next is to begin here.
    Next(u64),
    /// It was the last: this is answered when the snapshot is installed.
    Last(Box<Message>, Origin),
}

/// A snapshot of which pieces have come.
pub(super) struct Incoming {
    from: u64,
    term: u64,
    index: u64,
    total: u64,
    data: Vec<u8>,
    checksum: u32,
    /// Ticks since bytes came that are worth patience, and how many came since.
    idle: u32,
    fresh: usize,
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
    /// A snapshot of which this is the first piece.
    fn new(chunk: &Chunk<'_>) -> Incoming {
        let Chunk { from, term, index, total, .. } = *chunk;
        Incoming { from, term, index, total, data: Vec::new(), checksum: 0, idle: 0, fresh: 0 }
    }

    /// Whether this is the next piece.
    fn continues_with(&self, chunk: &Chunk<'_>) -> bool {
        let is_same = (self.from, self.term, self.index, self.total) == (chunk.from, chunk.term, chunk.index, chunk.total);
        is_same && self.data.len() as u64 == chunk.offset
    }

    /// Takes the bytes of the next piece. So many are worth patience: a sender of a few at a time would hold the memory for ever.
    fn take(&mut self, bytes: &[u8], worth: usize) {
        self.data.extend_from_slice(bytes);
        self.fresh += bytes.len();
        if self.fresh >= worth {
            (self.fresh, self.idle) = (0, 0);
        }
    }

    /// Its bytes when it is complete.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// Sends the snapshots that wait for a process, of whichever groups, until none is left.
pub(super) async fn send_all<M: StateMachine + 'static, L: LogStore + 'static>(
    shared: Weak<Shared<M, L>>,
    to: u64,
    timers: Timers,
) {
    loop {
        let next = shared.upgrade().and_then(|shared| shared.common.links.borrow_mut().next_snapshot(to));
        let Some(outgoing) = next else { return };
        send(WeakNode { shared: shared.clone(), group: outgoing.group }, outgoing, &timers).await;
    }
}

/// Sends a snapshot, and tells the library how that went.
async fn send<M: StateMachine + 'static, L: LogStore + 'static>(node: WeakNode<M, L>, outgoing: Outgoing, timers: &Timers) {
    let is_sent = outgoing.has_its_receiver() && send_pieces(&node, &outgoing, timers).await.is_some();
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.sent_snapshot(&outgoing, is_sent));
    }
}

/// `None` if a piece was not taken.
async fn send_pieces<M: StateMachine + 'static, L: LogStore + 'static>(
    node: &WeakNode<M, L>,
    outgoing: &Outgoing,
    timers: &Timers,
) -> Option<()> {
    let Outgoing { group, to, from, term, snapshot } = outgoing;
    let (mut session, mut tries) = (None, 0);
    let (cluster, piece, tick) = {
        let node = node.upgrade()?;
        let core = node.core();
        (bits(core.cluster()), core.config.chunk_bytes, core.config.tick)
    };
    while session.is_none() {
        session = node.upgrade()?.core().common.links.borrow().session(*to);
        if session.is_none() {
            tries += 1;
            if tries > SESSION_TRIES {
                return None;
            }
            timers.sleep(tick).await;
        }
    }
    let session = session?;
    let metadata = snapshot.get_metadata();
    let conf_state = metadata.get_conf_state();
    let data: &Bytes = &snapshot.data;
    let (mut offset, mut checksum) = (0, 0);
    loop {
        if !node.upgrade()?.core().goes_on_sending(outgoing) {
            return None;
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
        let buffer = MsgBuf::written(chunk.encoded_len(), |out| chunk.encode(out)).ok()?;
        let timeout = if end == data.len() { INSTALL_TIMEOUT } else { PIECE_TIMEOUT };
        let reply = session.call_with(CHUNK, buffer, CallOptions::timeout(timeout)).await.ok()?;
        // The place where the next is to begin. Behind the end, the receiver has all that the snapshot has, whatever was sent of it.
        let next = u64::from_le_bytes(reply.response[..].try_into().ok()?);
        if next == data.len() as u64 {
            return Some(());
        }
        if next != end as u64 {
            return None;
        }
        offset = end;
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Sends a snapshot when those before it for the same process are there.
    pub fn send_snapshot(&mut self, outgoing: Outgoing) {
        let (to, data) = (outgoing.to, outgoing.data().clone());
        let queued = self.common.links.borrow_mut().add_snapshot(outgoing);
        match queued {
            Queued::Nowhere => return,
            Queued::First => self.jobs.push(Job::SendSnapshots { to }),
            Queued::InsteadOf(earlier) => self.forget_sent(&earlier),
            Queued::Behind => {}
        }
        self.sending.push(data);
    }

    fn forget_sent(&mut self, outgoing: &Outgoing) {
        if let Some(place) = self.sending.iter().position(|sent| sent.as_ptr() == outgoing.data().as_ptr()) {
            self.sending.swap_remove(place);
        }
    }

    /// Whether a snapshot is still to be sent. It gives way to the own one, if the log has no more room; and that of a
    /// leader that was deposed is of no use.
    fn goes_on_sending(&self, outgoing: &Outgoing) -> bool {
        let is_kept = self.sending.iter().any(|sent| sent.as_ptr() == outgoing.data().as_ptr());
        is_kept && self.is_leader() && self.raft.raft.term == outgoing.term
    }

    /// Sending a snapshot has come to an end.
    fn sent_snapshot(&mut self, outgoing: &Outgoing, is_sent: bool) {
        self.forget_sent(outgoing);
        self.counters.snapshots_sent += u64::from(is_sent);
        if !outgoing.has_its_receiver() {
            return self.snapshot_for(outgoing.to);
        }
        // It may lead again by now, and send another.
        if self.raft.raft.term == outgoing.term {
            let status = if is_sent { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
            self.raft.report_snapshot(outgoing.to, status);
        }
    }

    /// Takes a snapshot of now, for a member that was added after the last one. The library asks for it again.
    fn snapshot_for(&mut self, to: u64) {
        if self.failure.is_none()
            && let Err(error) = self.compact()
        {
            return self.fail(error);
        }
        self.raft.report_snapshot(to, SnapshotStatus::Failure);
    }

    /// A piece of a snapshot, which is answered with where the next is to begin.
    pub fn on_piece(&mut self, burst: &mut RequestBurst<'_>, i: usize) {
        let peer = burst.context(i).peer().cloned();
        match self.on_chunk(burst.payload(i), peer.as_ref()) {
            // Unanswered, the sender learns that it failed.
            None => {}
            Some(Taken::Next(next)) => burst.respond(i, &next.to_le_bytes()),
            Some(Taken::Last(message, origin)) => {
                let reply = burst.defer_reply(i).ok();
                let restoring = Restoring::new(message.get_snapshot().data.clone(), self.state.fresh());
                let sender = self.sender_at(message.from, peer.as_ref());
                self.staging = Some(Staging { message: *message, sender, origin, is_handed_over: false, reply, restoring });
                self.snapshots.wake();
            }
        }
    }

    /// Hands a snapshot from a leader to the log, when that has no other, and to the library, when it is durable and a
    /// state was restored from it.
    pub fn install_staged(&mut self) -> Result<(), NodeError> {
        self.hand_over_staged()?;
        let is_on_its_way = |staging: &Staging<M>| staging.is_handed_over && !self.raft.store().is_staged();
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
                // Without an answer its sender learns that it failed. Before the next one comes, it is the turn of the
                // own.
                return self.compact_if_due();
            }
        }
        if let (Some(reply), Ok(mut buffer)) = (reply, MsgBuf::with_len(size_of::<u64>())) {
            buffer.copy_from_slice(&total.to_le_bytes());
            // The sender may have given up.
            let _ = reply.enqueue_response(buffer);
        }
        Ok(())
    }

    /// Hands a snapshot from a leader to the log. One of the state here that is being taken gives way to one that a
    /// state was restored from, and to no other:
    /// whoever sends wrong ones would keep this replica from ever having its own.
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

    /// Hands a snapshot to the library, and keeps the state of it until the library says that it is this replica's.
    fn install(&mut self, message: Message, origin: Origin, state: Replicated<M>) {
        let (data, metadata) = (message.get_snapshot().data.clone(), message.get_snapshot().get_metadata());
        let position = (metadata.index, metadata.term);
        let before = self.common.cluster.get();
        // Another group may have joined another cluster since this one came.
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
        // It came too late: entries of another leader have brought this replica further, or it is of no cluster that
        // this process is of.
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
            // Its sender did not get the answer to the last piece, or is late. The file of this snapshot may be the log's own.
            return Some(Taken::Next(chunk.total));
        }
        if chunk.offset == 0 {
            self.incoming = None;
            if self.is_too_early(self.sender_at(chunk.from, peer)) {
                return None;
            }
            if !self.has_memory_for(chunk.total) {
                tracing::warn!(
                    id = self.config.id,
                    total = chunk.total,
                    "a snapshot is refused until others are gone: see snapshot_memory_max"
                );
                return None;
            }
            self.incoming = Some(Incoming::new(&chunk));
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
        if let Err(other) = origin.check_groups(self.common.groups) {
            self.incoming = None;
            // It cannot join. Of its own cluster, a process that has joined knows better.
            match self.common.cluster.get() {
                None => self.fail(other),
                Some(_) => self.counters.bad += 1,
            }
            return None;
        }
        let mut snapshot = chunk.header();
        snapshot.data = std::mem::take(&mut self.incoming.take()?.data).into();
        let mut message = Message { from: chunk.from, to: chunk.to, term: chunk.term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.set_snapshot(snapshot);
        Some(Taken::Last(Box::new(message), origin))
    }

    /// Whether a piece can be of a snapshot for this replica.
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

    /// Forgets what was received of a snapshot whose sender says no more, or too little.
    pub fn expire_incoming(&mut self) {
        self.rejected.tick();
        if let Some(incoming) = &mut self.incoming {
            incoming.idle += 1;
            if incoming.idle > PATIENCE_TICKS {
                self.incoming = None;
            }
        }
    }
}
