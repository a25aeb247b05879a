//! Snapshots on their way: one request for each piece, the next when the one before was taken.

use std::time::Duration;

use bytes::Bytes;
use dunlin_rpc::{CallOptions, DeferredReply, MsgBuf, RequestBurst, Timers};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType, Snapshot};

use super::WeakNode;
use super::core::Core;
use crate::cluster_id::{ClusterId, bits};
use crate::config::NodeError;
use crate::discard::discard;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire::chunk::{Chunk, parse};
use crate::wire::{CHUNK, cluster_of};

/// A piece that is not taken for so long ends the attempt.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last one is answered when the snapshot is on the disk of its receiver.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Times that a session is looked for, a tick apart, before the attempt ends.
const SESSION_TRIES: u32 = 100;
/// What was received of a snapshot is forgotten when nothing came for so many ticks.
const PATIENCE_TICKS: u32 = 1000;

/// A snapshot to be sent.
pub(super) struct Outgoing {
    to: u64,
    from: u64,
    term: u64,
    snapshot: Snapshot,
}

impl Outgoing {
    pub fn new(mut message: Message) -> Outgoing {
        Outgoing { to: message.to, from: message.from, term: message.term, snapshot: message.take_snapshot() }
    }

    /// Whether it goes to a member of the state that it holds. Others do not take it: it is of before they were added.
    fn has_its_receiver(&self) -> bool {
        let members = self.snapshot.get_metadata().get_conf_state();
        members.voters.contains(&self.to) || members.learners.contains(&self.to)
    }
}

/// A snapshot that has come, and that the log brings to the disk before the library hears of it: the event loop does not wait for that.
pub(super) struct Staging {
    message: Message,
    is_handed_over: bool,
    /// To its last piece.
    reply: Option<DeferredReply>,
}

impl Staging {
    pub fn total(&self) -> u64 {
        self.message.get_snapshot().data.len() as u64
    }
}

/// What becomes of a piece.
enum Taken {
    /// The next is to begin here.
    Next(u64),
    /// It was the last: this is answered when the snapshot is installed.
    Last(Message),
}

/// A snapshot of which pieces have come.
pub(super) struct Incoming {
    from: u64,
    term: u64,
    index: u64,
    total: u64,
    data: Vec<u8>,
    /// Ticks since the last piece.
    idle: u32,
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
    /// Its bytes when it is complete.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// Sends a snapshot, and tells the library how that went.
pub(super) async fn send<M: StateMachine + 'static, L: LogStore + 'static>(
    node: WeakNode<M, L>,
    outgoing: Outgoing,
    timers: Timers,
) {
    if !outgoing.has_its_receiver() {
        if let Some(node) = node.upgrade() {
            node.enter(|core| core.snapshot_for(outgoing.to));
        }
        return;
    }
    let data = outgoing.snapshot.data.clone();
    if let Some(node) = node.upgrade() {
        node.enter(|core| core.sending.push(data.clone()));
    }
    let is_sent = send_pieces(&node, &outgoing, &timers).await.is_some();
    let Some(node) = node.upgrade() else { return };
    node.enter(|core| {
        if let Some(place) = core.sending.iter().position(|sent| sent.as_ptr() == data.as_ptr()) {
            core.sending.swap_remove(place);
        }
        core.counters.snapshots_sent += u64::from(is_sent);
        let status = if is_sent { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        core.raft.report_snapshot(outgoing.to, status);
    });
}

/// `None` if a piece was not taken.
async fn send_pieces<M: StateMachine + 'static, L: LogStore + 'static>(
    node: &WeakNode<M, L>,
    outgoing: &Outgoing,
    timers: &Timers,
) -> Option<()> {
    let Outgoing { to, from, term, snapshot } = outgoing;
    let (mut session, mut tries) = (None, 0);
    let (cluster, piece, tick) = {
        let node = node.upgrade()?;
        let core = node.shared.core.borrow();
        (bits(core.cluster()), core.config.chunk_bytes, core.config.tick)
    };
    while session.is_none() {
        session = node.upgrade()?.shared.core.borrow().links.session(*to);
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
    let mut offset = 0;
    loop {
        let end = (offset + piece).min(data.len());
        let chunk = Chunk {
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
            bytes: &data[offset..end],
        };
        let buffer = MsgBuf::written(chunk.encoded_len(), |out| chunk.encode(out)).ok()?;
        let timeout = if end == data.len() { INSTALL_TIMEOUT } else { PIECE_TIMEOUT };
        let reply = session.call_with(CHUNK, buffer, CallOptions::timeout(timeout)).await.ok()?;
        // The place where the next is to begin.
        let next = u64::from_le_bytes(reply.response[..].try_into().ok()?);
        if next != end as u64 {
            return None;
        }
        offset = end;
        if offset == data.len() {
            return Some(());
        }
    }
}

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// Takes a snapshot of now, for a member that was added after the last one. The library asks for it again.
    fn snapshot_for(&mut self, to: u64) {
        if self.failure.is_none()
            && let Err(error) = self.compact()
        {
            return self.fail(error);
        }
        self.raft.report_snapshot(to, SnapshotStatus::Failure);
    }

    /// Pieces of a snapshot. Each is answered with where the next is to begin.
    pub fn on_chunks(&mut self, burst: &mut RequestBurst<'_>) {
        for i in 0..burst.len() {
            match self.on_chunk(burst.payload(i)) {
                // Unanswered, the sender learns that it failed.
                None => {}
                Some(Taken::Next(next)) => burst.respond(i, &next.to_le_bytes()),
                Some(Taken::Last(message)) => {
                    // One that was being taken of the state here is of no use any more.
                    self.abandon_snapshot();
                    self.staging = Some(Staging { message, is_handed_over: false, reply: burst.defer_reply(i).ok() });
                }
            }
        }
    }

    /// Hands a snapshot from a leader to the log, when that has no other, and to the library, when it is durable.
    pub fn install_staged(&mut self) -> Result<(), NodeError> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        if !staging.is_handed_over {
            if self.raft.store().is_compacting() {
                return Ok(());
            }
            staging.is_handed_over = true;
            self.raft.mut_store().stage(staging.message.get_snapshot())?;
        }
        if !self.raft.store().is_staged() {
            return Ok(());
        }
        let Some(Staging { message, reply, .. }) = self.staging.take() else { return Ok(()) };
        let (from, total) = (message.from, message.get_snapshot().data.len() as u64);
        self.receive(from, message);
        if self.raft.raft.raft_log.unstable_snapshot().is_none() {
            // It came too late: entries of another leader have brought this replica further.
            self.raft.mut_store().unstage();
        }
        if let (Some(reply), Ok(mut buffer)) = (reply, MsgBuf::with_len(size_of::<u64>())) {
            buffer.copy_from_slice(&total.to_le_bytes());
            // The sender may have given up.
            let _ = reply.enqueue_response(buffer);
        }
        Ok(())
    }

    fn on_chunk(&mut self, bytes: &[u8]) -> Option<Taken> {
        let theirs = ClusterId::from_bits(cluster_of(bytes).ok()?)?;
        // Who waits for a leader looks at whose it is when it has come whole.
        if self.cluster().is_some_and(|ours| ours != theirs) {
            return None;
        }
        let chunk = parse(bytes, theirs.bits()).ok()?;
        let is_ours = chunk.to == self.config.id && chunk.from != self.config.id && self.failure.is_none();
        if !is_ours || chunk.term < self.raft.raft.term || chunk.total > self.config.snapshot_bytes_max {
            return None;
        }
        if self.staging.is_some() {
            return None;
        }
        if chunk.offset == 0 {
            let Chunk { from, term, index, total, .. } = chunk;
            self.incoming = None;
            if !self.has_memory_for(total) {
                tracing::warn!(
                    id = self.config.id,
                    total,
                    "a snapshot is refused until others are gone: see snapshot_memory_max"
                );
                return None;
            }
            self.incoming = Some(Incoming { from, term, index, total, data: Vec::new(), idle: 0 });
        }
        let incoming = self.incoming.as_mut()?;
        let is_same = (incoming.from, incoming.term, incoming.index, incoming.total)
            == (chunk.from, chunk.term, chunk.index, chunk.total);
        if !is_same || incoming.data.len() as u64 != chunk.offset {
            return None;
        }
        incoming.data.extend_from_slice(chunk.bytes);
        incoming.idle = 0;
        let next = incoming.data.len() as u64;
        if next == chunk.total {
            let mut snapshot = chunk.header();
            snapshot.data = std::mem::take(&mut self.incoming.take()?.data).into();
            let mut message = Message { from: chunk.from, to: chunk.to, term: chunk.term, ..Message::default() };
            message.set_msg_type(MessageType::MsgSnapshot);
            if !self.admits_snapshot(&snapshot, theirs) {
                self.counters.bad += 1;
                return None;
            }
            message.set_snapshot(snapshot);
            return Some(Taken::Last(message));
        }
        Some(Taken::Next(next))
    }

    /// Forgets what was received of a snapshot whose sender says no more.
    pub fn expire_incoming(&mut self) {
        if let Some(incoming) = &mut self.incoming {
            incoming.idle += 1;
            if incoming.idle > PATIENCE_TICKS {
                self.incoming = None;
            }
        }
    }
}
