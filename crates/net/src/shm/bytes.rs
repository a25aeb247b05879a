//! Copying to and from memory that another process may write at the same time.
//!
//! The compiler must assume nothing about such memory: two reads of a value may differ. So it is never a slice. It is
//! copied by machine instructions that stand outside the compiler's memory model (or, on other processors and under
//! Miri, by relaxed atomic loads and stores), and only the private copy is checked.

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
    /// They must stay mapped and readable for `'a`. Other processes may write them at any time.
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

    /// All but the first `count` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn skip(self, count: usize) -> Self {
        assert!(count <= self.len, "skip past the end of shared bytes");
        // SAFETY: the rest is part of the range whose validity the caller of `new` promised.
        unsafe { SharedBytes::new(self.start.add(count), self.len - count) }
    }

    /// Copies `to.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "copy past the end of shared bytes");
        // SAFETY: the range was checked against `len`, and the caller of `new` promised that it is mapped.
        unsafe { read_shared(self.start.as_ptr().add(offset), to) }
    }
}

/// Fills `to` from shared memory. If another process writes there meanwhile, the bytes are arbitrary, and nothing else
/// happens.
///
/// # Safety
/// `to.len()` bytes must be mapped from `from` on, outside `to`.
#[inline]
pub(crate) unsafe fn read_shared(from: *const u8, to: &mut [u8]) {
    // SAFETY: as the caller promises, and `to` is writable.
    unsafe { imp::read(from, to.as_mut_ptr(), to.len()) }
}

/// Copies `from` to shared memory, where other processes may read and write meanwhile.
///
/// # Safety
/// `from.len()` bytes must be mapped from `to` on, outside `from`.
#[inline]
pub(crate) unsafe fn write_shared(from: &[u8], to: *mut u8) {
    // SAFETY: as the caller promises, and `from` is readable.
    unsafe { imp::write(from.as_ptr(), to, from.len()) }
}

/// Instructions that the compiler cannot look into.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use std::arch::asm;

    /// Copies up to this length use 16-byte moves; starting `rep movsb` costs more than that.
    const SHORT_MAX: usize = 256;

    pub(super) use copy as read;
    pub(super) use copy as write;

    /// # Safety
    /// `from` must be readable and `to` writable for `len` bytes, and they must not overlap.
    #[inline(always)]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: every branch stays within `len` bytes of both sides.
        unsafe {
            if len > SHORT_MAX {
                asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                    options(nostack, preserves_flags));
            } else if len > 64 {
                let mut at = 0;
                while at + 16 <= len {
                    move_16(from.add(at), to.add(at));
                    at += 16;
                }
                // The last move overlaps the one before, here and below, so that no length needs a tail of bytes.
                move_16(from.add(len - 16), to.add(len - 16));
            } else if len >= 16 {
                move_16(from, to);
                if len > 32 {
                    move_16(from.add(16), to.add(16));
                    move_16(from.add(len - 32), to.add(len - 32));
                }
                move_16(from.add(len - 16), to.add(len - 16));
            } else if len >= 8 {
                move_8(from, to);
                move_8(from.add(len - 8), to.add(len - 8));
            } else {
                for at in 0..len {
                    move_1(from.add(at), to.add(at));
                }
            }
        }
    }

    /// # Safety
    /// 16 bytes must be readable at `from` and writable at `to`.
    #[inline(always)]
    unsafe fn move_16(from: *const u8, to: *mut u8) {
        // SAFETY: as the caller promises; any alignment will do.
        unsafe {
            asm!("movups {t}, [{f}]", "movups [{d}], {t}", t = out(xmm_reg) _, f = in(reg) from, d = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// 8 bytes must be readable at `from` and writable at `to`.
    #[inline(always)]
    unsafe fn move_8(from: *const u8, to: *mut u8) {
        // SAFETY: as the caller promises; any alignment will do.
        unsafe {
            asm!("mov {t}, qword ptr [{f}]", "mov qword ptr [{d}], {t}", t = out(reg) _, f = in(reg) from, d = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// 1 byte must be readable at `from` and writable at `to`.
    #[inline(always)]
    unsafe fn move_1(from: *const u8, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            asm!("mov {t}, byte ptr [{f}]", "mov byte ptr [{d}], {t}", t = out(reg_byte) _, f = in(reg) from, d = in(reg) to,
                options(nostack, preserves_flags));
        }
    }
}

/// Relaxed atomics on the shared side: words where it is aligned, then bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    /// # Safety
    /// As [`super::read_shared`].
    #[inline]
    pub(super) unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
        let mut at = 0;
        // SAFETY: each access is in range by its loop's condition and aligned by the check before.
        unsafe {
            while from.add(at).cast::<u64>().is_aligned() && at + 8 <= len {
                to.add(at).cast::<u64>().write_unaligned((*from.add(at).cast::<AtomicU64>()).load(Relaxed));
                at += 8;
            }
            while at < len {
                to.add(at).write((*from.add(at).cast::<AtomicU8>()).load(Relaxed));
                at += 1;
            }
        }
    }

    /// # Safety
    /// As [`super::write_shared`].
    #[inline]
    pub(super) unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
        let mut at = 0;
        // SAFETY: each access is in range by its loop's condition and aligned by the check before.
        unsafe {
            while to.add(at).cast::<u64>().is_aligned() && at + 8 <= len {
                (*to.add(at).cast::<AtomicU64>()).store(from.add(at).cast::<u64>().read_unaligned(), Relaxed);
                at += 8;
            }
            while at < len {
                (*to.add(at).cast::<AtomicU8>()).store(from.add(at).read(), Relaxed);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_and_alignment() {
        let lens: Vec<usize> =
            if cfg!(miri) { vec![0, 1, 7, 8, 17, 64, 129] } else { (0..300).chain([500, 511]).collect() };
        let mut from: Vec<u8> = (0..600).map(|i| i as u8).collect();
        for offset in [0, 1, 7, 8, 64] {
            for &len in &lens {
                let expected = from[offset..offset + len].to_vec();
                let mut written = vec![0xee; len + 2];
                // SAFETY: there is room for `len` bytes after the first.
                unsafe { write_shared(&expected, written.as_mut_ptr().add(1)) };
                assert_eq!((&written[1..len + 1], written[0], written[len + 1]), (&expected[..], 0xee, 0xee));
                // SAFETY: `from` outlives the value.
                let shared = unsafe { SharedBytes::new(NonNull::from(&mut from[..]).cast(), from.len()) };
                let mut to = vec![0xee; len + 2];
                shared.copy_to(offset, &mut to[1..len + 1]);
                assert_eq!(&to[1..len + 1], &expected, "{offset} {len}");
                assert_eq!((to[0], to[len + 1]), (0xee, 0xee));
            }
        }
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn refuses_to_read_past_the_end() {
        let mut from = [0u8; 8];
        // SAFETY: `from` outlives the value.
        let shared = unsafe { SharedBytes::new(NonNull::from(&mut from[..]).cast(), from.len()) };
        shared.copy_to(4, &mut [0; 5]);
    }
}
