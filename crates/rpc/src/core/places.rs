//! Places of the receive queue: how many packets each session may have there.
//!
//! A credit lets one packet of a client be in flight, and so holds a place twice: in the server's receive queue until
//! the packet is received, and in the client's until its answer is. Each end counts the places that it has promised in
//! its own queue, and their sum never exceeds the queue's length. With [`crate::EndpointConfig::credit_sharing`], each
//! direction of a session keeps a single credit permanently; the others are on loan ([`super::loan`]).
//!
//! While there are places for all, each of these single credits has one. If there are more sessions, those in use have
//! a place, and the others keep their credit without one: they cost only memory. Their next packet may find a full
//! queue; it is then dropped, counted and retransmitted like any other, and its session gets a place. A session that
//! finds all places on loan begins in the same way, so that it need not wait for borrowers, who may never give anything
//! back. Loans always have places.

use super::Core;

/// Loans leave this share of the queue to packets that spend no credits: RELEASE, PING, handshakes, and
/// retransmissions.
const HEADROOM: usize = 8;

/// What one session holds of this endpoint's receive queue, and what was agreed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places {
    /// For requests of the peer: the credits that it may use, as far as this end can know.
    pub inbound: u16,
    /// The agreed maximum of `inbound`.
    pub inbound_agreed: u16,
    /// For answers to our calls: the credits of the session, and those that are being borrowed or given back.
    pub outbound: u16,
    /// The agreed maximum of `outbound`.
    pub outbound_agreed: u16,
}

/// The end whose requests a place is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The peer's requests.
    Inbound,
    /// Our requests, whose answers need it.
    Outbound,
}

/// The receive queue, and how much of it credits hold.
#[derive(Debug)]
pub(crate) struct Queue {
    pub len: usize,
    /// Places held by all sessions.
    pub reserved: usize,
    /// Those of them that sessions keep permanently.
    pub guaranteed: usize,
    /// Directions of sessions that hold more than that.
    pub holders: usize,
    /// Directions of sessions that have a credit and no place for it.
    pub unplaced: usize,
    /// Whether a session found too few places since the last search for more.
    pub is_short: bool,
}

/// Whether there are places for a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// For all its credits.
    Full,
    /// For one credit in each direction that has any.
    Least,
    /// For none: it gets one credit in each direction that has any, without a place until others give some up.
    Unplaced,
    /// For none, and this end does not share its places: the session is refused.
    Refused,
}

impl Places {
    /// All places that two directions may have, from the credits they may use at the start.
    pub fn new(inbound: u16, outbound: u16) -> Places {
        Places { inbound, inbound_agreed: inbound, outbound, outbound_agreed: outbound }
    }

    /// The same agreement, with one credit in each direction that has any.
    pub fn least(self) -> Places {
        Places { inbound: self.inbound_agreed.min(1), outbound: self.outbound_agreed.min(1), ..self }
    }

    pub fn sum(self) -> usize {
        self.inbound as usize + self.outbound as usize
    }

    /// The same agreement, without any place.
    pub fn unplaced(self) -> Places {
        Places { inbound: 0, outbound: 0, ..self }
    }

    /// The same agreement, with no more places than `other` holds.
    pub fn at_most(self, other: Places) -> Places {
        Places { inbound: self.inbound.min(other.inbound), outbound: self.outbound.min(other.outbound), ..self }
    }

    /// Directions that have at least one place.
    fn guaranteed(self) -> usize {
        usize::from(self.inbound > 0) + usize::from(self.outbound > 0)
    }

    /// Directions that have a credit and no place.
    pub fn without_place(self) -> usize {
        self.least().sum() - self.guaranteed()
    }

    fn of(self, direction: Direction) -> (u16, u16) {
        match direction {
            Direction::Inbound => (self.inbound, self.inbound_agreed),
            Direction::Outbound => (self.outbound, self.outbound_agreed),
        }
    }

    fn of_mut(&mut self, direction: Direction) -> &mut u16 {
        match direction {
            Direction::Inbound => &mut self.inbound,
            Direction::Outbound => &mut self.outbound,
        }
    }

    fn holders(self) -> usize {
        usize::from(self.inbound > 1) + usize::from(self.outbound > 1)
    }
}

impl Queue {
    pub fn new(len: usize) -> Queue {
        Queue { len, reserved: 0, guaranteed: 0, holders: 0, unplaced: 0, is_short: false }
    }

    fn add(&mut self, places: Places) {
        self.reserved += places.sum();
        self.guaranteed += places.guaranteed();
        self.holders += places.holders();
        self.unplaced += places.without_place();
        debug_assert!(self.reserved <= self.len, "{self:?} is oversubscribed");
    }

    fn subtract(&mut self, places: Places) {
        self.reserved -= places.sum();
        self.guaranteed -= places.guaranteed();
        self.holders -= places.holders();
        self.unplaced -= places.without_place();
    }

    /// Whether each direction of all sessions may have a place at the same time.
    pub fn holds_all(&self) -> bool {
        self.guaranteed + self.unplaced <= self.len
    }

    /// Places that may still be lent.
    pub fn lendable(&self) -> usize {
        (self.len - self.len / HEADROOM).saturating_sub(self.reserved)
    }

    /// What each direction that wants loans may have if there are not enough for all.
    pub fn share(&self) -> u16 {
        let pool = (self.len - self.len / HEADROOM).saturating_sub(self.guaranteed + 2);
        (pool / self.holders.max(1)).min(u16::MAX as usize) as u16
    }
}

impl Core {
    pub fn shares_credits(&self) -> bool {
        self.config.credit_sharing.is_on()
    }

    /// Whether there are places for a session with this agreement. If there are none even for its single credits,
    /// others' loans are recalled.
    pub fn admission(&mut self, wanted: Places) -> Admission {
        let queue = &self.queue;
        // While sessions wait for places, a new one does not begin with more than its minimum.
        if queue.reserved + wanted.sum() <= queue.len && queue.unplaced == 0 {
            Admission::Full
        } else if !self.config.credit_sharing.is_on() {
            Admission::Refused
        } else if queue.reserved + wanted.least().sum() <= queue.len {
            Admission::Least
        } else {
            self.want_places();
            Admission::Unplaced
        }
    }

    /// Gives a new session its places.
    pub fn take_places(&mut self, session: u32, places: Places) {
        self.queue.add(places);
        self.cold[session as usize].places = places;
    }

    /// Releases the places of a session that has ended.
    pub fn give_up_places(&mut self, session: u32) {
        let places = std::mem::take(&mut self.cold[session as usize].places);
        self.queue.subtract(places);
    }

    /// Changes what a session holds, within its agreement.
    pub fn change_places(&mut self, session: u32, change: impl FnOnce(&mut Places)) {
        let places = &mut self.cold[session as usize].places;
        self.queue.subtract(*places);
        let before = *places;
        change(places);
        debug_assert!(
            places.inbound <= places.inbound_agreed && places.outbound <= places.outbound_agreed,
            "{places:?}"
        );
        let places = *places;
        self.queue.add(places);
        if let Some(share) = self.peers.share_mut(self.sessions[session as usize].peer) {
            share.subtract_places(before);
            share.add_places(places);
        }
    }

    /// Gives a direction of a session its place if it is used or there are places for all; otherwise takes it back, if
    /// it was for its only credit.
    pub fn move_place(&mut self, session: u32, direction: Direction, is_used: bool) {
        let is_entitled = is_used || self.queue.holds_all();
        let places = self.cold[session as usize].places;
        let (held, agreed) = places.of(direction);
        match (held, is_entitled) {
            (0, true) if agreed > 0 => {
                let host = self.peers.share_of(self.sessions[session as usize].peer);
                if self.places_left(host.places) == 0 {
                    // Its host is at its limit, so places of others would not help.
                    return;
                }
                if self.queue.reserved == self.queue.len {
                    // An idle direction takes a free place, and recalls none: others may never give anything back.
                    if is_used {
                        self.want_places();
                    }
                    return;
                }
                self.change_places(session, |places| *places.of_mut(direction) = 1);
            }
            (1, false) => {
                self.counters.places_withdrawn += 1;
                self.change_places(session, |places| *places.of_mut(direction) = 0);
            }
            _ => {}
        }
    }

    /// Notes that a session found too few places: at the next tick, others are asked for what they do not use.
    pub fn want_places(&mut self) {
        self.queue.is_short = true;
        self.arm_tick();
    }
}
