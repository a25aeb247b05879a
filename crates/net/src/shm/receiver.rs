//! The receiving side of the queue.
//!
//! In the common case the next cell is published, and a burst is a walk over published cells: one cache line read per
//! packet, nothing written but the head, once. A place that was taken and stays unpublished is the rare case: it is set
//! aside, so that packets behind it are received and the ring goes round, see [`super::holes`].

use std::sync::atomic::Ordering;

use crate::shm::bulk;
use crate::shm::burst::{BURST_MAX, Burst, Senders, Sources};
use crate::shm::holes::SetAside;
use crate::shm::region::Region;
use crate::shm::sender::GROUP_MAX;
use crate::transport::Route;
use crate::transport::TransportCounters;

/// Empty polls in a row before the receiver looks at the tail, which shows places that were taken and stay unpublished.
/// Looking takes its cache line from the senders, so the receiver does it rarely: this many polls take longer than most
/// round trips. An endpoint that sleeps looks earlier.
const EMPTY_POLLS_BEFORE_TAIL: u32 = 16 * EMPTY_POLLS_PER_PEEK;
/// Empty polls in a row between two peeks at the cells behind the head. A peek finds packets behind a hole that one
/// sender left, and does not take the tail's cache line from the senders. An endpoint that is busy with other
/// transports polls once per turn of its event loop, so packets behind a hole must not wait for many polls.
const EMPTY_POLLS_PER_PEEK: u32 = 32;
/// Cells behind the head that a peek looks at: as many as one reservation takes, so that it sees the packet behind
/// them.
const CELLS_PER_PEEK: u64 = GROUP_MAX as u64;
/// Looks at a tail that shows a hole, until the hole is passed although nothing is published behind it. Many interrupts
/// find a sender between taking a place and publishing it, because taking the place waits for memory. No packet waits
/// behind an empty hole, so a short one is not passed. A hole with a packet behind it is passed at once, and a packet
/// that the interrupted sender publishes afterwards comes late.
const LOOKS_AT_HOLE: u32 = 4;
/// The same for looks before sleeping; there is a poll between two of them.
const LOOKS_BEFORE_SLEEP: u32 = 2;
/// Polls while packets that were set aside are awaited, before the receiver checks again whether their senders live.
/// The check reads the slots of all senders, which takes some microseconds.
const POLLS_PER_INTENTS: u32 = 65_536;

/// The receiver of one region.
pub(crate) struct Receiver {
    region: Region,
    /// The first ticket not consumed.
    head: u64,
    burst: Burst,
    sources: Sources,
    /// Places that the head has passed although they were not published.
    aside: SetAside,
    empty_polls: u32,
    /// Polls until the receiver looks up the senders of the places set aside.
    polls_until_intents: u32,
    /// The hole at the head that looks at the tail have seen, since a packet was received or a hole was passed.
    hole: Option<Hole>,
}

/// A hole at the head that the tail shows.
#[derive(Debug, Clone, Copy)]
struct Hole {
    /// The tail when it was first seen.
    end: u64,
    /// Looks at the tail that found it.
    looks: u32,
}

/// What a receiver that found nothing can expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Something is in the queue: poll again.
    Arrivals,
    /// Only packets that living senders have yet to publish in places set aside.
    Holes,
    /// Nothing.
    Empty,
}

impl Receiver {
    /// The receiver of a region that was just initialised.
    pub(crate) fn new(region: Region) -> Self {
        let sizes = region.layout().sizes;
        Receiver {
            head: region.head().load(Ordering::Relaxed),
            burst: Burst::new(),
            sources: Sources::new(sizes.senders_max),
            aside: SetAside::new(sizes.queue_len),
            empty_polls: 0,
            polls_until_intents: 0,
            hole: None,
            region,
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn burst(&self) -> &Burst {
        &self.burst
    }

    /// How many places were set aside, and how many packets came there late.
    pub(crate) fn set_aside(&self) -> (u64, u64) {
        self.aside.counts()
    }

    /// Forgets a route that was released: packets of the burst that is lent out have none from now on.
    pub(crate) fn forget(&mut self, route: Route) {
        self.burst.forget(route);
        self.sources.forget();
    }

    /// Forgets which slots belong to which routes, so that the next packets are looked up again.
    pub(crate) fn forget_sources(&mut self) {
        self.sources.forget();
    }

    /// Releases the last burst and takes the next.
    #[inline]
    pub(crate) fn rx_burst(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.burst.release(&self.region);
        if !self.aside.is_empty() {
            return match self.rx_beside_holes(senders, counters) {
                Some(count) => count,
                None => self.nothing_came(senders, counters),
            };
        }
        let cells = self.region.cells();
        let (mut head, mut bytes) = (self.head, 0);
        for _ in 0..BURST_MAX {
            let cell = cells.of(head);
            let Some(published) = cell.published(head) else { break };
            match self.burst.take(&self.region, &mut self.sources, senders, cell, published) {
                Some(len) => bytes += len,
                None => counters.rx_dropped_malformed += 1,
            }
            head = head.wrapping_add(1);
        }
        if head != self.head {
            self.head = head;
            counters.rx_bytes += bytes as u64;
            return self.end_burst(counters);
        }
        self.nothing_came(senders, counters)
    }

    #[inline]
    fn nothing_came(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_PEEK) { self.look_further(senders, counters) } else { 0 }
    }

    /// Looks at the tail if it is time to, or if something is published behind the head.
    #[cold]
    #[inline(never)]
    fn look_further(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        let is_due =
            self.empty_polls >= EMPTY_POLLS_BEFORE_TAIL || self.first_behind_hole(CELLS_PER_PEEK + 1).is_some();
        if is_due { self.look_at_tail(senders, counters) } else { 0 }
    }

    /// Prefetches the cells that are received next.
    #[inline]
    pub(crate) fn prefetch_next(&self, count: usize) {
        let cells = self.region.cells();
        (0..count as u64).for_each(|i| cells.of(self.head.wrapping_add(i)).prefetch());
    }

    /// Takes the packet of `ticket` into the burst, or drops it if it is malformed; false if it is not published.
    fn take_if_published(&mut self, ticket: u64, senders: &impl Senders, counters: &mut TransportCounters) -> bool {
        let cell = self.region.cell(ticket);
        let Some(published) = cell.published(ticket) else { return false };
        match self.burst.take(&self.region, &mut self.sources, senders, cell, published) {
            Some(len) => counters.rx_bytes += len as u64,
            None => counters.rx_dropped_malformed += 1,
        }
        true
    }

    /// Publishes the head, whose places may now be used again, and counts the burst.
    #[inline]
    fn end_burst(&mut self, counters: &mut TransportCounters) -> usize {
        self.empty_polls = 0;
        self.hole = None;
        self.region.head().store(self.head, Ordering::Release);
        let count = self.burst.len();
        counters.rx_packets += count as u64;
        counters.rx_batches += u64::from(count > 0);
        count
    }

    /// The number of tickets that senders have taken and the head has not passed; `None` if the tail is not plausible.
    fn taken(&self) -> Option<u64> {
        let taken = self.region.tail().load(Ordering::SeqCst).wrapping_sub(self.head);
        (taken <= self.region.layout().sizes.queue_len as u64).then_some(taken)
    }

    /// Receives what is behind a place that stays unpublished, if the tail shows one.
    fn look_at_tail(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.empty_polls = 0;
        let Some(taken @ 1..) = self.taken() else {
            self.hole = None;
            self.sweep_bulk(senders);
            return 0;
        };
        let passable_to = self.first_behind_hole(taken).or_else(|| self.see_hole(taken, LOOKS_AT_HOLE));
        let Some(end) = passable_to else { return 0 };
        self.pass_hole(end);
        self.rx_beside_holes(senders, counters).unwrap_or(0)
    }

    /// The first of `taken` tickets from the head on that is published although the head's is not: another sender's
    /// packet, which must not wait.
    fn first_behind_hole(&self, taken: u64) -> Option<u64> {
        let mut tickets = (1..taken).map(|i| self.head.wrapping_add(i));
        tickets.find(|&ticket| !self.aside.is_shut(ticket) && self.region.cell(ticket).published(ticket).is_some())
    }

    /// Notes the hole of `taken` tickets from the head on, of which none is published. Returns where it ended when it
    /// was first seen, if at least `looks` looks have seen it.
    fn see_hole(&mut self, taken: u64, looks: u32) -> Option<u64> {
        let hole = self.hole.get_or_insert(Hole { end: self.head.wrapping_add(taken), looks: 0 });
        hole.looks += 1;
        (hole.looks >= looks).then_some(hole.end)
    }

    /// Sets aside the unpublished places from the head on, up to the first ticket that is published, or to `end`; all
    /// of them were taken.
    fn pass_hole(&mut self, end: u64) {
        while self.head != end {
            if self.aside.is_shut(self.head) {
                self.aside.pass(&self.region, self.head);
            } else if self.region.cell(self.head).published(self.head).is_none() {
                self.aside.add(&self.region, self.head);
                self.polls_until_intents = 0;
            } else {
                break;
            }
            self.head = self.head.wrapping_add(1);
        }
        self.hole = None;
        self.region.head().store(self.head, Ordering::Release);
    }

    /// The ticket behind those published from the head on, past void ones; the head if there are none.
    fn published_end(&self) -> u64 {
        let places = (0..self.region.layout().sizes.queue_len as u64).map(|i| self.head.wrapping_add(i));
        let used = places.filter(|&ticket| !self.aside.is_shut(ticket));
        let published = used.take_while(|&ticket| self.region.cell(ticket).published(ticket).is_some());
        published.take(BURST_MAX).last().map_or(self.head, |ticket| ticket.wrapping_add(1))
    }

    /// Receives while cells are shut; `None` if there is nothing.
    #[cold]
    #[inline(never)]
    fn rx_beside_holes(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> Option<usize> {
        // First note what is published from the head on, then take the late packets, then those noted: so everything
        // that a sender published before one of the noted packets is seen and taken before it.
        let end = self.published_end();
        let first = (self.head, self.aside.open());
        self.take_late(senders, counters);
        while self.head != end && self.burst.len() < BURST_MAX {
            if self.aside.is_shut(self.head) {
                self.aside.pass(&self.region, self.head);
            } else {
                self.take_if_published(self.head, senders, counters);
            }
            self.head = self.head.wrapping_add(1);
        }
        let came = (self.head, self.aside.open()) != first;
        if self.polls_until_intents == 0 {
            counters.rx_reclaimed += self.aside.look_up_senders(&self.region, senders);
            self.polls_until_intents = POLLS_PER_INTENTS;
        }
        self.polls_until_intents -= 1;
        came.then(|| self.end_burst(counters))
    }

    /// Takes packets of places that were set aside and are published now, while the burst has room.
    fn take_late(&mut self, senders: &impl Senders, counters: &mut TransportCounters) {
        let Receiver { region, burst, sources, aside, .. } = self;
        aside.take_late(region, |ticket| {
            let cell = region.cell(ticket);
            let Some(published) = cell.published(ticket) else { return false };
            if burst.len() == BURST_MAX {
                return false;
            }
            match burst.take(region, sources, senders, cell, published) {
                Some(len) => counters.rx_bytes += len as u64,
                None => counters.rx_dropped_malformed += 1,
            }
            true
        });
    }

    /// Frees bulk buffers of dead senders, if a live sender lacks one and no packet is queued.
    #[cold]
    #[inline(never)]
    fn sweep_bulk(&mut self, senders: &impl Senders) {
        if self.region.bulk_pressure().swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let region = &self.region;
        let mut known: Vec<Option<bool>> = vec![None; region.layout().sizes.senders_max as usize];
        let is_dead = |slot: u16, generation: u16| match known.get_mut(slot as usize) {
            None => true,
            Some(alive) => {
                let is_alive = *alive.get_or_insert_with(|| senders.is_alive(slot));
                !is_alive || region.slot_generation(slot) as u16 != generation
            }
        };
        bulk::sweep(region, is_dead, || self.taken() == Some(0) && !self.aside.has_late(region));
    }

    /// A last look before sleeping.
    pub(crate) fn outlook(&mut self, senders: &impl Senders) -> Outlook {
        self.polls_until_intents = 0;
        if self.published_end() != self.head || self.aside.has_late(&self.region) {
            return Outlook::Arrivals;
        }
        match self.taken() {
            Some(taken @ 1..) => {
                if let Some(end) = self.see_hole(taken, LOOKS_BEFORE_SLEEP) {
                    self.pass_hole(end);
                }
                return Outlook::Arrivals;
            }
            Some(0) => self.sweep_bulk(senders),
            None => {}
        }
        if self.aside.open() == 0 { Outlook::Empty } else { Outlook::Holes }
    }
}
