//! The sending side of one receiver's queue.
//!
//! A burst takes its tickets with one compare-and-swap, then fills and publishes one cell after the other with plain
//! stores. It first writes its intent into the sender's slot ([`Intent`]), so that the receiver knows what was taken if
//! the sender dies. It waits for no other sender: where another sender has stopped with places taken, the receiver has
//! shut their cells, and other senders skip them ([`super::holes`]).

use crate::shm::backing::BulkBacking;
use crate::shm::bell::Bell;
use crate::shm::bulk;
use crate::shm::cell::{NO_BULK, Origin, Published, seq_of};
use crate::shm::futex;
use crate::shm::intent::Intent;
use crate::shm::layout::INLINE_BYTES_MAX;
use crate::shm::region::{Identity, Region};
use crate::transport::{TransportCounters, TxPacket};

use std::sync::atomic::Ordering;

/// Packets that share one reservation, at most. An intent must be able to count them, and one word must have a bit for
/// each.
pub(super) const GROUP_MAX: usize = 64;
/// The same for packets in bulk buffers: few, so that the receiver copies one while the sender fills the next.
const BULK_GROUP_MAX: usize = 2;
/// Times a reservation is tried against other senders before the queue counts as full. Well-behaved senders, however
/// many, never need so many.
const RESERVE_ATTEMPTS_MAX: u32 = 10_000;

/// The holder of one sender slot of a region.
#[derive(Debug)]
pub(crate) struct Sender {
    region: Region,
    slot: u16,
    generation: u32,
    /// The receiver's head as last read. The head only grows, so an old value only makes the queue look fuller.
    head_seen: u64,
    /// Whether cells were shut when the head was read: if not, no ticket below `head + queue_len` is void.
    shut_seen: bool,
    /// Void tickets that the present call may still take: as many as the queue is long. A well-behaved receiver's
    /// region has fewer; one that has more would keep this sender busy for ever.
    voids_left: u32,
    senders_fence: bool,
    backing: BulkBacking,
    bell: Bell,
}

/// Why a packet gets no bulk buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBuffer {
    /// All are in use.
    AllTaken,
    /// The file system of the region has no space for another one.
    NoMemory,
}

/// Tickets that were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) first: u64,
    pub(crate) count: usize,
    /// A bit for each of them that is void: its cell is shut, and nothing may be written there.
    pub(crate) void: u64,
}

impl Reserved {
    /// Those that are not void.
    pub(crate) fn tickets(self) -> impl Iterator<Item = u64> {
        (0..self.count).filter(move |i| self.void >> i & 1 == 0).map(move |i| self.first.wrapping_add(i as u64))
    }

    /// How many are not void.
    #[inline]
    pub(crate) fn places(self) -> usize {
        self.count - self.void.count_ones() as usize
    }
}

impl Sender {
    /// Enters a slot whose lock the caller holds.
    pub(crate) fn new(region: Region, backing: BulkBacking, bell: Bell, slot: u16, identity: &Identity) -> Self {
        let generation = region.enter_slot(slot, identity);
        let head_seen = region.head().load(Ordering::Acquire);
        let senders_fence = region.senders_fence() || !futex::kernel_fences();
        let shut_seen = region.shut_count().load(Ordering::Relaxed) != 0;
        Sender { region, slot, generation, head_seen, shut_seen, voids_left: 0, senders_fence, backing, bell }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Sends packets, whatever their routes; drops and counts those for which there is no room.
    #[inline]
    pub(crate) fn send(&mut self, packets: &[TxPacket<'_>], counters: &mut TransportCounters) {
        if self.region.closed().load(Ordering::Relaxed) != 0 {
            counters.tx_dropped_error += packets.len() as u64;
            return;
        }
        self.voids_left = self.region.layout().sizes.queue_len;
        let mut rest = packets;
        while !rest.is_empty() {
            let short = rest.iter().take(GROUP_MAX).take_while(|p| p.len() <= INLINE_BYTES_MAX).count();
            let group = if short > 0 {
                self.send_inline(&rest[..short], counters);
                short
            } else {
                let long = rest.iter().take(BULK_GROUP_MAX).take_while(|p| p.len() > INLINE_BYTES_MAX).count();
                self.send_bulk(&rest[..long], counters);
                long
            };
            rest = &rest[group..];
        }
        futex::wake_if_sleeping(self.region.wait_word(), self.senders_fence, || self.bell.ring());
    }

    #[inline]
    fn send_inline(&mut self, group: &[TxPacket<'_>], counters: &mut TransportCounters) {
        let Some(reserved) = self.reserve(group.len()) else {
            counters.tx_dropped_full += group.len() as u64;
            return;
        };
        if reserved.void != 0 {
            self.fill_around(reserved, group, counters);
            return;
        }
        // Copies of what would otherwise be read again for every packet: the compiler does not know what the copying
        // changes.
        let (cells, slot, origin) = (self.region.cells(), self.slot, self.origin(NO_BULK));
        let mut ticket = reserved.first;
        let mut bytes = 0;
        for packet in &group[..reserved.count] {
            let (cell, len) = (cells.of(ticket), packet.len());
            cell.write_packet(packet.header, packet.payload);
            cell.publish(Published { seq: seq_of(ticket), len: len as u16, slot }, origin);
            ticket = ticket.wrapping_add(1);
            bytes += len;
        }
        counters.tx_bytes += bytes as u64;
        self.finish(reserved, group.len(), counters);
    }

    /// Fills the reserved places that are not void, and takes others for the rest of the group.
    #[cold]
    #[inline(never)]
    fn fill_around(&mut self, mut reserved: Reserved, mut group: &[TxPacket<'_>], counters: &mut TransportCounters) {
        loop {
            let (now, later) = group.split_at(reserved.places());
            for (ticket, packet) in reserved.tickets().zip(now) {
                self.region.cell(ticket).write_packet(packet.header, packet.payload);
                self.publish(ticket, packet.len(), NO_BULK);
                counters.tx_bytes += packet.len() as u64;
            }
            self.finish(reserved, now.len(), counters);
            if later.is_empty() {
                return;
            }
            self.note_voids(reserved);
            let Some(next) = self.reserve_more(later.len()) else {
                counters.tx_dropped_full += later.len() as u64;
                return;
            };
            (reserved, group) = (next, later);
        }
    }

    #[inline]
    fn send_bulk(&mut self, group: &[TxPacket<'_>], counters: &mut TransportCounters) {
        // The long copies come before the reservation, so that reserved places are published within nanoseconds.
        let mut filled = [(NO_BULK, 0); BULK_GROUP_MAX];
        let mut count = 0;
        for packet in group {
            if packet.len() > self.region.layout().sizes.mtu as usize {
                counters.tx_dropped_error += 1;
            } else {
                match self.claim() {
                    Ok(buffer) => {
                        self.region.write_bulk(buffer, packet.header, packet.payload);
                        filled[count] = (buffer, packet.len());
                        count += 1;
                    }
                    Err(NoBuffer::AllTaken) => counters.tx_dropped_full += 1,
                    Err(NoBuffer::NoMemory) => counters.tx_dropped_no_memory += 1,
                }
            }
        }
        if count == 0 {
            return;
        }
        let mut rest = &filled[..count];
        while !rest.is_empty() {
            let Some(reserved) = self.reserve_more(rest.len()) else { break };
            let (now, later) = rest.split_at(reserved.places());
            for (ticket, &(buffer, len)) in reserved.tickets().zip(now) {
                self.publish(ticket, len, buffer);
                counters.tx_bytes += len as u64;
            }
            self.finish(reserved, now.len(), counters);
            self.note_voids(reserved);
            rest = later;
        }
        for &(buffer, _) in rest {
            bulk::free(&self.region, buffer);
        }
        counters.tx_dropped_full += rest.len() as u64;
    }

    #[inline]
    fn finish(&mut self, reserved: Reserved, wanted: usize, counters: &mut TransportCounters) {
        self.clear_intent();
        let sent = reserved.places();
        counters.tx_packets += sent as u64;
        counters.tx_batches += 1;
        counters.tx_dropped_full += (wanted - sent) as u64;
    }

    /// Claims a bulk buffer, or asks the receiver to free those of dead senders.
    #[inline]
    pub(crate) fn claim(&mut self) -> Result<u32, NoBuffer> {
        let Some(buffer) = bulk::claim(&self.region, bulk::tag(self.slot, self.generation)) else {
            self.region.bulk_pressure().store(1, Ordering::Relaxed);
            return Err(NoBuffer::AllTaken);
        };
        if !self.backing.ensure(self.region.layout(), buffer) {
            bulk::free(&self.region, buffer);
            return Err(NoBuffer::NoMemory);
        }
        Ok(buffer)
    }

    /// Takes up to `wanted` tickets, at least one; `None` if the queue is full.
    #[inline]
    pub(crate) fn reserve(&mut self, wanted: usize) -> Option<Reserved> {
        debug_assert!((1..=GROUP_MAX).contains(&wanted));
        let queue_len = self.region.layout().sizes.queue_len as u64;
        let tail = self.region.tail();
        let mut first = tail.load(Ordering::Relaxed);
        for _ in 0..RESERVE_ATTEMPTS_MAX {
            let mut used = first.wrapping_sub(self.head_seen);
            if used > queue_len - wanted as u64 {
                self.head_seen = self.region.head().load(Ordering::Acquire);
                self.shut_seen = self.region.shut_count().load(Ordering::Relaxed) != 0;
                used = first.wrapping_sub(self.head_seen);
                if used > queue_len {
                    // The head has passed the tail we read (or one of them is invalid).
                    first = tail.load(Ordering::Relaxed);
                    continue;
                }
            }
            let count = (queue_len - used).min(wanted as u64);
            if count == 0 {
                break;
            }
            // Look up void tickets before taking them: later, the receiver may have set one of them aside.
            let void = if self.shut_seen { self.void_of(first, count) } else { 0 };
            self.set_intent(Intent::wanted(first, count as u8));
            // Release: a process that sees the new tail sees the intent.
            match tail.compare_exchange_weak(first, first.wrapping_add(count), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.set_intent(Intent::held(first, count as u8));
                    return Some(Reserved { first, count: count as usize, void });
                }
                Err(now) => first = now,
            }
        }
        self.clear_intent();
        None
    }

    /// [`Sender::reserve`] for a loop that continues while places are void; also `None` if more were void than a
    /// well-behaved receiver's region has.
    #[inline]
    fn reserve_more(&mut self, wanted: usize) -> Option<Reserved> {
        if self.voids_left == 0 {
            return None;
        }
        self.reserve(wanted)
    }

    #[inline]
    fn note_voids(&mut self, reserved: Reserved) {
        self.voids_left = self.voids_left.saturating_sub(reserved.void.count_ones());
    }

    /// Which of `count` tickets from `first` on are void.
    #[cold]
    #[inline(never)]
    fn void_of(&self, first: u64, count: u64) -> u64 {
        let is_void = |ticket: u64| self.region.shut_word(ticket).load(Ordering::Relaxed) >> (ticket % 64) & 1;
        (0..count).fold(0, |void, i| void | is_void(first.wrapping_add(i)) << i)
    }

    /// Makes the packet of a reserved ticket visible.
    #[inline]
    pub(crate) fn publish(&mut self, ticket: u64, len: usize, bulk: u32) {
        let published = Published { seq: seq_of(ticket), len: len as u16, slot: self.slot };
        self.region.cell(ticket).publish(published, self.origin(bulk));
    }

    #[inline]
    fn origin(&self, bulk: u32) -> Origin {
        Origin { generation: self.generation, bulk }
    }

    #[inline]
    pub(crate) fn set_intent(&self, word: u64) {
        // Release: a process that sees this intent, or none, sees what was published under the one before.
        self.region.intent(self.slot).store(word, Ordering::Release);
    }

    /// Records that every reserved ticket is published.
    #[inline]
    fn clear_intent(&self) {
        self.set_intent(Intent::NONE);
    }
}
