//! The sending side of one receiver's queue.
//!
//! A burst takes its tickets with one compare-and-swap, then fills and publishes one cell after the other with plain stores.
//! What it is about to do stands in the sender's slot ([`Intent`]), so that if it dies the receiver can tell.

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

/// Packets that share one reservation, at most. An intent must be able to count them.
const GROUP_MAX: usize = 64;
/// The same for packets in bulk buffers: few, so that the receiver copies one while the sender fills the next.
const BULK_GROUP_MAX: usize = 2;
/// Times a reservation is tried against other senders before the queue counts as full. No honest crowd takes so many.
const RESERVE_ATTEMPTS_MAX: u32 = 10_000;

/// The holder of one sender slot of a region.
#[derive(Debug)]
pub(crate) struct Sender {
    region: Region,
    slot: u16,
    generation: u32,
    /// The receiver's head as last read: it only grows, so an old value only makes the queue look fuller.
    head_seen: u64,
    senders_fence: bool,
    backing: BulkBacking,
    bell: Bell,
}

/// Why a packet has no bulk buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBuffer {
    /// Others have all of them.
    AllTaken,
    /// The file system of the region has no space for one more.
    NoMemory,
}

/// Tickets that were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) first: u64,
    pub(crate) count: usize,
}

impl Sender {
    /// Enters a slot whose lock the caller holds.
    pub(crate) fn new(region: Region, backing: BulkBacking, bell: Bell, slot: u16, identity: &Identity) -> Self {
        let generation = region.enter_slot(slot, identity);
        let head_seen = region.head().load(Ordering::Acquire);
        let senders_fence = region.senders_fence() || !futex::kernel_fences();
        Sender { region, slot, generation, head_seen, senders_fence, backing, bell }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Sends packets, whatever their routes say; drops and counts what has no room.
    #[inline]
    pub(crate) fn send(&mut self, packets: &[TxPacket<'_>], counters: &mut TransportCounters) {
        if self.region.closed().load(Ordering::Relaxed) != 0 {
            counters.tx_dropped_error += packets.len() as u64;
            return;
        }
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
        // Copies of what would be read again for every packet: the compiler does not know what the copying changes.
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

    #[inline]
    fn send_bulk(&mut self, group: &[TxPacket<'_>], counters: &mut TransportCounters) {
        // The long copies come before the reservation: what is reserved is published within nanoseconds.
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
        let reserved = self.reserve(count).unwrap_or(Reserved { first: 0, count: 0 });
        for (i, &(buffer, len)) in filled[..reserved.count].iter().enumerate() {
            self.publish(reserved.first.wrapping_add(i as u64), len, buffer);
            counters.tx_bytes += len as u64;
        }
        for &(buffer, _) in &filled[reserved.count..count] {
            bulk::free(&self.region, buffer);
        }
        self.finish(reserved, count, counters);
    }

    #[inline]
    fn finish(&mut self, reserved: Reserved, wanted: usize, counters: &mut TransportCounters) {
        self.clear_intent();
        counters.tx_packets += reserved.count as u64;
        counters.tx_batches += 1;
        counters.tx_dropped_full += (wanted - reserved.count) as u64;
    }

    /// Claims a bulk buffer, or asks the receiver to look for those of dead senders.
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
                used = first.wrapping_sub(self.head_seen);
                if used > queue_len {
                    // The head has passed the tail we read (or one of them is not to be believed).
                    first = tail.load(Ordering::Relaxed);
                    continue;
                }
            }
            let count = (queue_len - used).min(wanted as u64);
            if count == 0 {
                break;
            }
            self.set_intent(Intent::wanted(first, count as u8));
            // Release: who sees the new tail sees the intent.
            match tail.compare_exchange_weak(first, first.wrapping_add(count), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.set_intent(Intent::held(first, count as u8));
                    return Some(Reserved { first, count: count as usize });
                }
                Err(now) => first = now,
            }
        }
        self.clear_intent();
        None
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
        // Release: who sees an intent, or none, sees what was published under the one before.
        self.region.intent(self.slot).store(word, Ordering::Release);
    }

    /// Says that nothing reserved is left unpublished.
    #[inline]
    fn clear_intent(&self) {
        self.set_intent(Intent::NONE);
    }
}
