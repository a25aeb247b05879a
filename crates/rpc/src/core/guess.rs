//! Limits how often a sender with a forged address can guess the 24-bit tags of a peer's sessions.
//!
//! A right guess cannot be told from a packet of the peer, so a limit on guesses also keeps out the peer. After too many
//! wrong tags from one address, each session that a further one names receives nothing until the period is over: an
//! attacker who guesses fast enough can delay sessions, as with any flood, but hardly send in their name. All sessions
//! of the address have one limit, or else many of them would allow many guesses. `docs/wire-protocol.md`, section 13,
//! has the numbers.

use std::collections::{HashMap, HashSet};

use dunlin_net::Route;

use super::Core;
use super::session::State;
use crate::wire::{Header, MASK_24};

/// Wrong tags in packets from the address of a peer, in one period. The session that the last of them named, and each
/// that a further one names, receives nothing until the next period. Well-behaved peers send some: late packets of an
/// earlier session with the same number.
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
    /// Wrong tags by source address: at most as many entries as there are routes, as below.
    tags: HashMap<Route, u32>,
    /// Wrong names in RESETs by source address.
    resets: HashMap<Route, u32>,
    /// Sessions that receive nothing until the period is over.
    deaf: HashSet<u32>,
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
        let count = self.guesses.tags.entry(session.route).or_default();
        *count += 1;
        if *count >= GUESSES_MAX {
            session.local_tag |= DEAF;
            self.guesses.deaf.insert(header.session);
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
        self.guesses.tags.clear();
        self.guesses.resets.clear();
        for session in self.guesses.deaf.drain() {
            self.sessions[session as usize].local_tag &= MASK_24;
        }
    }
}
