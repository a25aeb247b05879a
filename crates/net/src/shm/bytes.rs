//! Copying to and from memory that another process may write at the same time.
//!
//! The compiler must believe nothing of such memory: a value read twice may differ. So it is never a slice. It is copied by
//! single machine instructions that stand outside the compiler's memory model (or, on other processors and under Miri, by
//! relaxed atomic loads and stores), and all that is checked is the private copy.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes in shared memory, readable by copying only.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a ()>,
}

impl<'a> SharedBytes<'a> {
    /// Bytes `start .. start + len` of a mapping.
    ///
    /// # Safety
    /// They must stay mapped and readable for `'a`. Others may write them at any time.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        SharedBytes { start, len, region: PhantomData }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `to.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "copy past the end of shared bytes");
        // SAFETY: the range was checked against `len`, and `new` promised that it is mapped; `to` is private.
        unsafe { copy_racing(self.start.as_ptr().add(offset), to.as_mut_ptr(), to.len()) }
    }
}

/// Copies `len` bytes of which either side may be written by another process meanwhile.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap. Within this process nothing else may
/// access the private side meanwhile.
#[inline]
pub(crate) unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller gives both ranges. The instruction is opaque to the compiler, so a racing writer can make the copied
    // bytes arbitrary, which callers expect, and nothing else.
    unsafe {
        if len <= 128 {
            copy_racing_words(from, to, len);
        } else {
            std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as the caller promises.
    unsafe {
        copy_racing_words(from, to, len)
    }
}

/// The same by relaxed atomic words, then bytes.
///
/// # Safety
/// As [`copy_racing`].
#[inline]
unsafe fn copy_racing_words(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
    let mut at = 0;
    // Word accesses need both sides equally aligned; packets and message buffers are, in the common case.
    if (from as usize).is_multiple_of(8) && (to as usize).is_multiple_of(8) {
        while at + 8 <= len {
            // SAFETY: in range by the loop's condition, aligned by the one above.
            unsafe {
                let word = (*(from.add(at) as *const AtomicU64)).load(Relaxed);
                (*(to.add(at) as *const AtomicU64)).store(word, Relaxed);
            }
            at += 8;
        }
    }
    while at < len {
        // SAFETY: in range by the loop's condition.
        unsafe {
            let byte = (*(from.add(at) as *const AtomicU8)).load(Relaxed);
            (*(to.add(at) as *const AtomicU8)).store(byte, Relaxed);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_and_alignment() {
        let from: Vec<u8> = (0..600).map(|i| i as u8).collect();
        for offset in [0, 1, 7, 8, 64] {
            for len in [0, 1, 7, 8, 9, 63, 64, 127, 128, 129, 256, 500] {
                // SAFETY: `from` outlives the value.
                let shared = unsafe { SharedBytes::new(NonNull::from(&from[0]), from.len()) };
                let mut to = vec![0xee; len + 2];
                shared.copy_to(offset, &mut to[1..len + 1]);
                assert_eq!(&to[1..len + 1], &from[offset..offset + len]);
                assert_eq!((to[0], to[len + 1]), (0xee, 0xee));
            }
        }
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn refuses_to_read_past_the_end() {
        let from = [0u8; 8];
        // SAFETY: `from` outlives the value.
        let shared = unsafe { SharedBytes::new(NonNull::from(&from[0]), from.len()) };
        shared.copy_to(4, &mut [0; 5]);
    }
}
