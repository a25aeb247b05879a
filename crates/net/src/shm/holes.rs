//! Places of the queue that were taken and not published.
//!
//! A sender that was descheduled or stopped between the two will publish; one that was killed never will. The receiver waits for
//! neither. It *sets the place aside*: its head passes the ticket, packets behind it are delivered, and the cell is *shut*, so that no
//! sender uses it on later laps. The sender may still publish, however late: its packet is delivered then. If it is dead, the receiver
//! gives the ticket up; it can tell, because every sender writes down what it takes before it takes it ([`Intent`]) and holds a lock
//! for life.
//!
//! # Why senders and receiver agree on what is shut
//!
//! Tickets of a shut cell are *void*: senders take them and write nothing, the receiver passes them. Both must say so of the same
//! tickets.
//!
//! - A cell is shut before the head that has passed its ticket `a` is published. A sender takes ticket `a + queue_len` only after it saw
//!   such a head, and looks at the bits after that. So every sender knows.
//! - Once `a` is done with, the cell stays shut until the head passes the next void ticket `v` of it. The receiver passes `v` when it
//!   finds something that was taken later. So whoever took `v` had looked at the bits before, and found the cell shut.
//! - The cell is open again before the head that has passed `v` is published, and a sender takes `v + queue_len` only after it saw that
//!   head.

use std::sync::atomic::Ordering;

use crate::shm::burst::Senders;
use crate::shm::intent::Intent;
use crate::shm::region::Region;

/// The intents of all senders at one moment, to find out whose the holes are.
pub(crate) struct Intents(Vec<Wanted>);

/// The intent in one slot.
struct Wanted {
    slot: u16,
    intent: Intent,
    /// Whether its holder lives, once that was asked.
    is_alive: Option<bool>,
}

impl Intents {
    /// Reads them. They tell of tickets that were taken before.
    pub(crate) fn read(region: &Region) -> Self {
        let slots = 0..region.layout().sizes.senders_max as u16;
        let intents = slots.map(|slot| (slot, region.intent(slot).load(Ordering::Acquire)));
        let wanted = |(slot, word)| Wanted { slot, intent: Intent::unpack(word), is_alive: None };
        Intents(intents.filter(|&(_, word)| word != Intent::NONE).map(wanted).collect())
    }

    /// Whether nobody alive will publish `ticket`. If so, the caller must look again whether it is published: its sender may
    /// have done that before the intents were read.
    pub(crate) fn is_abandoned(&mut self, ticket: u64, senders: &impl Senders) -> bool {
        let mut is_wanted = false;
        for wanted in self.0.iter_mut().filter(|wanted| wanted.intent.covers(ticket)) {
            let is_alive = *wanted.is_alive.get_or_insert_with(|| senders.is_alive(wanted.slot));
            if wanted.intent.is_held() {
                // Whoever else wanted the ticket did not get it.
                return !is_alive;
            }
            is_wanted |= is_alive;
        }
        !is_wanted
    }
}

/// The places that are set aside, and the cells that are shut. The region has a copy of the latter for senders, and is never asked.
#[derive(Debug)]
pub(crate) struct SetAside {
    /// Tickets behind the head whose packets may still come, oldest first: at most one of each cell. And which of them are published.
    open: Vec<(u64, bool)>,
    /// A bit for each cell of a ticket in `open`.
    waiting: Box<[u64]>,
    /// A bit for each cell that is shut: those, and those of tickets that were in `open`, until the next lap.
    shut: Box<[u64]>,
    shut_count: u32,
}

impl SetAside {
    /// For a queue of `queue_len`, a power of two of at least 64.
    pub(crate) fn new(queue_len: u32) -> Self {
        let bits = || vec![0; queue_len as usize / 64].into_boxed_slice();
        SetAside { open: Vec::new(), waiting: bits(), shut: bits(), shut_count: 0 }
    }

    /// Whether no cell is shut.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shut_count == 0
    }

    /// How many packets may still come.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether one of those is there.
    pub(crate) fn has_late(&self, region: &Region) -> bool {
        self.open.iter().any(|&(ticket, _)| region.cell(ticket).published(ticket).is_some())
    }

    fn place(&self, ticket: u64) -> (usize, u64) {
        ((ticket / 64) as usize & (self.shut.len() - 1), 1 << (ticket % 64))
    }

    pub(crate) fn is_shut(&self, ticket: u64) -> bool {
        let (word, bit) = self.place(ticket);
        self.shut[word] & bit != 0
    }

    /// Sets a ticket aside, whose cell is not shut. Then the head may pass it.
    pub(crate) fn add(&mut self, region: &Region, ticket: u64) {
        debug_assert!(!self.is_shut(ticket), "a cell has one ticket set aside at most");
        let (word, bit) = self.place(ticket);
        self.open.push((ticket, false));
        self.waiting[word] |= bit;
        self.shut[word] |= bit;
        self.shut_count += 1;
        self.tell(region, ticket);
    }

    /// Ends the wait for the packets that are there and that `take` takes, oldest first.
    pub(crate) fn take_late(&mut self, region: &Region, mut take: impl FnMut(u64) -> bool) {
        // The newest first: whatever one sender published before a ticket that is seen published here is seen, too.
        for (ticket, is_published) in self.open.iter_mut().rev() {
            *is_published = region.cell(*ticket).published(*ticket).is_some();
        }
        self.resolve(|ticket, is_published| is_published && take(ticket));
    }

    /// Ends the wait for the packets that are not there and of whose tickets `is_lost` says that nobody will publish them.
    pub(crate) fn give_up(&mut self, region: &Region, mut is_lost: impl FnMut(u64) -> bool) {
        self.resolve(|ticket, _| is_lost(ticket) && region.cell(ticket).published(ticket).is_none());
    }

    fn resolve(&mut self, mut is_done: impl FnMut(u64, bool) -> bool) {
        let SetAside { open, waiting, .. } = self;
        let mask = waiting.len() - 1;
        open.retain(|&(ticket, is_published)| {
            let done = is_done(ticket, is_published);
            if done {
                waiting[(ticket / 64) as usize & mask] &= !(1 << (ticket % 64));
            }
            !done
        });
    }

    /// Notes that the head is about to pass a void ticket: its cell is open from the next lap on, unless a packet may still come.
    pub(crate) fn pass(&mut self, region: &Region, ticket: u64) {
        let (word, bit) = self.place(ticket);
        if self.waiting[word] & bit == 0 {
            self.shut[word] &= !bit;
            self.shut_count -= 1;
            self.tell(region, ticket);
        }
    }

    /// Tells senders. The head that is published next orders this.
    fn tell(&self, region: &Region, ticket: u64) {
        region.shut_word(ticket).store(self.shut[self.place(ticket).0], Ordering::Relaxed);
        region.shut_count().store(self.shut_count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::layout::Sizes;
    use crate::shm::region::testing::{self, SIZES};

    #[test]
    fn a_cell_is_shut_until_its_ticket_is_done_with_and_the_ring_has_gone_round() {
        for start in [0u64, 60, u64::MAX - 5] {
            let region = testing::region(Sizes { queue_len: 128, ..SIZES }, start);
            let mut aside = SetAside::new(128);
            let at = |i: u64| start.wrapping_add(i);
            (1..4).for_each(|i| aside.add(&region, at(i)));
            assert_eq!(aside.open(), 3);
            assert!(!aside.is_shut(at(0)) && aside.is_shut(at(1)) && aside.is_shut(at(129)) && !aside.is_shut(at(4)));
            aside.pass(&region, at(128 + 1));
            assert!(aside.is_shut(at(1)), "its packet may still come");
            aside.give_up(&region, |ticket| ticket != at(2));
            assert_eq!(aside.open(), 1);
            assert!(aside.is_shut(at(1)), "senders may believe so");
            (1..4).for_each(|i| aside.pass(&region, at(256 + i)));
            assert!(!aside.is_shut(at(1)) && aside.is_shut(at(2)) && !aside.is_shut(at(3)));
            assert_eq!(region.shut_count().load(Ordering::Relaxed), 1);
            assert_eq!(region.shut_word(at(2)).load(Ordering::Relaxed), 1 << (at(2) % 64));
            aside.give_up(&region, |_| true);
            aside.pass(&region, at(384 + 2));
            assert_eq!((aside.is_empty(), aside.open()), (true, 0));
            assert_eq!(region.shut_word(at(2)).load(Ordering::Relaxed), 0);
        }
    }
}
