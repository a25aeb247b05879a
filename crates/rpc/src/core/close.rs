//! Orderly end of sessions: CLOSE, CLOSE_ACK.

use super::session::{SessionRef, State};
use super::timers::token_of_session;
use super::{Core, Routes};
use crate::error::CallError;
use crate::wire::control::{Presence, SLOTS_MAX};
use crate::wire::{Header, Kind};

/// CLOSE is sent this many times before the peer counts as gone.
const CLOSE_ATTEMPTS: u32 = 5;
/// Wait before it is retransmitted.
const CLOSE_REPEAT_NANOS: u64 = 10_000_000;

impl Core {
    /// Starts to close a session. Its calls end with [`CallError::Closed`]. Requests that its handlers have become
    /// orphans: their responses are dropped. Those whose handlers have not started never start.
    pub fn close_session(&mut self, session: SessionRef) {
        let index = session.index;
        if self.session(session).is_none_or(|found| found.state != State::Connected) {
            return;
        }
        self.sessions[index as usize].state = State::Closing;
        while let Some(call) = self.pop_queued(index) {
            self.fail_call(call, CallError::Closed);
        }
        for slot in 0..SLOTS_MAX {
            let call = self.sessions[index as usize].client[slot].call;
            if call != super::NONE {
                self.fail_call(call, CallError::Closed);
            }
            self.drop_serve_of(index, slot);
        }
        self.cold[index as usize].attempts = 0;
        if self.cold[index as usize].timer.is_none() {
            self.cold[index as usize].timer = Some(self.wheel.create(token_of_session(index)));
        }
        self.send_close(index);
    }

    fn send_close(&mut self, index: u32) {
        let presence = Presence { incarnation: self.incarnation, token: 0 };
        self.send_control(index, Kind::Close, &presence);
        self.cold[index as usize].attempts += 1;
        if let Some(timer) = self.cold[index as usize].timer {
            self.wheel.arm(timer, self.now + CLOSE_REPEAT_NANOS);
        }
    }

    /// The timer of a session has fired.
    pub fn on_session_timer(&mut self, routes: &mut dyn Routes, index: u32) {
        match self.sessions[index as usize].state {
            State::Connecting => self.on_connect_timer(routes, index),
            State::Closing if self.cold[index as usize].attempts >= CLOSE_ATTEMPTS => self.finish_close(index),
            State::Closing => self.send_close(index),
            State::Free | State::Connected | State::Ending => {}
        }
    }

    /// The peer closes. Every CLOSE is answered, even a repeated one, since the answer may have been lost.
    pub fn on_close(&mut self, index: u32) {
        let presence = Presence { incarnation: self.incarnation, token: 0 };
        self.send_control(index, Kind::CloseAck, &presence);
        self.finish_close(index);
    }

    /// The peer has closed.
    pub fn on_close_ack(&mut self, index: u32) {
        if self.sessions[index as usize].state == State::Closing {
            self.finish_close(index);
        }
    }

    fn finish_close(&mut self, index: u32) {
        self.counters.sessions_closed += 1;
        self.end_session(index, CallError::Closed);
    }

    /// Opens no more sessions, and accepts none.
    pub fn stop_opening(&mut self) {
        self.shutting_down = true;
        for opening in self.openings.drain(..) {
            opening.progress.borrow_mut().finish(Err(crate::error::ConnectError::ShutDown), &mut self.woken);
        }
    }

    /// Closes every session in order.
    pub fn close_sessions(&mut self) {
        for index in 0..self.sessions.len() as u32 {
            match self.sessions[index as usize].state {
                State::Connected => self.close_session(self.session_ref(index)),
                State::Connecting => self.fail_opening(index, crate::error::ConnectError::ShutDown),
                State::Closing | State::Free | State::Ending => {}
            }
        }
    }

    /// Tells every peer once that its sessions end; for an endpoint that is going away.
    pub fn close_all(&mut self) {
        self.stop_opening();
        for index in 0..self.sessions.len() as u32 {
            match self.sessions[index as usize].state {
                State::Connected | State::Closing => {
                    let entry = &self.sessions[index as usize];
                    let header = Header::new(Kind::Close, 0, entry.remote_session, 0, entry.remote_tag);
                    let presence = Presence { incarnation: self.incarnation, token: 0 };
                    self.tx.push_control(entry.route, &header, &presence);
                    self.finish_close(index);
                }
                State::Connecting => self.fail_opening(index, crate::error::ConnectError::ShutDown),
                State::Free | State::Ending => {}
            }
        }
    }
}
