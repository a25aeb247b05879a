//! Reading the answers to the messages of a phase.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Holding, Outgoing, Read, State};
use crate::wire::answer::Found;
use crate::wire::execute::{Access, Target};
use crate::wire::{HEADER_BYTES, Header, WireError, end};

impl State {
    /// Applies the entries of an execution answer, which follow its status.
    pub fn executed(&mut self, sent: &Outgoing, mut found: &[u8]) -> Result<(), WireError> {
        let mut asked = &sent.payload[..];
        Header::take(sent.kind, &mut asked)?;
        for index in &sent.entries {
            let room = take_room(&mut asked)?;
            let Found { version, grant, value, presence } = Found::take(&mut found)?;
            let entry = &mut self.entries[*index as usize];
            if let Some(grant) = grant {
                let room = room.max(value.map_or(0, <[u8]>::len));
                entry.held = Some(Holding { grant, room });
            }
            // A lock without a read keeps the value that was read before: the lock checked its version.
            let before = entry.read.take().and_then(|read| read.value);
            entry.read = Some(Read { version, presence, value: value.map(shared).or(before) });
        }
        end(found)
    }
}

impl State {
    /// Records that a message was lost: the keys that it asked to lock may be locked.
    pub fn lost(&mut self, sent: &Outgoing) {
        let mut asked = sent.payload.get(HEADER_BYTES..).unwrap_or_default();
        for index in &sent.entries {
            let is_read = take_access(&mut asked).is_ok_and(|access| access.lock().is_none());
            self.entries[*index as usize].may_be_locked |= !is_read;
        }
    }
}

/// How the next entry of a request is accessed.
fn take_access(asked: &mut &[u8]) -> Result<Access, WireError> {
    Target::take(asked)?;
    Access::take(asked)
}

/// The room that the next entry of a request asked for.
fn take_room(asked: &mut &[u8]) -> Result<usize, WireError> {
    Ok(take_access(asked)?.lock().map_or(0, |lock| lock.room as usize))
}

/// Bytes of a value that is copied into the allocation that counts its references.
const SMALL_BYTES: usize = 64;

/// A copy of a value, of which further copies cost no memory.
fn shared(value: &[u8]) -> Bytes {
    if value.len() > SMALL_BYTES {
        return Bytes::copy_from_slice(value);
    }
    Bytes::from_owner(SmallVec::<[u8; SMALL_BYTES]>::from_slice(value))
}
