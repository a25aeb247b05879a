//! Reading the answers to the messages of a phase.

use bytes::Bytes;

use super::{Holding, Outgoing, Read, State};
use crate::wire::answer::Found;
use crate::wire::execute::{Access, Target};
use crate::wire::{Header, WireError, end};

impl State {
    /// Applies the entries of an execution answer, which follow its status.
    pub fn executed(&mut self, sent: &Outgoing, mut found: &[u8]) -> Result<(), WireError> {
        let mut asked = &sent.payload[..];
        Header::take(sent.kind, &mut asked)?;
        for index in &sent.entries {
            let room = take_room(&mut asked)?;
            let Found { version, grant, value, presence } = Found::take(&mut found)?;
            let entry = &mut self.entries[*index];
            if let Some(grant) = grant {
                let room = room.max(value.map_or(0, <[u8]>::len));
                entry.held = Some(Holding { grant, room });
            }
            // A lock without a read keeps the value that was read before: the lock checked its version.
            let before = entry.read.take().and_then(|read| read.value);
            entry.read = Some(Read { version, presence, value: value.map(Bytes::copy_from_slice).or(before) });
        }
        end(found)
    }
}

impl State {
    /// Records that a message was lost: the keys that it asked to lock may be locked.
    pub fn lost(&mut self, sent: &Outgoing) {
        for index in &sent.entries {
            self.entries[*index].may_be_locked = true;
        }
    }
}

/// The room that the next entry of a request asked for.
fn take_room(asked: &mut &[u8]) -> Result<usize, WireError> {
    Target::take(asked)?;
    Ok(Access::take(asked)?.lock().map_or(0, |lock| lock.room as usize))
}
