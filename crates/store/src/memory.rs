//! The memory of a partition: one mapping, seen as cache lines, words or bytes.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use crate::config::Prefault;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Words of a cache line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES / 8;

/// A cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; LINE_BYTES]);

/// Zeroed memory of a fixed size, aligned to a page.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory, and nothing else refers to it; sharing permits reads only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `bytes` from the system, a multiple of 4096 above zero.
    pub(crate) fn new(bytes: usize, prefault: Prefault) -> io::Result<Memory> {
        assert!(bytes > 0 && bytes.is_multiple_of(4096), "memory comes in pages");
        let memory = Memory { start: system::take(bytes)?, bytes };
        if prefault == Prefault::AtStart {
            system::prefault(memory.start, bytes);
        }
        Ok(memory)
    }

    #[inline(always)]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: `start` is aligned to 64, and this many bytes behind it are initialized (zeroed at first, then
        // written through these views); the borrow of self excludes writers. Any bytes are a valid line.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.bytes / LINE_BYTES) }
    }

    #[inline(always)]
    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as for `lines`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast().as_ptr(), self.bytes / LINE_BYTES) }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: as for `lines`; any bytes are a valid word.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.bytes / 8) }
    }

    #[inline(always)]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as for `words`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast().as_ptr(), self.bytes / 8) }
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as for `lines`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Prefetches the cache line at an offset. Has no other effect.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: usize) {
        let address = self.start.as_ptr().wrapping_add(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch is only a hint; it faults on no address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: a prefetch is only a hint; it faults on no address.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = address;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `take` returned it for this number of bytes, and nothing refers to it any more.
        unsafe { system::give_back(self.start, self.bytes) };
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn take(bytes: usize) -> io::Result<NonNull<u8>> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping at any address touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is this mapping; advice does not change contents, and only fails if there are no huge
        // pages.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        NonNull::new(start.cast()).ok_or_else(|| io::Error::other("the mapping starts at address zero"))
    }

    /// Allocates all pages now.
    pub(super) fn prefault(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the range is a mapping of `take`; populating does not change contents.
        if unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return;
        }
        for offset in (0..bytes).step_by(4096) {
            // SAFETY: inside the mapping, which is new, so all its pages are zeros and stay so.
            unsafe { start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// # Safety
    /// `take` returned it for the same number of bytes, and nothing refers to it any more.
    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
        // SAFETY: as the caller guarantees.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn take(bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: the layout has a size above zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn prefault(_: NonNull<u8>, _: usize) {}

    /// # Safety
    /// `take` returned it for the same number of bytes, and nothing refers to it any more.
    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = layout(bytes) {
            // SAFETY: as the caller guarantees, with the layout that `take` used.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }

    fn layout(bytes: usize) -> io::Result<Layout> {
        Layout::from_size_align(bytes, 4096).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_views_show_the_same_zeroed_memory() {
        for prefault in [Prefault::AsNeeded, Prefault::AtStart] {
            let mut memory = Memory::new(8192, prefault).expect("two pages");
            assert_eq!((memory.lines().len(), memory.words().len(), memory.bytes().len()), (128, 1024, 8192));
            assert!(memory.bytes().iter().all(|&byte| byte == 0));
            memory.words_mut()[8] = u64::from_le(0x0102);
            memory.bytes_mut()[127] = 7;
            memory.lines_mut()[1].0[2] = 9;
            let line = memory.lines()[1];
            assert_eq!((line.0[..3].to_vec(), line.0[63]), (vec![2, 1, 9], 7));
            memory.prefetch(64);
        }
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        if cfg!(not(miri)) {
            assert!(Memory::new(1 << 60, Prefault::AsNeeded).is_err());
        }
    }
}
