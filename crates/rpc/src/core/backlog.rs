//! Calls that wait for a slot of their session, in a list linked through the calls themselves.

use super::{Core, NONE};

impl Core {
    pub fn push_queued(&mut self, session: u32, index: u32) {
        self.calls[index as usize].next = NONE;
        let entry = &mut self.sessions[session as usize];
        match entry.queue_tail {
            NONE => entry.queue_head = index,
            tail => self.calls[tail as usize].next = index,
        }
        entry.queue_tail = index;
        entry.queued += 1;
    }

    /// Takes the call that waited longest for a slot.
    pub fn pop_queued(&mut self, session: u32) -> Option<u32> {
        let entry = &mut self.sessions[session as usize];
        if entry.queue_head == NONE {
            return None;
        }
        let index = entry.queue_head;
        entry.queue_head = self.calls[index as usize].next;
        if entry.queue_head == NONE {
            entry.queue_tail = NONE;
        }
        entry.queued -= 1;
        Some(index)
    }

    /// Takes a call out of the middle of the queue. Rare, so it walks.
    pub fn unlink_queued(&mut self, index: u32) {
        let session = self.calls[index as usize].session;
        let (mut before, mut at) = (NONE, self.sessions[session as usize].queue_head);
        while at != index && at != NONE {
            (before, at) = (at, self.calls[at as usize].next);
        }
        if at == NONE {
            return;
        }
        let next = self.calls[index as usize].next;
        let entry = &mut self.sessions[session as usize];
        match before {
            NONE => entry.queue_head = next,
            before => self.calls[before as usize].next = next,
        }
        if next == NONE {
            entry.queue_tail = before;
        }
        entry.queued -= 1;
    }
}
