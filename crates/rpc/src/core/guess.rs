//! Limits how often a sender with a forged address can guess a session's 24-bit tag.
//!
//! A right guess cannot be told from a packet of the other end, so what limits guesses keeps out both. A session that was guessed at too
//! often hears nothing until the period is over: whoever guesses fast enough can hold a session up, as with any flood, but not speak in its
//! name. `docs/wire-protocol.md`, section 13, has the figures.

use std::collections::HashMap;

use dunlin_net::Route;

use super::Core;
use super::session::State;
use crate::wire::{Header, MASK_24};

/// Wrong tags in packets for one session from its other end's address, in one period, after which it hears nothing until the next. Honest ends
/// send some: late packets of a session that had the same number.
const GUESSES_MAX: u32 = 64;
/// Wrong names of sessions in RESETs from one address, in one period, after which RESETs from there are not looked at
/// until the next. A peer that was restarted and is not heard counts as silent in time.
const RESET_GUESSES_MAX: u32 = 64;
/// How long they are counted, in nanoseconds, from the first one on.
const PERIOD: u64 = 100_000_000;
/// Set in [`super::session::Session::local_tag`] of a session that hears nothing: no packet has such a tag.
const DEAF: u32 = 1 << 31;

/// Guesses of this period.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    /// By session: as many entries as there are sessions at most.
    by_session: HashMap<u32, u32>,
    /// By the address that they came from: as many entries as there are routes at most.
    resets: HashMap<Route, u32>,
}

impl Core {
    /// A packet was not for the session that it names. If it came from the other end's address, its tag was wrong.
    #[cold]
    pub fn note_wrong_tag(&mut self, header: &Header, from: Option<Route>) {
        let Some(session) = self.sessions.get_mut(header.session as usize) else { return };
        let is_open = matches!(session.state, State::Connected | State::Closing);
        self.counters.dropped_wrong_tag += u64::from(is_open);
        if !is_open || from != Some(session.route) || session.local_tag & DEAF != 0 {
            return;
        }
        let count = self.guesses.by_session.entry(header.session).or_default();
        *count += 1;
        if *count >= GUESSES_MAX {
            session.local_tag |= DEAF;
            self.counters.sessions_guessed_at += 1;
            // This endpoint may be kept from running when the period ends.
            self.excuse(header.session, 2 * PERIOD);
        }
        self.wheel.arm_by(self.guess_timer, self.now + PERIOD);
    }

    /// Whether RESETs from an address are looked at.
    pub fn hears_resets(&self, from: Route) -> bool {
        self.guesses.resets.get(&from).is_none_or(|wrong| *wrong < RESET_GUESSES_MAX)
    }

    /// A RESET named no session of ours with its sender. One from an address without sessions can name none, however
    /// often it is tried.
    pub fn note_wrong_reset(&mut self, from: Option<Route>) {
        let Some(from) = from.filter(|from| self.peers.is_peer(*from)) else { return };
        *self.guesses.resets.entry(from).or_default() += 1;
        self.wheel.arm_by(self.guess_timer, self.now + PERIOD);
    }

    /// The period is over: all that heard nothing hear again.
    pub fn end_guesses(&mut self) {
        self.guesses.resets.clear();
        for (session, _) in self.guesses.by_session.drain() {
            self.sessions[session as usize].local_tag &= MASK_24;
        }
    }
}
