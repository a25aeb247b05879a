//! A call: what it and its answer need, and the rest.

use super::error::Stall;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be sent.
    Queued,
    /// An attempt is in flight.
    Sent,
    /// Refused; to be sent again when it is due.
    Paused,
}

/// What a call and its answer need. Its place follows from its tag.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Slot {
    /// The tag of the call's attempts. In a free slot, the complement of the last one: no packet for this place has it.
    pub(super) tag: u64,
    /// The caller's token.
    pub(super) token: u64,
    /// Numbers of these attempts are not below this: all that the client had before the first of them. [`UNSENT`] before
    /// that.
    pub(super) floor: u64,
    /// The guess of the attempts.
    pub(super) guess: u32,
    /// The incarnation or epoch that they named. 0 if none: no number is drawn for those.
    pub(super) named: u32,
}

/// The floor of a call that was not sent yet.
pub(super) const UNSENT: u64 = u64::MAX;

impl Slot {
    #[inline]
    pub(super) fn is_used(&self, place: usize, places: usize) -> bool {
        self.tag & (places as u64 - 1) == place as u64
    }

    #[inline]
    pub(super) fn free(&mut self) {
        self.tag = !self.tag;
    }
}

/// The rest of a call. It is valid once the call was sent, or is held back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Course {
    /// When the attempt times out, or a pause is over.
    pub(super) due: u64,
    /// When the call times out.
    pub(super) deadline: u64,
    /// Index of the server asked.
    pub(super) server: u16,
    pub(super) attempts: u8,
    pub(super) hellos: u8,
    pub(super) state: State,
    pub(super) stall: Stall,
}

/// A call to be sent again; void if its slot has another tag by then.
pub(super) type Again = (u32, u64);
