//! The typed view of a mapped region: the only place that turns offsets into references.
//!
//! Everything read through it may be wrong: other processes write this memory. It hands out atomics, cells and bytes to
//! copy, and checks every index, so that wrong values can lead only to wrong packets, never out of the mapping.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::addr::{SHM_NAME_BYTES_MAX, ShmName};
use crate::shm::bytes::{SharedBytes, write_shared};
use crate::shm::cell::{Cell, Cells};
use crate::shm::intent::Intent;
use crate::shm::layout::{Layout, MAGIC, Sizes, VERSION, header, slot};
use crate::shm::mapping::Mapping;

/// A mapped region with its layout.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    start: NonNull<u8>,
    layout: Layout,
    map: Arc<Mapping>,
}

// SAFETY: `start` points into `map`, which is kept alive; all access goes through atomics or racing copies.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// What a sender writes about itself into its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The name of its own endpoint.
    pub(crate) name: ShmName,
    /// The nonce of its own region: this incarnation of the name.
    pub(crate) nonce: u64,
}

impl Region {
    /// Views `map` by `layout`.
    ///
    /// # Panics
    /// If the mapping is shorter than the layout.
    pub(crate) fn new(map: Arc<Mapping>, layout: Layout) -> Self {
        assert!(layout.file_bytes <= map.len(), "a layout must fit its mapping");
        Region { start: map.start(), layout, map }
    }

    /// Initialises a new region of zeros whose first packet will have `first_ticket`.
    pub(crate) fn init(&self, nonce: u64, senders_fence: bool, first_ticket: u64) {
        let sizes = self.layout.sizes;
        for (offset, value) in [
            (header::VERSION, VERSION),
            (header::QUEUE_LEN, sizes.queue_len as u64),
            (header::BULK_BUFFERS, sizes.bulk_buffers as u64),
            (header::MTU, sizes.mtu as u64),
            (header::SENDERS_MAX, sizes.senders_max as u64),
            (header::NONCE, nonce),
            (header::SENDERS_FENCE, senders_fence as u64),
            (header::TAIL, first_ticket),
            (header::HEAD, first_ticket),
        ] {
            self.u64_at(offset).store(value, Ordering::Relaxed);
        }
        for i in 0..sizes.queue_len as u64 {
            let ticket = first_ticket.wrapping_add(i);
            self.cell(ticket).init(ticket, sizes.queue_len);
        }
        self.u64_at(header::MAGIC).store(MAGIC, Ordering::Release);
    }

    /// Reads and checks the header in the first page of `map`, a file of `file_bytes`; the error says what is wrong
    /// with it.
    pub(crate) fn read_layout(map: &Mapping, file_bytes: u64) -> Result<Layout, String> {
        assert!(map.len() >= header::BYTES, "the header page must be mapped");
        // SAFETY: the header page is mapped and page-aligned, and the offsets are multiples of 8 within it.
        let word =
            |offset: usize| unsafe { map.start().add(offset).cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire);
        if word(header::MAGIC) != MAGIC {
            return Err("it is not a region of an endpoint".into());
        }
        if word(header::VERSION) != VERSION {
            return Err(format!("it has layout version {}, this program has {VERSION}", word(header::VERSION)));
        }
        let size =
            |offset| u32::try_from(word(offset)).map_err(|_| format!("the size at offset {offset} is too large"));
        let sizes = Sizes {
            queue_len: size(header::QUEUE_LEN)?,
            bulk_buffers: size(header::BULK_BUFFERS)?,
            mtu: size(header::MTU)?,
            senders_max: size(header::SENDERS_MAX)?,
        };
        let layout = Layout::new(sizes).map_err(|(name, why)| format!("its {name}: {why}"))?;
        if layout.file_bytes as u64 != file_bytes {
            return Err(format!("its sizes ask for {} bytes, the file has {file_bytes}", layout.file_bytes));
        }
        Ok(layout)
    }

    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.layout.file_bytes);
        // SAFETY: callers pass offsets of the layout, which are aligned and end within the mapping; shared memory that
        // is only accessed as an atomic may change at any time.
        unsafe { self.start.add(offset).cast().as_ref() }
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.layout.file_bytes);
        // SAFETY: as in `u64_at`.
        unsafe { self.start.add(offset).cast().as_ref() }
    }

    /// The ticket the next sender takes.
    #[inline]
    pub(crate) fn tail(&self) -> &AtomicU64 {
        self.u64_at(header::TAIL)
    }

    /// The first ticket the receiver has not consumed.
    #[inline]
    pub(crate) fn head(&self) -> &AtomicU64 {
        self.u64_at(header::HEAD)
    }

    /// How many cells are shut. Written before the head that depends on it is published.
    #[inline]
    pub(crate) fn shut_count(&self) -> &AtomicU32 {
        self.u32_at(header::SHUT_COUNT)
    }

    /// The bits of 64 cells, those of `ticket` among them: set if senders must leave the cell alone.
    #[inline]
    pub(crate) fn shut_word(&self, ticket: u64) -> &AtomicU64 {
        let index = ticket as usize & (self.layout.sizes.queue_len as usize - 1);
        self.u64_at(self.layout.shut + index / 64 * 8)
    }

    /// What the receiver sleeps on.
    #[inline]
    pub(crate) fn wait_word(&self) -> &AtomicU32 {
        self.u32_at(header::WAIT)
    }

    /// Not 0 once the owner has closed its endpoint.
    #[inline]
    pub(crate) fn closed(&self) -> &AtomicU32 {
        self.u32_at(header::CLOSED)
    }

    /// Not 0 if a sender found no free bulk buffer since the receiver last checked.
    pub(crate) fn bulk_pressure(&self) -> &AtomicU64 {
        self.u64_at(header::BULK_PRESSURE)
    }

    /// Which incarnation of its name this region is.
    pub(crate) fn nonce(&self) -> u64 {
        self.u64_at(header::NONCE).load(Ordering::Relaxed)
    }

    /// Whether senders must fence before they look at the wait word.
    pub(crate) fn senders_fence(&self) -> bool {
        self.u64_at(header::SENDERS_FENCE).load(Ordering::Relaxed) != 0
    }

    /// The cells of the queue, for a walk over several.
    #[inline]
    pub(crate) fn cells(&self) -> Cells<'_> {
        // SAFETY: the layout has `queue_len` cells there, a power of two, and they stay mapped while `self` is
        // borrowed.
        unsafe { Cells::new(self.start.add(self.layout.cells), self.layout.sizes.queue_len) }
    }

    /// The cell of `ticket`.
    #[inline]
    pub(crate) fn cell(&self, ticket: u64) -> Cell<'_> {
        self.cells().of(ticket)
    }

    /// The owner word of bulk buffer `index`.
    ///
    /// # Panics
    /// If there is no such buffer.
    #[inline]
    pub(crate) fn bulk_owner(&self, index: u32) -> &AtomicU32 {
        assert!(index < self.layout.sizes.bulk_buffers, "no such bulk buffer");
        self.u32_at(self.layout.owners + index as usize * 4)
    }

    #[inline]
    fn bulk_start(&self, index: u32, len: usize) -> NonNull<u8> {
        assert!(index < self.layout.sizes.bulk_buffers && len <= self.layout.buffer_bytes, "no such bulk bytes");
        // SAFETY: the layout has `bulk_buffers` buffers of `buffer_bytes` within the mapping.
        unsafe { self.start.add(self.layout.buffers + index as usize * self.layout.buffer_bytes) }
    }

    /// The first `len` bytes of bulk buffer `index`.
    ///
    /// # Panics
    /// If there is no such buffer or it is shorter.
    #[inline]
    pub(crate) fn bulk(&self, index: u32, len: usize) -> SharedBytes<'_> {
        // SAFETY: `bulk_start` checked that the bytes are mapped, and the mapping lives as long as `self`.
        unsafe { SharedBytes::new(self.bulk_start(index, len), len) }
    }

    /// Copies the two parts of a packet into bulk buffer `index`.
    ///
    /// # Panics
    /// If there is no such buffer or it is shorter.
    #[inline]
    pub(crate) fn write_bulk(&self, index: u32, header: &[u8], payload: &[u8]) {
        let to = self.bulk_start(index, header.len() + payload.len()).as_ptr();
        // SAFETY: `bulk_start` checked that both parts end within the buffer.
        unsafe {
            write_shared(header, to);
            write_shared(payload, to.add(header.len()));
        }
    }

    #[inline]
    fn slot_offset(&self, index: u16) -> usize {
        assert!((index as u32) < self.layout.sizes.senders_max, "no such sender slot");
        self.layout.slots + index as usize * slot::BYTES
    }

    /// The intent of the sender in a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub(crate) fn intent(&self, index: u16) -> &AtomicU64 {
        self.u64_at(self.slot_offset(index) + slot::INTENT)
    }

    /// Writes its holder's identity into a slot and returns the slot's generation, which is never 0, and new unless the
    /// previous holder was the same.
    ///
    /// The generation is the lock of a sequence lock: [`Region::in_slot`] reads what this writes.
    pub(crate) fn enter_slot(&self, index: u16, identity: &Identity) -> u32 {
        self.intent(index).store(Intent::NONE, Ordering::SeqCst);
        let offset = self.slot_offset(index);
        let word = self.u32_at(offset + slot::GENERATION);
        let before = word.load(Ordering::Acquire);
        if self.slot_nonce(index, before) == Some(identity.nonce)
            && self.slot_name(index, before).as_ref() == Some(&identity.name)
        {
            return before;
        }
        // A holder that was killed while it wrote here left its number behind: no generation is given out twice.
        let generation = (before & !slot::BEING_WRITTEN).wrapping_add(1) & !slot::BEING_WRITTEN;
        let generation = generation.max(1);
        word.store(generation | slot::BEING_WRITTEN, Ordering::Relaxed);
        // Pairs with the fence in `in_slot`: a reader that sees any of the new identity sees that it is being written.
        fence(Ordering::Release);
        let name = identity.name.as_str().as_bytes();
        for (i, byte) in name.iter().enumerate() {
            self.u8_at(offset + slot::NAME + i).store(*byte, Ordering::Relaxed);
        }
        self.u32_at(offset + slot::NAME_LEN).store(name.len() as u32, Ordering::Relaxed);
        self.u64_at(offset + slot::NONCE).store(identity.nonce, Ordering::Relaxed);
        word.store(generation, Ordering::Release);
        generation
    }

    /// The generation of a slot's current or last holder.
    pub(crate) fn slot_generation(&self, index: u16) -> u32 {
        self.u32_at(self.slot_offset(index) + slot::GENERATION).load(Ordering::Acquire) & !slot::BEING_WRITTEN
    }

    /// What `read` makes of the fields of a slot, if they belong to the holder with `generation`.
    fn in_slot<T>(&self, index: u16, generation: u32, read: impl FnOnce(usize) -> Option<T>) -> Option<T> {
        let offset = self.slot_offset(index);
        let word = self.u32_at(offset + slot::GENERATION);
        if word.load(Ordering::Acquire) != generation || generation == 0 || generation & slot::BEING_WRITTEN != 0 {
            return None;
        }
        let value = read(offset);
        // Pairs with the fence in `enter_slot`.
        fence(Ordering::Acquire);
        if word.load(Ordering::Relaxed) == generation { value } else { None }
    }

    /// The nonce in a slot, if its holder still has `generation`.
    pub(crate) fn slot_nonce(&self, index: u16, generation: u32) -> Option<u64> {
        self.in_slot(index, generation, |offset| Some(self.u64_at(offset + slot::NONCE).load(Ordering::Relaxed)))
    }

    /// The name in a slot, if its holder still has `generation` and the name is well-formed.
    pub(crate) fn slot_name(&self, index: u16, generation: u32) -> Option<ShmName> {
        let mut name = [0u8; SHM_NAME_BYTES_MAX];
        let len = self.in_slot(index, generation, |offset| {
            let len = self.u32_at(offset + slot::NAME_LEN).load(Ordering::Relaxed) as usize;
            for (i, byte) in name.get_mut(..len)?.iter_mut().enumerate() {
                *byte = self.u8_at(offset + slot::NAME + i).load(Ordering::Relaxed);
            }
            Some(len)
        })?;
        ShmName::new(std::str::from_utf8(&name[..len]).ok()?).ok()
    }

    #[inline]
    fn u8_at(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < self.layout.file_bytes);
        // SAFETY: as in `u64_at`.
        unsafe { self.start.add(offset).cast().as_ref() }
    }

    /// Maps the pages of the header and the cells.
    pub(crate) fn populate(&self) {
        self.map.populate(self.layout.hot_bytes());
    }
}

/// Regions in private memory, for tests of the code that uses them.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Small enough for Miri.
    pub(crate) const SIZES: Sizes = Sizes { queue_len: 64, bulk_buffers: 16, mtu: 1000, senders_max: 4 };

    /// A fresh region; clones share it.
    pub(crate) fn region(sizes: Sizes, first_ticket: u64) -> Region {
        let layout = Layout::new(sizes).unwrap();
        let region = Region::new(Arc::new(Mapping::anonymous(layout.file_bytes).unwrap()), layout);
        region.init(7, true, first_ticket);
        region
    }

    pub(crate) fn identity(name: &str) -> Identity {
        Identity { name: ShmName::new(name).unwrap(), nonce: 100 + name.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn a_slot_tells_its_holders_apart() {
        let region = region(SIZES, 0);
        let first = region.enter_slot(2, &identity("first"));
        assert_eq!(region.slot_name(2, first), Some(identity("first").name));
        assert_eq!(region.slot_nonce(2, first), Some(105));
        let second = region.enter_slot(2, &identity("second"));
        assert_eq!((region.slot_name(2, first), region.slot_nonce(2, first)), (None, None));
        assert_eq!(region.slot_name(2, second), Some(identity("second").name));
        assert_eq!(region.enter_slot(2, &identity("second")), second, "the same holder again");
    }

    /// The steps of a holder that is killed while it writes its identity.
    fn enter_and_die(region: &Region, index: u16, nonce: u64) {
        let offset = region.slot_offset(index);
        let word = region.u32_at(offset + slot::GENERATION);
        let next = region.slot_generation(index) + 1;
        word.store(next | slot::BEING_WRITTEN, Ordering::SeqCst);
        region.u64_at(offset + slot::NONCE).store(nonce, Ordering::SeqCst);
    }

    #[test]
    fn a_death_inside_a_slot_gives_no_generation_out_again() {
        let region = region(SIZES, 0);
        let mut seen = vec![region.enter_slot(1, &identity("first"))];
        for death in 0..100 {
            enter_and_die(&region, 1, death);
            let left = region.u32_at(region.slot_offset(1) + slot::GENERATION).load(Ordering::SeqCst);
            assert_eq!((region.slot_nonce(1, left), region.slot_name(1, left)), (None, None), "half of an identity");
            let generation = region.enter_slot(1, &identity("heir"));
            assert!(!seen.contains(&generation), "generation {generation} has two holders");
            seen.push(generation);
            assert_eq!(region.slot_name(1, generation), Some(identity("heir").name));
        }
    }

    /// Holders replace each other while other threads read. Under Miri, which lets loads see old values, this fails if
    /// either fence of the sequence lock is missing; do not set `-Zmiri-disable-weak-memory-emulation`.
    #[test]
    fn no_reader_sees_halves_of_two_identities() {
        for round in 0..if cfg!(miri) { 50 } else { 200 } {
            let region = region(SIZES, 0);
            let holders = ["a", "bb", "ccc", "dddd"];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    holders.iter().for_each(|name| {
                        region.enter_slot(0, &identity(name));
                    })
                });
                for generation in (1..=holders.len() as u32).cycle().take(20) {
                    let expected = identity(holders[generation as usize - 1]);
                    let nonce = region.slot_nonce(0, generation);
                    assert!(
                        nonce.is_none_or(|nonce| nonce == expected.nonce),
                        "round {round}: {nonce:?} of {expected:?}"
                    );
                    let name = region.slot_name(0, generation);
                    assert!(
                        name.as_ref().is_none_or(|name| *name == expected.name),
                        "round {round}: {name:?} of {expected:?}"
                    );
                }
            });
        }
    }

    #[test]
    fn a_scribbled_slot_has_no_name() {
        let region = region(SIZES, 0);
        let generation = region.enter_slot(0, &identity("ok"));
        region.u8_at(region.slot_offset(0) + slot::NAME).store(b'/', Ordering::Relaxed);
        assert_eq!(region.slot_name(0, generation), None);
        region.u32_at(region.slot_offset(0) + slot::NAME_LEN).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(region.slot_name(0, generation), None);
        region.u32_at(region.slot_offset(0) + slot::GENERATION).store(0, Ordering::Relaxed);
        assert_eq!((region.slot_name(0, 0), region.slot_nonce(0, 0)), (None, None));
    }

    #[test]
    fn only_a_header_that_fits_its_file_is_believed() {
        let region = region(SIZES, 0);
        let bytes = region.layout.file_bytes as u64;
        assert_eq!(Region::read_layout(&region.map, bytes), Ok(region.layout));
        assert!(Region::read_layout(&region.map, bytes + 4096).unwrap_err().contains("the file has"));
        for (offset, value, why) in [
            (header::QUEUE_LEN, 65, "queue_len"),
            (header::QUEUE_LEN, 1 << 40, "too large"),
            (header::VERSION, 99, "version 99"),
            (header::MAGIC, 1, "not a region"),
        ] {
            region.u64_at(offset).store(value, Ordering::Relaxed);
            assert!(Region::read_layout(&region.map, bytes).unwrap_err().contains(why));
        }
    }
}
