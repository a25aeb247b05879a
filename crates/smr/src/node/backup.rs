//! Pieces of the state for whoever keeps a copy of it elsewhere: those of the snapshot that the log begins with. If that
//! lacks entries which the copy is to have, another is taken first.

use dunlin_rpc::RequestBurst;

use super::core::Core;
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::wire::response::Response;

/// Bytes in front of a piece: the last entry in the snapshot, its term, and the bytes of the whole.
pub(crate) const PIECE_HEADER_BYTES: usize = 24;

impl<M: StateMachine, L: LogStore> Core<M, L> {
    /// A piece of the snapshot with the last entry `index`, or of any that has the entry `least` if that is 0. It is `Busy`
    /// while there is none.
    pub fn on_piece_request(
        &mut self,
        burst: &mut RequestBurst<'_>,
        i: usize,
        [least, index, offset]: [u64; 3],
    ) -> Result<(), Response<'static>> {
        let base = self.raft.store().base().get_metadata().index;
        if index != 0 && index != base {
            return Err(Response::Refused(REPLACED.into()));
        }
        if base < least {
            if self.applied >= least
                && let Err(error) = self.compact()
            {
                self.fail(error);
            }
            return Err(Response::Busy);
        }
        let snapshot = self.raft.store().base();
        let (metadata, data) = (snapshot.get_metadata(), &snapshot.data);
        let begin = usize::try_from(offset).ok().filter(|begin| *begin <= data.len()).ok_or(Response::Bad)?;
        let end = data.len().min(begin.saturating_add(self.config.chunk_bytes));
        let mut piece = Vec::with_capacity(PIECE_HEADER_BYTES + end - begin);
        for word in [metadata.index, metadata.term, data.len() as u64] {
            piece.extend_from_slice(&word.to_le_bytes());
        }
        piece.extend_from_slice(&data[begin..end]);
        let response = Response::Ok(&piece);
        burst.respond_written(i, response.encoded_len(), |out| response.encode(out));
        Ok(())
    }
}

/// Why a piece is refused that is of an earlier snapshot.
pub(crate) const REPLACED: &str = "a later snapshot has taken the place of the one that is read: begin again";
