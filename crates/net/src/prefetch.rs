//! Tells the processor to fetch memory before it is needed.

/// Prefetches the cache line at the start of `value`. Has no other effect.
#[inline(always)]
pub fn read<T: ?Sized>(value: &T) {
    address(std::ptr::from_ref(value).cast());
}

/// Prefetches every cache line of `value`, which must start at a cache line.
#[inline(always)]
pub fn read_lines<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(64) {
        address(start.wrapping_add(offset));
    }
}

#[inline(always)]
pub(crate) fn address(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is only a hint; it faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
