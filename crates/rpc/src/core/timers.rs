//! What happens when a timer fires: timeouts of calls, handshakes, and the tick that checks peers.

use dunlin_net::clock::nanos;

use super::call::CallState;
use super::session::State;
use super::{Core, Routes};

/// Token of the tick.
pub(crate) const TOKEN_TICK: u64 = 0;
/// Token of the end of a period in which guesses are counted.
pub(crate) const TOKEN_GUESSES: u64 = 1;
const KIND_CALL: u64 = 1 << 32;
const KIND_SESSION: u64 = 2 << 32;
const KIND_ALARM: u64 = 3 << 32;

/// Time between ticks while calls are in progress: how soon a dead process of this host is noticed.
pub(super) const TICK_BUSY_NANOS: u64 = 5_000_000;
/// Longest time between ticks while there are no calls: as long as the longest sleep of an endpoint, so that ticks wake
/// it no more often. With a short [`crate::EndpointConfig::peer_timeout`] they come as often as peers must be pinged.
const TICK_IDLE_NANOS: u64 = nanos(dunlin_net::poll::SLEEP_MAX);
/// Sessions that a tick examines for responses to release.
const RELEASES_PER_TICK: usize = 512;
/// Packets of unknown sessions that are answered between two ticks.
pub(crate) const RESETS_PER_TICK: u32 = 64;

pub(crate) fn token_of_call(index: u32) -> u64 {
    KIND_CALL | index as u64
}

pub(crate) fn token_of_session(index: u32) -> u64 {
    KIND_SESSION | index as u64
}

pub(crate) fn token_of_alarm(index: u32) -> u64 {
    KIND_ALARM | index as u64
}

impl Core {
    /// Runs every timer that is due. Returns how many there were.
    pub fn run_timers(&mut self, routes: &mut dyn Routes) -> usize {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(self.now, &mut fired);
        let count = fired.len();
        for token in fired.drain(..) {
            let index = token as u32;
            match token & !(u32::MAX as u64) {
                KIND_CALL => self.on_call_timer(index),
                KIND_SESSION => self.on_session_timer(routes, index),
                KIND_ALARM => self.on_alarm(index),
                _ if token == TOKEN_GUESSES => self.end_guesses(),
                _ => self.on_tick(routes),
            }
        }
        self.fired = fired;
        count
    }

    fn on_call_timer(&mut self, index: u32) {
        let call = &self.calls[index as usize];
        if !matches!(call.state, CallState::Queued | CallState::InSlot) {
            return;
        }
        if self.now >= call.deadline {
            return self.expire_call(index);
        }
        if call.state == CallState::Queued {
            let deadline = call.deadline;
            if deadline != super::call::NO_DEADLINE {
                self.arm_call(index, deadline);
            }
            return;
        }
        let (session, deadline, window, in_flight) = (call.session, call.deadline, call.window, call.in_flight());
        if self.now >= self.call_due(index) {
            if let Some(until) = self.awaits_life(session, index) {
                return self.arm_call(index, until.min(deadline));
            }
            let call = &self.calls[index as usize];
            // A peer that sends nothing at all is handled by the peer timeout. One that sends on other sessions only
            // may have lost this one.
            let (of_session, silence) = (&self.sessions[session as usize], &self.cold[session as usize].silence);
            let lives = of_session.traffic.rx_packets != silence.heard
                || self.peers.get(of_session.peer).is_some_and(|peer| peer.was_heard(|at| silence.began_before(at)));
            if call.unanswered >= self.config.retransmissions_max && call.was_sent() && lives {
                return self.fail_unanswered(index);
            }
            if window != super::NONE {
                self.on_window_timer(index);
            } else if in_flight > 0 {
                self.roll_back(index);
            } else {
                // It waits for credits, which calls with packets in flight will bring back.
                self.calls[index as usize].progress = self.now;
            }
        }
        let due = self.call_due(index);
        self.arm_call(index, due);
    }

    /// Makes sure that the tick comes: while there are sessions, and once after anything that a tick limits or
    /// releases.
    pub fn arm_tick(&mut self) {
        let is_awaited = self.calls_pending() > 0
            || self.loans_are_moving()
            || !self.ticked.is_empty()
            || self.peers.any_in_doubt
            || self.is_crowded;
        let pause =
            if is_awaited { TICK_BUSY_NANOS } else { self.ping_after().clamp(TICK_BUSY_NANOS, TICK_IDLE_NANOS) };
        // With very many peers, checking each of them must not take the whole core.
        let pause = pause.max(self.peers.len() as u64 * 20_000);
        self.wheel.arm_by(self.tick_timer, self.now + pause);
    }

    fn on_tick(&mut self, routes: &mut dyn Routes) {
        self.resets_left = RESETS_PER_TICK;
        self.woken.append(&mut self.ticked);
        self.tick_peers(routes);
        for route in self.idle_routes.drain(..) {
            routes.release(route);
        }
        self.tick_releases();
        self.tick_audit();
        self.tick_loans();
        self.tick_kept();
        self.tick_memory();
        if self.session_count > 0 {
            self.arm_tick();
        }
    }

    /// Lets the servers of idle sessions free the responses they keep for us.
    fn tick_releases(&mut self) {
        for _ in 0..self.unreleased.len().min(RELEASES_PER_TICK) {
            let Some(index) = self.unreleased.pop_front() else { return };
            let session = &self.sessions[index as usize];
            if session.state != State::Connected {
                self.sessions[index as usize].unreleased = false;
            } else if session.client.iter().all(|slot| slot.call == super::NONE) {
                self.sessions[index as usize].unreleased = false;
                self.send_release(index);
            } else {
                self.unreleased.push_back(index);
            }
        }
    }
}
