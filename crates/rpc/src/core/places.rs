//! Places of the receive queue: who may have how many packets there.
//!
//! A credit lets one packet of a client be on the way, and so holds a place twice: in the server's receive queue until the packet is
//! taken in, and in the client's until its answer is. Each end counts the places that it gave away in its own queue,
//! and their sum never exceeds the queue's length. With [`crate::EndpointConfig::credit_sharing`], each direction of a session keeps a
//! single credit for good; the others are on loan ([`super::loan`]).

use super::Core;

/// Loans leave this share of the queue to packets that take no credits: RELEASE, PING, handshakes, and what is sent again.
const HEADROOM: usize = 8;

/// What one session holds of this endpoint's receive queue, and what was agreed on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places {
    /// For requests of the other end: the credits that it may use, as far as this end can know.
    pub inbound: u16,
    /// At most.
    pub inbound_agreed: u16,
    /// For answers to calls from here: the credits of the session, and those that are being borrowed or given back.
    pub outbound: u16,
    /// At most.
    pub outbound_agreed: u16,
}

/// The receive queue, as far as credits have given it away.
#[derive(Debug)]
pub(crate) struct Queue {
    pub len: usize,
    /// Places held by all sessions.
    pub reserved: usize,
    /// Those of them that sessions keep for good.
    pub guaranteed: usize,
    /// Directions of sessions that hold more than that.
    pub holders: usize,
    /// Somebody found too few places since the last search for more.
    pub is_short: bool,
}

/// Whether a new session finds places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// With all its credits.
    Full,
    /// With one credit in each direction that has any.
    Least,
    /// Once others have given back what they borrowed.
    Later,
    Refused,
}

impl Places {
    /// All that two directions may have, by the credits they may use at the start.
    pub fn new(inbound: u16, outbound: u16) -> Places {
        Places { inbound, inbound_agreed: inbound, outbound, outbound_agreed: outbound }
    }

    /// The same agreement with one credit in each direction that has any.
    pub fn least(self) -> Places {
        Places { inbound: self.inbound_agreed.min(1), outbound: self.outbound_agreed.min(1), ..self }
    }

    pub fn sum(self) -> usize {
        self.inbound as usize + self.outbound as usize
    }

    fn guaranteed(self) -> usize {
        self.least().sum()
    }

    fn holders(self) -> usize {
        usize::from(self.inbound > 1) + usize::from(self.outbound > 1)
    }
}

impl Queue {
    pub fn new(len: usize) -> Queue {
        Queue { len, reserved: 0, guaranteed: 0, holders: 0, is_short: false }
    }

    fn add(&mut self, places: Places) {
        self.reserved += places.sum();
        self.guaranteed += places.guaranteed();
        self.holders += places.holders();
        debug_assert!(self.reserved <= self.len, "{self:?} is oversubscribed");
    }

    fn subtract(&mut self, places: Places) {
        self.reserved -= places.sum();
        self.guaranteed -= places.guaranteed();
        self.holders -= places.holders();
    }

    /// Places that may still be lent.
    pub fn lendable(&self) -> usize {
        (self.len - self.len / HEADROOM).saturating_sub(self.reserved)
    }

    /// What each direction that wants loans may have, when they do not suffice for all.
    pub fn share(&self) -> u16 {
        let pool = (self.len - self.len / HEADROOM).saturating_sub(self.guaranteed + 2);
        (pool / self.holders.max(1)).min(u16::MAX as usize) as u16
    }
}

impl Core {
    pub fn shares_credits(&self) -> bool {
        self.config.credit_sharing.is_on()
    }

    /// Whether a session that agrees on this much finds places. If only others' loans are in its way, those are asked back.
    pub fn admission(&mut self, wanted: Places) -> Admission {
        let (queue, least) = (&mut self.queue, wanted.least().sum());
        if queue.reserved + wanted.sum() <= queue.len {
            Admission::Full
        } else if !self.config.credit_sharing.is_on() || queue.guaranteed + least > queue.len {
            Admission::Refused
        } else if queue.reserved + least <= queue.len {
            Admission::Least
        } else {
            self.want_places();
            Admission::Later
        }
    }

    /// Gives a new session its places.
    pub fn take_places(&mut self, session: u32, places: Places) {
        self.queue.add(places);
        self.cold[session as usize].places = places;
    }

    /// Takes the places of a session that has ended.
    pub fn give_up_places(&mut self, session: u32) {
        let places = std::mem::take(&mut self.cold[session as usize].places);
        self.queue.subtract(places);
    }

    /// Changes what a session holds, within what was agreed on.
    pub fn change_places(&mut self, session: u32, change: impl FnOnce(&mut Places)) {
        let places = &mut self.cold[session as usize].places;
        self.queue.subtract(*places);
        let before = places.sum();
        change(places);
        debug_assert!(places.inbound <= places.inbound_agreed && places.outbound <= places.outbound_agreed, "{places:?}");
        let places = *places;
        self.queue.add(places);
        if let Some(share) = self.peers.share_mut(self.sessions[session as usize].peer) {
            share.places = share.places + places.sum() - before;
        }
    }

    /// Notes that somebody found too few places: at the next tick, others are asked for what they do not use.
    pub fn want_places(&mut self) {
        self.queue.is_short = true;
        self.arm_tick();
    }
}
