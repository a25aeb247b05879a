//! The receiving side of the queue.
//!
//! In the common case the next cell is published, and a burst is a walk over published cells: one cache line read per
//! packet, nothing written but the head, once. A place that was taken and stays unpublished is the rare case: see
//! [`super::holes`].

use std::sync::atomic::Ordering;

use crate::shm::bulk;
use crate::shm::burst::{BURST_MAX, Burst, Senders, Sources};
use crate::shm::holes::{Consumed, Intents};
use crate::shm::region::Region;
use crate::transport::TransportCounters;

/// Empty polls in a row before the tail is looked at. Looking takes its cache line from the senders, so not too often; a
/// hole is rare, and the RPC layer forgives it.
const EMPTY_POLLS_BEFORE_TAIL: u32 = 1024;
/// Passes around a hole before the senders' intents are read again.
const PASSES_PER_INTENTS: u32 = 64;
/// Unpublished places whose senders are looked up in one pass.
const HOLES_PER_PASS_MAX: u32 = 64;

/// The receiver of one region.
pub(crate) struct Receiver {
    region: Region,
    /// The first ticket not consumed.
    head: u64,
    burst: Burst,
    sources: Sources,
    /// Tickets that were consumed while `head` is a hole.
    consumed: Consumed,
    empty_polls: u32,
    /// Passes around holes since the last that read the intents.
    passes: u32,
    /// The tail at the last pass over holes, if that found nothing to deliver.
    stuck_at: Option<u64>,
}

/// What a receiver that found nothing can expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Something is in the queue: poll again.
    Arrivals,
    /// Only places whose living senders have yet to publish them.
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
            consumed: Consumed::new(sizes.queue_len),
            empty_polls: 0,
            passes: 0,
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

    /// Forgets which slots belong to which routes, so that the next packets look again.
    pub(crate) fn forget_sources(&mut self) {
        self.sources.forget();
    }

    /// Releases the last burst and takes the next.
    #[inline]
    pub(crate) fn rx_burst(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.burst.release(&self.region);
        if !self.consumed.is_empty() {
            return self.rx_around_holes(senders, counters);
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
        self.empty_polls += 1;
        if self.empty_polls >= EMPTY_POLLS_BEFORE_TAIL {
            self.passes = 0;
            return self.rx_around_holes(senders, counters);
        }
        0
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
        self.empty_polls = 0;
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

    /// Receives although the head may be a hole: delivers what is published beyond, and gives up places of the dead.
    #[cold]
    fn rx_around_holes(&mut self, senders: &impl Senders, counters: &mut TransportCounters) -> usize {
        self.empty_polls = 0;
        let taken = match self.taken() {
            None | Some(0) => {
                self.sweep_bulk(senders);
                return 0;
            }
            Some(taken) => taken,
        };
        let (first, tail) = (self.head, self.head.wrapping_add(taken));
        let intents = self.passes.is_multiple_of(PASSES_PER_INTENTS).then(|| Intents::read(&self.region));
        self.passes = self.passes.wrapping_add(1);
        let mut lookups_left = HOLES_PER_PASS_MAX;
        let mut progress = false;
        for ticket in (0..taken).map(|i| first.wrapping_add(i)) {
            if self.burst.len() == BURST_MAX {
                break;
            }
            if self.consumed.contains(ticket) {
                continue;
            }
            let mut is_done = self.take_if_published(ticket, senders, counters);
            if let (false, Some(intents), 1..) = (is_done, &intents, lookups_left) {
                lookups_left -= 1;
                is_done = intents.is_abandoned(ticket, senders) && self.region.cell(ticket).published(ticket).is_none();
                counters.rx_reclaimed += u64::from(is_done);
            }
            if is_done {
                self.consumed.insert(ticket);
                progress = true;
            }
        }
        if progress {
            self.head = self.consumed.advance(first);
            return self.end_burst(counters);
        }
        if intents.is_some() {
            self.stuck_at = Some(tail);
        }
        0
    }

    /// Frees bulk buffers of dead senders, if a living one misses them and no packet is queued.
    #[cold]
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
        bulk::sweep(region, is_dead, || self.taken() == Some(0));
    }

    /// A last look before sleeping. The next poll that finds nothing will look past holes.
    pub(crate) fn outlook(&mut self, senders: &impl Senders) -> Outlook {
        self.empty_polls = EMPTY_POLLS_BEFORE_TAIL;
        self.passes = 0;
        if self.region.cell(self.head).published(self.head).is_some() {
            return Outlook::Arrivals;
        }
        match self.taken() {
            None => Outlook::Empty,
            Some(0) => {
                self.sweep_bulk(senders);
                Outlook::Empty
            }
            Some(taken) if self.stuck_at == Some(self.head.wrapping_add(taken)) => Outlook::Holes,
            Some(_) => Outlook::Arrivals,
        }
    }
}
