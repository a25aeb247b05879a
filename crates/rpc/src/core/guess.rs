//! Limits how often a sender with a forged address can guess a session's 24-bit tag.
//!
//! A right guess cannot be told from a packet of the peer, so a limit on guesses also keeps out the peer. A session
//! that received too many wrong tags receives nothing until the period is over: an attacker who guesses fast enough can
//! delay a session, as with any flood, but not send in its name. `docs/wire-protocol.md`, section 13, has the numbers.

use std::collections::HashMap;

use dunlin_net::Route;

use super::Core;
use super::session::State;
use crate::wire::{Header, MASK_24};

/// Wrong tags in packets for one session from its peer's address, in one period, after which it receives nothing until
/// the next. Well-behaved peers send some: late packets of an earlier session with the same number.
const GUESSES_MAX: u32 = 64;
/// Wrong session names in RESETs from one address, in one period, after which RESETs from there are ignored until the
/// next. A restarted peer whose RESETs are ignored counts as silent in time.
const RESET_GUESSES_MAX: u32 = 64;
/// How long they are counted, in nanoseconds, from the first one on.
const PERIOD: u64 = 100_000_000;
/// Set in [`super::session::Session::local_tag`] of a session that receives nothing: no packet has such a tag.
const DEAF: u32 = 1 << 31;

/// Wrong guesses in this period.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    /// By session: at most as many entries as there are sessions.
    by_session: HashMap<u32, u32>,
    /// By source address: at most as many entries as there are routes.
    resets: HashMap<Route, u32>,
}

impl Core {
    /// Handles a packet that is not for the session that it names. If it came from the peer's address, its tag was
    /// wrong.
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
            // This endpoint may be descheduled when the period ends.
            self.excuse(header.session, 2 * PERIOD);
        }
        self.wheel.arm_by(self.guess_timer, self.now + PERIOD);
    }

    /// Whether RESETs from an address are processed.
    pub fn hears_resets(&self, from: Route) -> bool {
        self.guesses.resets.get(&from).is_none_or(|wrong| *wrong < RESET_GUESSES_MAX)
    }

    /// Notes a RESET whose sender has no such session with us. A RESET from an address without sessions never matches,
    /// however often it is tried.
    pub fn note_wrong_reset(&mut self, from: Option<Route>) {
        let Some(from) = from.filter(|from| self.peers.is_peer(*from)) else { return };
        *self.guesses.resets.entry(from).or_default() += 1;
        self.wheel.arm_by(self.guess_timer, self.now + PERIOD);
    }

    /// Ends the period: all deaf sessions receive again.
    pub fn end_guesses(&mut self) {
        self.guesses.resets.clear();
        for (session, _) in self.guesses.by_session.drain() {
            self.sessions[session as usize].local_tag &= MASK_24;
        }
    }
}
