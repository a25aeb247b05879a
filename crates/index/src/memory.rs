//! Memory of nodes and blocks, within one budget, and its release once no reader can see it any more.
//!
//! Nodes come from chunks that grow from 64 KiB to 64 MiB and are unmapped when the index is dropped. A chunk is
//! divided into slabs, a slab into nodes of one shape. A freed node is reused for a node of its shape; slabs without
//! nodes return to the system when their share of the budget is needed elsewhere. Blocks come from the global
//! allocator.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};

use crate::guard::Guard;
use crate::node::Shape;

const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Slabs that are returned to the system at a time: the shelf is locked meanwhile.
const RETURNED_AT_ONCE: usize = 16;
/// Assumed overhead of the global allocator for a block.
const BLOCK_OVERHEAD_BYTES: usize = 16;

/// The budget is used up, or the system has no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The address of a node. It has as many words as its shape says, and is aligned to a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) NonNull<AtomicU64>);

// SAFETY: an address of memory that is accessed as atomics only.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// All memory of one index.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: usize,
    /// Bytes taken from the budget: blocks, and nodes, used or free.
    held: AtomicUsize,
    /// The share of free nodes in `held`.
    idle: AtomicUsize,
    shelves: [Mutex<Shelf>; Shape::ALL.len()],
}

/// The nodes of one shape. Addresses name slabs.
#[derive(Debug, Default)]
struct Shelf {
    /// By address.
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    /// Unused slabs.
    unused: Vec<usize>,
    /// The slab from whose unused end the next node is cut if no slab has a free one.
    cut: Option<usize>,
    /// Slabs with nodes in use and free ones. A slab knows its place in the list.
    open: Vec<usize>,
    /// Slabs whose nodes are all free, likewise: those that can return to the system.
    empty: Vec<usize>,
    /// Nodes in use, including those that wait to be freed.
    taken: usize,
    /// Slabs that were looked at in order to return them to the system.
    #[cfg(test)]
    looked_at: usize,
}

#[derive(Debug)]
struct Chunk {
    map: MmapRaw,
    slabs: Vec<Slab>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slab {
    /// Nodes cut from the slab so far, from its start: used and free ones. They count against the budget.
    cut: u16,
    taken: u16,
    /// One more than the index of the first free node, whose second word names the next one; 0 if there is none.
    free: u16,
    /// Its place in the list of open or of empty slabs, if it has free nodes.
    place: u32,
}

impl Slab {
    fn list(&self) -> List {
        match (self.free, self.taken) {
            (0, _) => List::None,
            (_, 0) => List::Empty,
            _ => List::Open,
        }
    }
}

/// The list that a slab is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    None,
    Open,
    Empty,
}

/// In debug builds, the first word of a free node, so that writes to free nodes are detected.
const FREED: u64 = u64::MAX - 1;

/// Whole system pages, with little space wasted after the last node.
const fn slab_bytes(shape: Shape) -> usize {
    match shape {
        Shape::Leaf4 | Shape::Leaf12 | Shape::Leaf28 => 4 << 10,
        Shape::Interior => 16 << 10,
    }
}

impl Memory {
    pub(crate) fn new(budget: usize) -> Memory {
        Memory { budget, held: AtomicUsize::new(0), idle: AtomicUsize::new(0), shelves: Default::default() }
    }

    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes of all blocks, and of all nodes in use or retired. Free nodes, which also count against the budget, are
    /// not included.
    pub(crate) fn used(&self) -> usize {
        self.held.load(Ordering::Relaxed).saturating_sub(self.idle())
    }

    /// Bytes of free nodes. They count against the budget until a node of their shape or, once all nodes of their slab
    /// are free, anything else needs them.
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    /// Nodes of a shape that are in use or retired.
    pub(crate) fn nodes(&self, shape: Shape) -> usize {
        self.shelf(shape).taken
    }

    fn shelf(&self, shape: Shape) -> MutexGuard<'_, Shelf> {
        self.shelves[shape as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, bytes: usize) -> Result<(), Full> {
        let charged = |held: usize| held.checked_add(bytes).filter(|&held| held <= self.budget);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged).map(drop).map_err(|_| Full)
    }

    fn discharge(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns slabs without nodes to the system until `bytes` of the budget are free for something else, and not
    /// more: a dispatch thread waits for it. Returns how many bytes they had.
    #[cold]
    fn release(&self, bytes: usize) -> usize {
        let mut released = 0;
        for shape in Shape::ALL {
            while released < bytes {
                let wanted = (bytes - released).div_ceil(slab_bytes(shape)).min(RETURNED_AT_ONCE);
                let returned = self.shelf(shape).release(shape, wanted) * shape.bytes();
                if returned == 0 {
                    break;
                }
                self.idle.fetch_sub(returned, Ordering::Relaxed);
                self.discharge(returned);
                released += returned;
            }
        }
        released
    }

    /// Tries again as long as slabs return to the system: other threads may take what one has released.
    fn with_release<R>(&self, bytes: usize, mut attempt: impl FnMut() -> Result<R, Full>) -> Result<R, Full> {
        loop {
            match attempt() {
                Err(Full) if self.release(bytes) > 0 => {}
                result => return result,
            }
        }
    }

    /// Allocates a node. Its contents are left over from earlier use.
    pub(crate) fn take_node(&self, shape: Shape) -> Result<Slot, Full> {
        self.with_release(shape.bytes(), || self.try_take_node(shape))
    }

    fn try_take_node(&self, shape: Shape) -> Result<Slot, Full> {
        let mut shelf = self.shelf(shape);
        if let Some(slot) = shelf.take_free(shape) {
            self.idle.fetch_sub(shape.bytes(), Ordering::Relaxed);
            return Ok(slot);
        }
        self.charge(shape.bytes())?;
        shelf.cut_off(shape).inspect_err(|_| self.discharge(shape.bytes()))
    }

    /// # Safety
    /// `take_node` gave it for this shape, and no thread reads it any more.
    pub(crate) unsafe fn free_node(&self, slot: Slot, shape: Shape) {
        let mut shelf = self.shelf(shape);
        shelf.free(slot, shape);
        // Before another thread can take it: `idle` must not go below zero.
        self.idle.fetch_add(shape.bytes(), Ordering::Relaxed);
    }

    /// Frees a node as soon as all guards that exist now are dropped; not at all if the index is dropped before.
    ///
    /// # Safety
    /// `take_node` gave it for this shape, it is retired once, and readers that are pinned later cannot reach it.
    pub(crate) unsafe fn retire_node(self: &Arc<Memory>, slot: Slot, shape: Shape, guard: &Guard) {
        let memory = Arc::downgrade(self);
        let free = move || {
            if let Some(memory) = memory.upgrade() {
                // SAFETY: the caller's promise, and after the epoch no thread reads it.
                unsafe { memory.free_node(slot, shape) };
            }
        };
        // SAFETY: as the caller promises. The closure may run on any thread: everything in it is `Send`.
        unsafe { guard.defer(shape.bytes(), free) };
    }

    /// Allocates a block of `bytes`, aligned to 8.
    pub(crate) fn take_block(&self, bytes: usize) -> Result<NonNull<u8>, Full> {
        let layout = block_layout(bytes);
        let charged = layout.size() + BLOCK_OVERHEAD_BYTES;
        if charged > self.budget {
            return Err(Full);
        }
        self.with_release(charged, || self.charge(charged))?;
        // SAFETY: the layout has a size above zero.
        NonNull::new(unsafe { alloc(layout) }).ok_or(Full).inspect_err(|_| self.discharge(charged))
    }

    /// # Safety
    /// `take_block` gave it for this number of bytes, and no thread reads it any more.
    pub(crate) unsafe fn free_block(&self, start: NonNull<u8>, bytes: usize) {
        let layout = block_layout(bytes);
        // SAFETY: as the caller promises, with the layout it was taken with.
        unsafe { dealloc(start.as_ptr(), layout) };
        self.discharge(layout.size() + BLOCK_OVERHEAD_BYTES);
    }

    /// Frees a block of an index that may already have been dropped.
    ///
    /// # Safety
    /// As for [`Memory::free_block`].
    pub(crate) unsafe fn free_block_of(memory: &Weak<Memory>, start: NonNull<u8>, bytes: usize) {
        match memory.upgrade() {
            // SAFETY: as the caller promises.
            Some(memory) => unsafe { memory.free_block(start, bytes) },
            // SAFETY: as the caller promises, with the layout it was taken with.
            None => unsafe { dealloc(start.as_ptr(), block_layout(bytes)) },
        }
    }
}

fn block_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(8), 8).expect("keys and values have a largest size")
}

impl Shelf {
    /// The chunk that contains an address, and the offset in it.
    fn place(&mut self, address: usize) -> (&mut Chunk, usize) {
        let number = self.chunks.partition_point(|chunk| chunk.start() <= address) - 1;
        let chunk = &mut self.chunks[number];
        let offset = address - chunk.start();
        (chunk, offset)
    }

    fn slab(&mut self, address: usize, shape: Shape) -> &mut Slab {
        let (chunk, offset) = self.place(address);
        &mut chunk.slabs[offset / slab_bytes(shape)]
    }

    /// Node `at` of a slab.
    fn slot(&mut self, slab: usize, at: u16, shape: Shape) -> Slot {
        let (chunk, offset) = self.place(slab);
        let offset = offset + usize::from(at) * shape.bytes();
        assert!(offset + shape.bytes() <= chunk.map.len());
        // SAFETY: inside the mapping, as was just checked, so it is not null. A node is a multiple of 64 bytes, and a
        // mapping begins at a page.
        Slot(unsafe { NonNull::new_unchecked(chunk.map.as_mut_ptr().add(offset).cast()) })
    }

    fn list(&mut self, list: List) -> Option<&mut Vec<usize>> {
        match list {
            List::None => None,
            List::Open => Some(&mut self.open),
            List::Empty => Some(&mut self.empty),
        }
    }

    /// Moves a slab from the list that it was in to the one that it belongs to now.
    fn relist(&mut self, start: usize, before: List, shape: Shape) {
        let (after, place) = {
            let slab = self.slab(start, shape);
            (slab.list(), slab.place as usize)
        };
        if before == after {
            return;
        }
        if let Some(list) = self.list(before) {
            list.swap_remove(place);
            if let Some(&moved) = list.get(place) {
                self.slab(moved, shape).place = place as u32;
            }
        }
        if let Some(list) = self.list(after) {
            list.push(start);
            let place = list.len() - 1;
            self.slab(start, shape).place = place as u32;
        }
    }

    /// Takes a free node: one beside others in use, if there is one, so that empty slabs stay so.
    fn take_free(&mut self, shape: Shape) -> Option<Slot> {
        let start = *self.open.last().or(self.empty.last())?;
        let before = self.slab(start, shape).list();
        let at = self.slab(start, shape).free - 1;
        let slot = self.slot(start, at, shape);
        debug_assert_eq!(slot.word(0).load(Ordering::Relaxed), FREED, "a free node was written to");
        let next = slot.word(1).load(Ordering::Relaxed) as u16;
        let slab = self.slab(start, shape);
        slab.free = next;
        slab.taken += 1;
        self.taken += 1;
        self.relist(start, before, shape);
        Some(slot)
    }

    fn free(&mut self, slot: Slot, shape: Shape) {
        let address = slot.0.addr().get();
        let (_, offset) = self.place(address);
        let in_slab = offset % slab_bytes(shape);
        let start = address - in_slab;
        let slab = self.slab(start, shape);
        let before = slab.list();
        let next = std::mem::replace(&mut slab.free, (in_slab / shape.bytes()) as u16 + 1);
        slab.taken -= 1;
        self.taken -= 1;
        self.relist(start, before, shape);
        slot.word(1).store(next.into(), Ordering::Relaxed);
        if cfg!(debug_assertions) {
            slot.word(0).store(FREED, Ordering::Relaxed);
        }
    }

    /// Cuts a new node, when none is free.
    fn cut_off(&mut self, shape: Shape) -> Result<Slot, Full> {
        let start = match self.cut {
            Some(start) => start,
            None => self.unused_slab(shape)?,
        };
        self.cut = Some(start);
        let slab = self.slab(start, shape);
        let at = slab.cut;
        slab.cut += 1;
        slab.taken += 1;
        if usize::from(slab.cut) == slab_bytes(shape) / shape.bytes() {
            self.cut = None;
        }
        self.taken += 1;
        Ok(self.slot(start, at, shape))
    }

    fn unused_slab(&mut self, shape: Shape) -> Result<usize, Full> {
        if self.unused.is_empty() {
            let bytes = self.chunk_bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
            let map = MmapMut::map_anon(bytes).map_err(|_| Full)?;
            // Reduces TLB misses; without huge pages the advice fails and nothing changes.
            #[cfg(all(target_os = "linux", not(miri)))]
            let _ = map.advise(memmap2::Advice::HugePage);
            let chunk = Chunk { map: map.into(), slabs: vec![Slab::default(); bytes / slab_bytes(shape)] };
            let start = chunk.start();
            self.unused.extend((0..chunk.slabs.len()).rev().map(|slab| start + slab * slab_bytes(shape)));
            self.chunks.insert(self.chunks.partition_point(|other| other.start() < start), chunk);
            self.chunk_bytes = 2 * bytes;
        }
        self.unused.pop().ok_or(Full)
    }

    /// Returns up to `most` slabs without nodes to the system, and returns how many nodes had been cut from them.
    fn release(&mut self, shape: Shape, most: usize) -> usize {
        let mut released = 0;
        for _ in 0..most {
            let Some(&start) = self.empty.last() else { break };
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            let (chunk, offset) = self.place(start);
            if !give_back(&chunk.map, offset, slab_bytes(shape)) {
                break;
            }
            released += usize::from(std::mem::take(&mut chunk.slabs[offset / slab_bytes(shape)]).cut);
            // The last one, so no other changes its place.
            self.empty.pop();
            if self.cut != Some(start) {
                self.unused.push(start);
            }
        }
        released
    }
}

impl Chunk {
    fn start(&self) -> usize {
        self.map.as_ptr().addr()
    }
}

impl Slot {
    /// One of the first 16 words, which all nodes have.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < 16);
        // SAFETY: a slot is a node's memory, which stays mapped as long as the shelf; it is accessed only as atomics.
        unsafe { self.0.add(at).as_ref() }
    }
}

/// Returns pages without nodes to the system; returns whether that succeeded. Afterwards they read as zeros.
#[cfg(all(target_os = "linux", not(miri)))]
fn give_back(map: &MmapRaw, offset: usize, bytes: usize) -> bool {
    // SAFETY: there is no node in it, so nothing is lost; a node cut from it later is filled before it is read.
    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes) }.is_ok()
}

/// On systems that do not guarantee this, pages stay.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn give_back(_: &MmapRaw, _: usize, _: usize) -> bool {
    false
}

/// Prefetches the cache line at an address. Has no other effect.
#[inline(always)]
pub(crate) fn prefetch(address: *const u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is only a hint; it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch is only a hint; it never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dunlin_net::random::Random;

    use super::*;

    fn looked_at(memory: &Memory) -> usize {
        Shape::ALL.iter().map(|&shape| memory.shelf(shape).looked_at).sum()
    }

    /// A PUT that needs the memory of free nodes returns as many slabs as it needs, however many there are.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn giving_slabs_back_is_bounded_by_what_is_needed() {
        let memory = Memory::new(64 << 20);
        let nodes: Vec<Slot> = std::iter::from_fn(|| memory.take_node(Shape::Leaf28).ok()).collect();
        let slabs = nodes.len() * Shape::Leaf28.bytes() / slab_bytes(Shape::Leaf28);
        assert!(slabs >= 16_000, "{slabs} slabs");
        // One node stays in each slab; nothing can be returned, and that is known without a look.
        let (kept, rest): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|slot| slot.0.addr().get().is_multiple_of(slab_bytes(Shape::Leaf28)));
        for slot in rest {
            // SAFETY: it was allocated, and has no readers.
            unsafe { memory.free_node(slot, Shape::Leaf28) };
        }
        assert!(memory.take_block(64).is_err());
        assert_eq!(looked_at(&memory), 0);
        // One slab becomes empty: only that one is looked at.
        let mut kept = kept.into_iter();
        // SAFETY: as above.
        unsafe { memory.free_node(kept.next().expect("one of many"), Shape::Leaf28) };
        let mut blocks = vec![(memory.take_block(64).expect("a slab has room"), 64)];
        assert_eq!(looked_at(&memory), 1);
        for slot in kept {
            // SAFETY: as above.
            unsafe { memory.free_node(slot, Shape::Leaf28) };
        }
        while looked_at(&memory) == 1 {
            blocks.push((memory.take_block(64).expect("a slab has room"), 64));
        }
        assert_eq!(looked_at(&memory), 2);
        blocks.push((memory.take_block(1 << 20).expect("many slabs have room"), 1 << 20));
        assert!(looked_at(&memory) <= 2 + (1 << 20) / slab_bytes(Shape::Leaf28) + 1, "{}", looked_at(&memory));
        for (block, bytes) in blocks {
            // SAFETY: it was allocated with this size, and has no readers.
            unsafe { memory.free_block(block, bytes) };
        }
        assert_eq!(memory.used(), 0);
    }

    /// Allocated nodes do not overlap, all memory is charged, and slabs without nodes can be used for anything.
    #[test]
    fn nodes_are_taken_freed_and_released() {
        const BUDGET: usize = 300_000;
        for seed in 0..20 {
            let (mut random, memory) = (Random::new(seed), Memory::new(BUDGET));
            let mut taken: BTreeMap<usize, (Slot, Shape)> = BTreeMap::new();
            let mut refused = 0;
            for step in 0..20_000 {
                // Mostly one shape at a time, in phases of growth and shrinkage.
                let shape = Shape::ALL[if random.chance(0.1) { random.below(4) } else { step / 3000 % 4 } as usize];
                if random.chance(if step % 3000 < 1500 { 0.8 } else { 0.1 }) {
                    let Ok(slot) = memory.take_node(shape) else {
                        refused += 1;
                        continue;
                    };
                    let address = slot.0.addr().get();
                    assert!(address.is_multiple_of(64));
                    let before = taken.range(..address).next_back();
                    assert!(before.is_none_or(|(start, (_, shape))| start + shape.bytes() <= address), "seed {seed}");
                    let next = taken.range(address..).next();
                    assert!(next.is_none_or(|(start, _)| address + shape.bytes() <= *start), "seed {seed}");
                    (0..shape.words()).for_each(|at| {
                        // SAFETY: a slot has the words of its shape, and this test owns it.
                        unsafe { slot.0.add(at).as_ref() }.store(u64::MAX, Ordering::Relaxed);
                    });
                    taken.insert(address, (slot, shape));
                } else if !taken.is_empty() {
                    let (&address, _) =
                        taken.iter().nth(random.below(taken.len() as u64) as usize).expect("one of them");
                    let (slot, shape) = taken.remove(&address).expect("it was there");
                    // SAFETY: it was allocated, and has no readers.
                    unsafe { memory.free_node(slot, shape) };
                }
                let used: usize = taken.values().map(|(_, shape)| shape.bytes()).sum();
                assert_eq!(memory.used(), used, "seed {seed}");
                assert!(memory.held.load(Ordering::Relaxed) <= BUDGET, "seed {seed}");
            }
            assert!(refused > 0, "seed {seed}");
            for (slot, shape) in taken.into_values() {
                // SAFETY: as above.
                unsafe { memory.free_node(slot, shape) };
            }
            assert_eq!(memory.used(), 0);
            #[cfg(all(target_os = "linux", not(miri)))]
            {
                let block = memory.take_block(BUDGET - BLOCK_OVERHEAD_BYTES).expect("nothing else is left");
                // SAFETY: it was allocated with this size, and has no readers.
                unsafe { memory.free_block(block, BUDGET - BLOCK_OVERHEAD_BYTES) };
            }
            assert!(Shape::ALL.iter().all(|&shape| memory.nodes(shape) == 0));
        }
    }
}
