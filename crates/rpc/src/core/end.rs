//! How calls end: each exactly once, through [`Core::complete_call`], [`Core::fail_call`] or [`Core::cancel_call`].
//! After that its slot and credits are free, and its buffers are returned.

use std::task::Waker;

use super::call::{CallRef, CallState, Ended, Waiter};
use super::session::{SessionRef, State};
use super::{Core, NONE};
use crate::error::CallError;
use crate::msgbuf::MsgBuf;
use crate::wire::control::SLOTS_MAX;

impl Core {
    /// Ends a call whose response is complete.
    #[inline(always)]
    pub fn complete_call(&mut self, index: u32, response: MsgBuf) {
        self.counters.calls_completed += 1;
        self.calls[index as usize].response = Some(response);
        self.end_call(index);
    }

    /// Ends a call without a response.
    pub fn fail_call(&mut self, index: u32, error: CallError) {
        self.counters.calls_failed += 1;
        let call = &mut self.calls[index as usize];
        call.response = None;
        call.error = Some(error);
        self.end_call(index);
    }

    /// Notifies the waiter of a call, and frees its slot, if it has one.
    #[inline(always)]
    fn end_call(&mut self, index: u32) {
        let call = &mut self.calls[index as usize];
        let was_in_slot = call.state == CallState::InSlot;
        call.state = CallState::Done;
        match call.waiter {
            Waiter::FUTURE => self.woken.extend(call.waker.take()),
            Waiter::ROOT => self.root_woken = true,
            Waiter(_) => self.ended.push_back(index),
        }
        if was_in_slot {
            self.leave_slot(index);
        }
    }

    /// Takes the next call that ended and has a continuation.
    #[inline]
    pub fn next_ended(&mut self) -> Option<Ended> {
        loop {
            let index = self.ended.pop_front()?;
            let call = &mut self.calls[index as usize];
            let session = SessionRef { index: call.session, generation: call.session_generation };
            let (Waiter(continuation), tag) = (call.waiter, call.tag);
            let (result, request) = (call.take_result(), call.request.take());
            self.free_entry(index);
            if let (Some(result), Some(request)) = (result, request) {
                return Some(Ended { continuation, tag, session, result, request });
            }
        }
    }

    /// Frees the slot of a call that has one, for the next call.
    #[inline]
    fn leave_slot(&mut self, index: u32) {
        let call = &mut self.calls[index as usize];
        call.state = CallState::Done;
        if call.tx_batch == self.tx.batch {
            self.tx.forget_call(index);
        }
        let (si, slot) = (call.session, call.slot);
        let in_flight = if call.window == NONE { call.in_flight() } else { self.drop_window(index) } as i16;
        // Masked, so that the compiler sees what always holds: the number of slots is at least this.
        let slot = slot % SLOTS_MAX as u8;
        let session = &mut self.sessions[si as usize];
        session.credits += in_flight;
        debug_assert!(session.credits <= session.credits_max as i16, "more credits than the session has");
        session.client[slot as usize].call = NONE;
        session.stalled &= !(1 << slot);
        session.free_slots |= 1 << slot;
        if session.state != State::Connected {
            return;
        }
        let (is_stalled, is_queued) = (session.stalled != 0, session.queued != 0);
        if is_stalled {
            self.pump_stalled(si, slot);
        }
        if is_queued {
            self.enter_next(si);
        }
    }

    /// Frees the entry of an ended call.
    #[inline]
    pub fn free_call(&mut self, index: u32) {
        let call = &mut self.calls[index as usize];
        let request = call.request.take();
        call.response = None;
        self.free_entry(index);
        if let Some(request) = request {
            self.discard(request);
        }
    }

    /// Frees the entry of an ended call whose buffers were taken.
    #[inline]
    fn free_entry(&mut self, index: u32) {
        let call = &mut self.calls[index as usize];
        debug_assert!(call.state == CallState::Done || call.state == CallState::Queued);
        debug_assert!(call.request.is_none() && call.response.is_none());
        call.state = CallState::Free;
        call.generation = call.generation.wrapping_add(1);
        self.free_calls.push(index);
    }

    /// Cancels a call, in whatever state it is. Its buffers are free at once; a later response is stale.
    ///
    /// Returns the waker of the call's waiter. Drop it once nobody borrows the core: a waker may own what calls back
    /// into this code.
    pub fn cancel_call(&mut self, reference: CallRef) -> Option<Waker> {
        let call = self.calls.get_mut(reference.place())?;
        if call.generation != reference.generation() || call.state == CallState::Free {
            return None;
        }
        let (state, session, sent) = (call.state, call.session, call.was_sent());
        let waker = call.waker.take();
        match state {
            CallState::Queued => self.unlink_queued(reference.index()),
            CallState::InSlot => self.leave_slot(reference.index()),
            CallState::Done | CallState::Free => {}
        }
        if state != CallState::Done {
            self.counters.calls_cancelled += 1;
            if state == CallState::InSlot && sent {
                self.send_release(session);
            }
        }
        self.free_call(reference.index());
        waker
    }

    /// A deadline has passed.
    pub fn expire_call(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        let (state, session, sent) = (call.state, call.session, call.was_sent());
        if state == CallState::Queued {
            self.unlink_queued(index);
        }
        self.fail_call(index, CallError::DeadlineExceeded);
        if state == CallState::InSlot && sent {
            self.send_release(session);
        }
    }
}
