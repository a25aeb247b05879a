//! One place of the queue, and the words that are packed into it.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::bytes::{read_shared, write_shared};
use crate::shm::layout::{CELL_BYTES, CELL_PAYLOAD, INLINE_BYTES_MAX};

/// Stands in place of a bulk buffer's number if the packet lies in its cell.
pub(crate) const NO_BULK: u32 = u32::MAX;

/// The first word of a cell. Storing it publishes the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Published {
    /// Low half of the ticket, plus one: tells this lap's packet from the last lap's.
    pub(crate) seq: u32,
    /// Bytes of the packet.
    pub(crate) len: u16,
    /// The sender's slot.
    pub(crate) slot: u16,
}

impl Published {
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        self.seq as u64 | (self.len as u64) << 32 | (self.slot as u64) << 48
    }

    #[inline]
    pub(crate) fn unpack(word: u64) -> Self {
        Published { seq: word as u32, len: (word >> 32) as u16, slot: (word >> 48) as u16 }
    }
}

/// The second word: more about the packet, read only once the first word says that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Generation of the sender's slot, so that a slot's next holder is not mistaken for this one.
    pub(crate) generation: u32,
    /// The bulk buffer that holds the packet, or [`NO_BULK`].
    pub(crate) bulk: u32,
}

impl Origin {
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        self.generation as u64 | (self.bulk as u64) << 32
    }

    #[inline]
    pub(crate) fn unpack(word: u64) -> Self {
        Origin { generation: word as u32, bulk: (word >> 32) as u32 }
    }
}

/// The sequence number that publishes `ticket`.
#[inline]
pub(crate) fn seq_of(ticket: u64) -> u32 {
    (ticket as u32).wrapping_add(1)
}

/// The ring of cells in mapped memory.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a> {
    start: NonNull<u8>,
    mask: usize,
    region: PhantomData<&'a ()>,
}

impl<'a> Cells<'a> {
    /// The cells from `start` on.
    ///
    /// # Safety
    /// `count` must be a power of two, and that many cells must stay mapped for `'a` from `start` on, aligned to 64.
    #[inline]
    pub(crate) unsafe fn new(start: NonNull<u8>, count: u32) -> Self {
        Cells { start, mask: count as usize - 1, region: PhantomData }
    }

    /// The cell that `ticket` comes round to.
    #[inline]
    pub(crate) fn of(&self, ticket: u64) -> Cell<'a> {
        // SAFETY: the masked index is below the number of cells.
        let start = unsafe { self.start.add((ticket as usize & self.mask) * CELL_BYTES) };
        Cell { start, region: PhantomData }
    }
}

/// A cell in mapped memory.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    start: NonNull<u8>,
    region: PhantomData<&'a ()>,
}

impl<'a> Cell<'a> {
    #[inline]
    fn word(&self, index: usize) -> &'a AtomicU64 {
        // SAFETY: words 0 and 1 lie in the cell, which is mapped and aligned as promised to `Cells::new`.
        unsafe { self.start.cast::<AtomicU64>().add(index).as_ref() }
    }

    /// The first word, if it publishes `ticket`.
    #[inline]
    pub(crate) fn published(&self, ticket: u64) -> Option<Published> {
        let published = Published::unpack(self.word(0).load(Ordering::Acquire));
        (published.seq == seq_of(ticket)).then_some(published)
    }

    #[inline]
    pub(crate) fn origin(&self) -> Origin {
        Origin::unpack(self.word(1).load(Ordering::Relaxed))
    }

    /// Marks the cell as last used one lap before `ticket`, so that memory that nobody wrote never looks published,
    /// whatever the number of laps.
    pub(crate) fn init(&self, ticket: u64, queue_len: u32) {
        let seq = seq_of(ticket.wrapping_sub(queue_len as u64));
        self.word(0).store(Published { seq, len: 0, slot: 0 }.pack(), Ordering::Relaxed);
    }

    /// Prefetches the first cache line of the cell. Has no other effect.
    #[inline]
    pub(crate) fn prefetch(&self) {
        crate::prefetch::address(self.start.as_ptr());
    }

    /// Copies the two parts of a packet into the cell.
    ///
    /// # Panics
    /// If they are longer than [`INLINE_BYTES_MAX`].
    #[inline]
    pub(crate) fn write_packet(&self, header: &[u8], payload: &[u8]) {
        assert!(header.len() + payload.len() <= INLINE_BYTES_MAX, "packet longer than its cell");
        // SAFETY: both parts end within the cell, as just checked.
        unsafe {
            let to = self.start.as_ptr().add(CELL_PAYLOAD);
            write_shared(header, to);
            if !payload.is_empty() {
                write_shared(payload, to.add(header.len()));
            }
        }
    }

    /// Makes the packet visible to the receiver.
    #[inline]
    pub(crate) fn publish(&self, published: Published, origin: Origin) {
        self.word(1).store(origin.pack(), Ordering::Relaxed);
        self.word(0).store(published.pack(), Ordering::Release);
    }

    /// Copies at least the first `len` bytes of the packet out; the bytes after them in `to` are arbitrary.
    #[inline]
    pub(crate) fn read_packet(&self, to: &mut [u8; INLINE_BYTES_MAX], len: usize) {
        // Fixed lengths compile to straight code: 48 bytes end with the first cache line, and the second is touched
        // only if needed. SAFETY: both lengths lie in the cell and in `to`.
        unsafe {
            let from = self.start.as_ptr().add(CELL_PAYLOAD);
            read_shared(from, &mut to[..48]);
            if len > 48 {
                read_shared(from.add(48), &mut to[48..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let p = Published { seq: 0xfedc_ba98, len: 0x7654, slot: 0x3210 };
        assert_eq!(Published::unpack(p.pack()), p);
        let o = Origin { generation: 0xfedc_ba98, bulk: 0x7654_3210 };
        assert_eq!(Origin::unpack(o.pack()), o);
        assert_eq!(seq_of(u32::MAX as u64), 0);
    }
}
