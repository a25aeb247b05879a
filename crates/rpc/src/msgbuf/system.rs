//! Memory from the system: small pieces from the allocator, large ones as mappings of their own.
//!
//! A large buffer is zero without being written, and takes memory only where it is touched. So a peer that announces a
//! large message cannot make us clear memory for it.

use std::ptr::NonNull;

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Pieces of this size and larger are mapped, if the system supports it.
pub(super) const MAPPED_BYTES_MIN: usize = 128 << 10;
/// From this size on the kernel is asked for huge pages.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Takes `bytes` zeroed bytes, aligned to 64; `None` if there is no memory.
pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= MAPPED_BYTES_MIN {
        return map(bytes);
    }
    // SAFETY: the layout has a size above zero.
    NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
}

/// Frees what [`take`] returned for the same number of bytes.
///
/// # Safety
/// `start` came from there, and is not used any more.
pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= MAPPED_BYTES_MIN {
        // SAFETY: `map` made this mapping, and the caller does not use it any more.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        return;
    }
    // SAFETY: as the caller promises, with the layout that `take` used.
    unsafe { dealloc(start.as_ptr(), layout(bytes)) }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).expect("buffers are small enough for a layout")
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, anywhere, touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    if bytes >= HUGE_PAGE_BYTES {
        // SAFETY: the range is this mapping; advice changes no contents, and its failure does not matter.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(start.cast())
}
