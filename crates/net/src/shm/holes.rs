//! Places of the queue that were taken but not published.
//!
//! A sender that was descheduled or stopped between the two steps will publish; one that was killed never will. The
//! receiver waits for neither. It *sets the place aside*: its head passes the ticket, packets behind it are delivered,
//! and the cell is *shut*, so that no sender uses it on later laps. If the sender publishes after all, however late,
//! its packet is delivered then. If the sender is dead, the receiver gives the ticket up. It can tell, because every
//! sender writes down what it will take before it takes it ([`Intent`]) and holds a lock for life.
//!
//! # Why senders and receiver agree on what is shut
//!
//! Tickets of a shut cell are *void*: senders take them and write nothing, the receiver passes them. Both must agree on
//! which tickets are void.
//!
//! - A cell is shut before the head that has passed its ticket `a` is published. A sender takes ticket `a + queue_len`
//!   only after it saw such a head, and looks at the bits after that. So every sender knows that the cell is shut.
//! - Once `a` is done with, the cell stays shut until the head passes the next void ticket `v` of it. The receiver
//!   passes `v` when it finds something that was taken later. So the sender that took `v` had looked at the bits
//!   before, and found the cell shut.
//! - The cell is open again before the head that has passed `v` is published, and a sender takes `v + queue_len` only
//!   after it saw that head.

use std::sync::atomic::Ordering;

use crate::shm::burst::Senders;
use crate::shm::intent::Intent;
use crate::shm::region::Region;

/// Places set aside, or runs of them, whose senders one call looks up: the receiver has other things to do. The next
/// call continues there.
const LOOKUPS_MAX: usize = 256;

/// The intents of all senders at one moment, to find out which sender left each hole.
struct Intents(Vec<Wanted>);

/// The intent in one slot.
struct Wanted {
    slot: u16,
    intent: Intent,
    /// Whether its holder lives, once that was looked up.
    is_alive: Option<bool>,
}

impl Intents {
    /// Reads the intents. They cover tickets taken before this call.
    fn read(region: &Region) -> Self {
        let slots = 0..region.layout().sizes.senders_max as u16;
        let intents = slots.map(|slot| (slot, region.intent(slot).load(Ordering::Acquire)));
        let wanted = |(slot, word)| Wanted { slot, intent: Intent::unpack(word), is_alive: None };
        Intents(intents.filter(|&(_, word)| word != Intent::NONE).map(wanted).collect())
    }

    /// Whether no live sender will publish `ticket`. If so, the caller must check again whether it is published: its
    /// sender may have published it before the intents were read.
    fn is_abandoned(&mut self, ticket: u64, senders: &impl Senders) -> bool {
        let mut is_wanted = false;
        for wanted in self.0.iter_mut().filter(|wanted| wanted.intent.covers(ticket)) {
            let is_alive = *wanted.is_alive.get_or_insert_with(|| senders.is_alive(wanted.slot));
            if wanted.intent.is_held() {
                // Any other sender that wanted the ticket did not get it.
                return !is_alive;
            }
            is_wanted |= is_alive;
        }
        !is_wanted
    }

    /// The slot of the sender that certainly took `ticket` and has not yet published everything.
    fn holder(&self, ticket: u64) -> Option<u16> {
        self.0.iter().find(|wanted| wanted.intent.is_held() && wanted.intent.covers(ticket)).map(|wanted| wanted.slot)
    }
}

/// Clears the bit of a ticket's cell.
fn clear(bits: &mut [u64], ticket: u64) {
    bits[(ticket / 64) as usize & (bits.len() - 1)] &= !(1 << (ticket % 64));
}

/// Consecutive tickets that one sender publishes one after the other.
#[derive(Debug)]
struct Late {
    first: u64,
    count: u32,
    /// Whether the first was published when this was last looked at.
    is_published: bool,
}

impl Late {
    /// The ticket after the last.
    fn end(&self) -> u64 {
        self.first.wrapping_add(self.count as u64)
    }
}

/// The places that are set aside, and the cells that are shut. The region has a copy of the shut bits for senders; the
/// receiver never reads it back.
#[derive(Debug)]
pub(crate) struct SetAside {
    /// Tickets behind the head whose packets may still come, oldest first: at most one of each cell.
    open: Vec<Late>,
    /// A bit for each cell of a ticket in `open`.
    waiting: Box<[u64]>,
    /// A bit for each cell that is shut: the cells of tickets in `open`, and those of tickets that were in `open`,
    /// until the next lap.
    shut: Box<[u64]>,
    shut_count: u32,
    /// Where in `open` the last look-up of senders stopped; the next begins there.
    looked_up: usize,
    /// Tickets set aside, and how many of their packets came, since the queue was created.
    added: u64,
    came: u64,
}

impl SetAside {
    /// Creates the set for a queue of `queue_len`, a power of two of at least 64.
    pub(crate) fn new(queue_len: u32) -> Self {
        let bits = || vec![0; queue_len as usize / 64].into_boxed_slice();
        SetAside { open: Vec::new(), waiting: bits(), shut: bits(), shut_count: 0, looked_up: 0, added: 0, came: 0 }
    }

    /// Whether no cell is shut.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shut_count == 0
    }

    /// How many tickets were set aside since the queue was created, and how many of their packets came.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.added, self.came)
    }

    /// How many packets may still come.
    pub(crate) fn open(&self) -> u64 {
        self.open.iter().map(|late| late.count as u64).sum()
    }

    /// Whether one of those packets has been published.
    pub(crate) fn has_late(&self, region: &Region) -> bool {
        self.open.iter().any(|late| region.cell(late.first).published(late.first).is_some())
    }

    fn place(&self, ticket: u64) -> (usize, u64) {
        ((ticket / 64) as usize & (self.shut.len() - 1), 1 << (ticket % 64))
    }

    pub(crate) fn is_shut(&self, ticket: u64) -> bool {
        let (word, bit) = self.place(ticket);
        self.shut[word] & bit != 0
    }

    /// Sets aside a ticket whose cell is not shut. Then the head may pass it.
    pub(crate) fn add(&mut self, region: &Region, ticket: u64) {
        debug_assert!(!self.is_shut(ticket), "a cell has one ticket set aside at most");
        let (word, bit) = self.place(ticket);
        self.open.push(Late { first: ticket, count: 1, is_published: false });
        self.waiting[word] |= bit;
        self.shut[word] |= bit;
        self.shut_count += 1;
        self.added += 1;
        self.tell(region, ticket);
    }

    /// Removes the packets that have been published and that `take` accepts; those of each sender in order.
    pub(crate) fn take_late(&mut self, region: &Region, mut take: impl FnMut(u64) -> bool) {
        let is_published = |ticket: u64| region.cell(ticket).published(ticket).is_some();
        // The newest first: if a ticket is seen as published here, everything that its sender published before it is
        // seen, too.
        for late in self.open.iter_mut().rev() {
            late.is_published = is_published(late.first);
        }
        let (waiting, came) = (&mut self.waiting, &mut self.came);
        self.open.retain_mut(|late| {
            while late.is_published && take(late.first) {
                clear(waiting, late.first);
                *came += 1;
                (late.first, late.count) = (late.first.wrapping_add(1), late.count - 1);
                late.is_published = late.count > 0 && is_published(late.first);
            }
            late.count > 0
        });
    }

    /// Gives up packets that no live sender will publish, and merges adjacent tickets that the same sender will
    /// publish. Returns how many packets were lost.
    pub(crate) fn look_up_senders(&mut self, region: &Region, senders: &impl Senders) -> u64 {
        if self.open.is_empty() {
            return 0;
        }
        let mut intents = Intents::read(region);
        let begin =
            if self.open.len() <= LOOKUPS_MAX || self.looked_up >= self.open.len() { 0 } else { self.looked_up };
        let (waiting, mut lost) = (&mut self.waiting, 0);
        let (mut at, mut end) = (0, begin + LOOKUPS_MAX);
        let turn = begin..end;
        self.open.retain(|late| {
            let is_due = turn.contains(&at);
            at += 1;
            // It may have been published after all, before the intents were read.
            let is_lost = is_due
                && intents.is_abandoned(late.first, senders)
                && region.cell(late.first).published(late.first).is_none();
            if is_lost {
                (0..late.count as u64).for_each(|i| clear(waiting, late.first.wrapping_add(i)));
                lost += late.count as u64;
                end -= 1;
            }
            !is_lost
        });
        let (mut at, turn) = (0, begin..end);
        self.open.dedup_by(|late, before| {
            at += 1;
            let is_next = turn.contains(&at) && before.end() == late.first;
            let is_of_one =
                is_next && intents.holder(late.first).is_some_and(|slot| intents.holder(before.first) == Some(slot));
            if is_of_one {
                before.count += late.count;
                end -= 1;
            }
            is_of_one
        });
        self.looked_up = end;
        lost
    }

    /// Notes that the head is about to pass a void ticket: its cell is open from the next lap on, unless a packet may
    /// still come.
    pub(crate) fn pass(&mut self, region: &Region, ticket: u64) {
        let (word, bit) = self.place(ticket);
        if self.waiting[word] & bit == 0 {
            // Many laps may have gone by since this cell was last written: its word must not look like that of a later
            // ticket.
            let queue_len = region.layout().sizes.queue_len;
            region.cell(ticket).init(ticket.wrapping_add(queue_len as u64), queue_len);
            self.shut[word] &= !bit;
            self.shut_count -= 1;
            self.tell(region, ticket);
        }
    }

    /// Publishes the bits to senders. The head that is published next orders this.
    fn tell(&self, region: &Region, ticket: u64) {
        region.shut_word(ticket).store(self.shut[self.place(ticket).0], Ordering::Relaxed);
        region.shut_count().store(self.shut_count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::cell::{NO_BULK, Origin, Published, seq_of};
    use crate::shm::layout::Sizes;
    use crate::shm::region::testing::{self, SIZES};

    struct Nobody;

    impl Senders for Nobody {
        fn is_alive(&self, _: u16) -> bool {
            false
        }

        fn route_to(&self, _: u64) -> Option<crate::transport::Route> {
            None
        }
    }

    /// Publishes an empty packet.
    fn publish(region: &Region, ticket: u64) {
        region
            .cell(ticket)
            .publish(Published { seq: seq_of(ticket), len: 0, slot: 0 }, Origin { generation: 0, bulk: NO_BULK });
    }

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
            [1, 3].into_iter().for_each(|i| publish(&region, at(i)));
            let mut taken = Vec::new();
            aside.take_late(&region, |ticket| {
                taken.push(ticket);
                true
            });
            assert_eq!((taken, aside.open()), (vec![at(1), at(3)], 1));
            assert!(aside.is_shut(at(1)), "senders may believe so");
            (1..4).for_each(|i| aside.pass(&region, at(256 + i)));
            assert!(!aside.is_shut(at(1)) && aside.is_shut(at(2)) && !aside.is_shut(at(3)));
            assert_eq!(region.cell(at(1)).published(at(1)), None, "an old number may come round again");
            assert_eq!(region.shut_count().load(Ordering::Relaxed), 1);
            assert_eq!(region.shut_word(at(2)).load(Ordering::Relaxed), 1 << (at(2) % 64));
            assert_eq!(aside.look_up_senders(&region, &Nobody), 1);
            aside.pass(&region, at(384 + 2));
            assert_eq!((aside.is_empty(), aside.open()), (true, 0));
            assert_eq!(region.shut_word(at(2)).load(Ordering::Relaxed), 0);
        }
    }

    /// However many places a stopped sender holds, a poll looks at only one.
    #[test]
    fn tickets_of_one_sender_are_awaited_together() {
        struct Everybody;
        impl Senders for Everybody {
            fn is_alive(&self, _: u16) -> bool {
                true
            }

            fn route_to(&self, _: u64) -> Option<crate::transport::Route> {
                None
            }
        }
        for start in [0u64, u64::MAX - 20] {
            let region = testing::region(Sizes { queue_len: 128, ..SIZES }, start);
            let mut aside = SetAside::new(128);
            let at = |i: u64| start.wrapping_add(i);
            region.intent(1).store(Intent::held(at(0), 30), Ordering::Relaxed);
            region.intent(3).store(Intent::held(at(30), 30), Ordering::Relaxed);
            region.intent(0).store(Intent::wanted(at(0), 64), Ordering::Relaxed);
            (0..64).for_each(|i| aside.add(&region, at(i)));
            assert_eq!(aside.look_up_senders(&region, &Everybody), 0);
            // One for each of the two, and one for each ticket whose taker is unknown.
            assert_eq!((aside.open.len(), aside.open()), (2 + 4, 64));
            (10..50).for_each(|i| publish(&region, at(i)));
            let mut taken = Vec::new();
            aside.take_late(&region, |ticket| {
                taken.push(ticket);
                taken.len() < 100
            });
            assert_eq!(taken, (30..50).map(at).collect::<Vec<_>>());
            (0..10).for_each(|i| publish(&region, at(i)));
            aside.take_late(&region, |ticket| {
                taken.push(ticket);
                taken.len() <= 25
            });
            assert_eq!(taken[20..], (0..6).map(at).collect::<Vec<_>>(), "the sixth was refused");
            assert_eq!(aside.open(), 64 - 25);
            region.intent(3).store(Intent::NONE, Ordering::Relaxed);
            assert_eq!(aside.look_up_senders(&region, &Nobody), 64 - 50, "what is published is not lost");
            assert!(aside.has_late(&region));
        }
    }

    /// However many places stopped senders hold, those of a dead sender behind them are found.
    #[test]
    fn the_dead_do_not_hide_behind_the_stopped() {
        struct AllBut(u16);
        impl Senders for AllBut {
            fn is_alive(&self, slot: u16) -> bool {
                slot != self.0
            }

            fn route_to(&self, _: u64) -> Option<crate::transport::Route> {
                None
            }
        }
        const LEN: u64 = 1 << 15;
        const SLOTS: u16 = (LEN / 64) as u16;
        for start in [0u64, u64::MAX - 20] {
            let region = testing::region(Sizes { queue_len: LEN as u32, senders_max: SLOTS.into(), ..SIZES }, start);
            let mut aside = SetAside::new(LEN as u32);
            // All stopped before they could mark their intents held, so that none of their tickets are merged.
            for slot in 0..SLOTS {
                let first = start.wrapping_add(u64::from(slot) * 64);
                region.intent(slot).store(Intent::wanted(first, 64), Ordering::Relaxed);
            }
            (0..LEN).for_each(|i| aside.add(&region, start.wrapping_add(i)));
            let rounds = LEN.div_ceil(LOOKUPS_MAX as u64);
            for dead in [SLOTS - 1, 100, 0] {
                let lost: u64 = (0..rounds + 1).map(|_| aside.look_up_senders(&region, &AllBut(dead))).sum();
                assert_eq!(lost, 64, "of slot {dead}");
            }
            assert_eq!(aside.open(), LEN - 3 * 64);
        }
    }
}
