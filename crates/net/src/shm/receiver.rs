//! The receiving side of the queue.
//!
//! In the common case the next cell is published, and a burst is a walk over published cells: one cache line read per
//! packet, nothing written but the head, once. A place that was taken and stays unpublished is the rare case: it is set aside, so that
//! packets behind it come and the ring goes round, see [`super::holes`].

use std::sync::atomic::Ordering;

use crate::shm::bulk;
use crate::shm::burst::{BURST_MAX, Burst, Senders, Sources};
use crate::shm::holes::SetAside;
use crate::shm::region::Region;
use crate::transport::TransportCounters;

/// Empty polls in a row before the tail is looked at, which tells of places that were taken and stay unpublished. Looking takes its cache line from
/// the senders, so not too often: this many polls take longer than most round trips. An endpoint that sleeps looks before.
const EMPTY_POLLS_BEFORE_TAIL: u32 = 512;
/// Looks at a tail that tells of a hole, until the hole is passed although nothing is published behind it. An interrupt that finds a sender between
/// taking a place and publishing it, as many do, since what takes the place waits for the memory, is over before.
const LOOKS_AT_HOLE: u32 = 4;
/// Polls while packets are awaited that were set aside, before it is asked again whether their senders live. Asking reads the slots of all
/// senders, some microseconds.
const POLLS_PER_INTENTS: u32 = 65_536;

/// The receiver of one region.
pub(crate) struct Receiver {
    region: Region,
    /// The first ticket not consumed.
    head: u64,
    burst: Burst,
    sources: Sources,
    /// Places that the head has passed although their packets had not come.
    aside: SetAside,
    empty_polls: u32,
    /// Looks at the tail since anything came, or a hole was passed, that told of a hole.
    looks_at_hole: u32,
    /// Polls until the senders of the places set aside are looked up.
    polls_until_intents: u32,
    /// The tail when it was last looked at, if the head was a hole then and still is.
    stuck_at: Option<u64>,
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
            looks_at_hole: 0,
            polls_until_intents: 0,
            stuck_at: None,
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

    /// Forgets which slots belong to which routes, so that the next packets look again.
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
        if self.empty_polls >= EMPTY_POLLS_BEFORE_TAIL { self.look_at_tail(senders, counters) } else { 0 }
    }

    /// Asks for the cells that are received next.
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
        (self.empty_polls, self.looks_at_hole) = (0, 0);
        self.stuck_at = None;
        self.region.head().store(self.head, Ordering::Release);
        let count = self.burst.len();
        counters.rx_packets += count as u64;
        counters.rx_batches += u64::from(count > 0);
        count
    }

    /// The tickets taken by senders and not passed by the head; `None` if the tail cannot be believed.
    fn taken(&self) -> Option<u64> {
        let taken = self.region.tail().load(Ordering::SeqCst).wrapping_sub(self.head);
        (taken <= self.region.layout().sizes.queue_len as u64).then_some(taken)
    }

    /// Receives what is behind a place that stays unpublished, if the tail tells of one.
    #[cold]
    #[inline(never)]
    fn look_at_tail(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.empty_polls = 0;
        let Some(taken @ 1..) = self.taken() else {
            self.looks_at_hole = 0;
            self.sweep_bulk(senders);
            return 0;
        };
        self.looks_at_hole += 1;
        let is_past_a_hole = match self.first_behind_hole(taken) {
            Some(ticket) => {
                self.pass_hole(ticket);
                true
            }
            None if self.looks_at_hole == 1 || self.looks_at_hole >= LOOKS_AT_HOLE => self.pass_what_is_stuck(taken),
            None => false,
        };
        if is_past_a_hole { self.rx_beside_holes(senders, counters).unwrap_or(0) } else { 0 }
    }

    /// The first of `taken` tickets from the head on that is published although the head's is not: the packet of another sender, which shall not wait.
    fn first_behind_hole(&self, taken: u64) -> Option<u64> {
        let mut tickets = (1..taken).map(|i| self.head.wrapping_add(i));
        tickets.find(|&ticket| !self.aside.is_shut(ticket) && self.region.cell(ticket).published(ticket).is_some())
    }

    /// With `taken` tickets beyond the head and the first not published: passes the hole if it was there at the last look, too, and
    /// says whether.
    fn pass_what_is_stuck(&mut self, taken: u64) -> bool {
        match self.stuck_at.take() {
            Some(end) => self.pass_hole(end),
            None => self.stuck_at = Some(self.head.wrapping_add(taken)),
        }
        self.stuck_at.is_none()
    }

    /// Sets aside what is not published from the head on, up to the first ticket that is, or to `end`; all of them were taken.
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
        (self.stuck_at, self.looks_at_hole) = (None, 0);
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
        // First what is published from the head on is noted, then the late are taken, then what was noted: whatever one sender
        // published before any of the noted is seen and taken before it.
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

    /// Takes packets that were set aside and have come, while the burst has room.
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

    /// Frees bulk buffers of dead senders, if a living one misses them and no packet is queued.
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
                self.pass_what_is_stuck(taken);
                return Outlook::Arrivals;
            }
            Some(0) => self.sweep_bulk(senders),
            None => {}
        }
        if self.aside.open() == 0 { Outlook::Empty } else { Outlook::Holes }
    }
}
