//! Serves pieces of the state to clients that make backups: pieces of the snapshot that the log begins with. If that
//! lacks entries which the copy needs, another snapshot is taken first, within a rate limit. A snapshot that is being
//! copied is kept for a while after a later one has replaced it in the log; otherwise no copy could be completed that
//! takes longer than the time between snapshots.

use std::ops::Range;

use bytes::Bytes;
use dunlin_rpc::RequestBurst;
use raft::eraftpb::Snapshot;

use super::core::Core;
use crate::config::NodeError;
use crate::discard::discard;
use crate::wire::piece::StatePiece;
use crate::wire::response::Response;

/// Why a piece of a replaced snapshot is refused.
pub(crate) const REPLACED: &str = "a later snapshot has taken the place of the one that is read: begin again";
/// If no further piece of a snapshot is requested for this many nanoseconds, its copy ends.
const COPY_NANOS: u64 = 10_000_000_000;

/// Copies of a group's state that clients make.
#[derive(Default)]
pub(super) struct Copies {
    copied: Option<Copied>,
    /// When a snapshot was last taken because a copy needed later entries.
    taken: Option<u64>,
}

/// The snapshot being copied. It counts as one being sent. Without memory for both, it gives way to a snapshot that any
/// group receives or takes; and, like those being sent, it gives way if the log is full.
struct Copied {
    snapshot: Snapshot,
    /// When it expires, by the replica's clock.
    until: u64,
    /// The end of the furthest piece copied.
    reached: usize,
}

impl Copies {
    /// Whether a snapshot is kept for a copy.
    pub fn are_made(&self) -> bool {
        self.copied.is_some()
    }
}

impl Core {
    /// Answers with a piece of the snapshot whose last entry is `index`, or, if that is 0, of any that has entry
    /// `least`. Answers `Busy` while there is none.
    pub fn on_piece_request(
        &mut self,
        burst: &mut RequestBurst<'_>,
        i: usize,
        [least, index, offset]: [u64; 3],
    ) -> Result<(), Response<'static>> {
        let snapshot = self.snapshot_to_copy(index).ok_or_else(|| Response::Refused(REPLACED.into()))?;
        if snapshot.get_metadata().index < least {
            if let Err(error) = self.take_for_copy(least) {
                self.fail(error);
            }
            return Err(Response::Busy);
        }
        let (metadata, data) = (snapshot.get_metadata(), &snapshot.data);
        let begin = usize::try_from(offset).ok().filter(|begin| *begin <= data.len()).ok_or(Response::Bad)?;
        let end = data.len().min(begin.saturating_add(self.config.chunk_bytes));
        let (index, term, total) = (metadata.index, metadata.term, data.len() as u64);
        let piece = StatePiece { index, term, total, bytes: &data[begin..end] }.encode();
        let response = Response::Ok(&piece);
        burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
        self.keep_for_copy(snapshot, begin..end);
        Ok(())
    }

    /// Returns the snapshot with this last entry, if it exists; the log's if `index` is 0.
    fn snapshot_to_copy(&self, index: u64) -> Option<Snapshot> {
        let base = self.raft.store().base();
        if index == 0 || index == base.get_metadata().index {
            return Some(base.clone());
        }
        let Copied { snapshot, .. } = self.copies.copied.as_ref()?;
        (snapshot.get_metadata().index == index && self.is_kept(&snapshot.data)).then(|| snapshot.clone())
    }

    /// Takes a snapshot that has this entry, unless one was just taken for a copy, or other snapshots would have to
    /// give way: any client may ask for one. It begins at once, since in its turn others might have to.
    fn take_for_copy(&mut self, least: u64) -> Result<(), NodeError> {
        let (now, pause) = (self.now(), self.config.copy_snapshot_pause.as_nanos());
        let is_early = self.copies.taken.is_some_and(|taken| u128::from(now.saturating_sub(taken)) < pause);
        let others_take = self.common.taking.get().is_some() || !self.common.next_taking.borrow().is_empty();
        if is_early || self.applied < least || others_take || self.is_taking() || !self.has_memory_for_own() {
            return Ok(());
        }
        self.copies.taken = Some(now);
        self.begin_snapshot()
    }

    /// Keeps the snapshot of which this was copied, unless another is being copied. Only a piece behind those before it
    /// prolongs that. A piece of no bytes, which is behind the last one, copies nothing.
    fn keep_for_copy(&mut self, snapshot: Snapshot, piece: Range<usize>) {
        if piece.is_empty() {
            return;
        }
        let until = self.now().saturating_add(COPY_NANOS);
        match &mut self.copies.copied {
            Some(copied) if copied.snapshot.data.as_ptr() == snapshot.data.as_ptr() => {
                if piece.start >= copied.reached {
                    (copied.until, copied.reached) = (until, piece.end);
                }
            }
            Some(_) => {}
            none => {
                self.sending.push(snapshot.data.clone());
                *none = Some(Copied { snapshot, until, reached: piece.end });
            }
        }
    }

    /// Whether a snapshot was not given up to make room for the replica's own next one.
    pub fn is_kept(&self, data: &Bytes) -> bool {
        self.sending.iter().any(|sent| sent.as_ptr() == data.as_ptr())
    }

    /// A tick has passed: a copy may have expired.
    pub fn expire_copy(&mut self) {
        let now = self.now();
        let is_over = |copied: &Copied| copied.until <= now || !self.is_kept(&copied.snapshot.data);
        if self.copies.copied.as_ref().is_some_and(is_over) {
            self.give_up_copy();
        }
    }

    /// Stops keeping a snapshot for a copy.
    pub fn give_up_copy(&mut self) {
        if let Some(Copied { mut snapshot, .. }) = self.copies.copied.take() {
            self.forget_sent(&snapshot.data);
            discard(std::mem::take(&mut snapshot.data));
        }
    }
}
