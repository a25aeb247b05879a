//! Asking the processor to fetch memory before it is needed.

/// Prefetches the cache line at the start of `value` for reading. Has no other effect.
#[inline(always)]
pub(crate) fn read<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is only a hint, and this one is even valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((value as *const T).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
