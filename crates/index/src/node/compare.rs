//! Counts how many of the eight words of a line are at most a number: every look-up does it twice per interior node.
//!
//! With AVX-512 it is one comparison of the whole line. Rust has no vector load of atomics to which other threads
//! store, so this one is in assembly, which the compiler treats as eight relaxed loads in any order. They need not be
//! one access: the version of the node is compared afterwards, as for all loads. Other processors search the words one
//! by one.

use std::sync::atomic::{AtomicU64, Ordering};

/// The words of a cache line.
pub(super) type Line = [AtomicU64; 8];

/// Detects which method the processor supports. Until then the words are searched one by one.
pub(super) fn detect() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    vector::HAS_AVX512.store(std::arch::is_x86_feature_detected!("avx512f"), Ordering::Relaxed);
}

/// How many of the words are at most `bits`. The words ascend, except for the first `skipped` (0 or 1), which are not
/// counted.
#[inline(always)]
pub(super) fn at_most(line: &Line, skipped: usize, bits: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if vector::HAS_AVX512.load(Ordering::Relaxed) {
        return (vector::at_most(line, bits) >> skipped).trailing_ones() as usize;
    }
    one_by_one(line, skipped, bits)
}

/// A binary search without data-dependent branches.
#[inline(always)]
fn one_by_one(line: &Line, skipped: usize, bits: u64) -> usize {
    let is_at_most = |at: usize| usize::from(line[at & 7].load(Ordering::Relaxed) <= bits);
    let mut found = 4 * is_at_most(skipped + 3);
    found += 2 * is_at_most(skipped + found + 1);
    found += is_at_most(skipped + found);
    // Three steps tell seven of the eight words apart.
    if skipped == 0 { found + (found / 7) * is_at_most(7) } else { found }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use std::sync::atomic::AtomicBool;

    use super::Line;

    /// Set by [`detect`](super::detect): cheaper to read than the standard library's feature detection.
    pub(super) static HAS_AVX512: AtomicBool = AtomicBool::new(false);

    /// Bit `i` says whether word `i` is at most `bits`. The processor must have AVX-512.
    #[inline(always)]
    pub(super) fn at_most(line: &Line, bits: u64) -> u32 {
        let mask: u32;
        // SAFETY: reads only the 64 bytes of the line, as relaxed loads of its words would; the caller has checked that
        // the processor has the instructions. Using register 16 avoids slowing down SSE code, which only knows
        // registers up to 15.
        unsafe {
            std::arch::asm!(
                "vpbroadcastq zmm16, {bits}",
                "vpcmpuq k1, zmm16, zmmword ptr [{line}], 5",
                "kmovw {mask:e}, k1",
                bits = in(reg) bits,
                line = in(reg) line.as_ptr(),
                mask = lateout(reg) mask,
                out("xmm16") _,
                out("k1") _,
                options(nostack, preserves_flags, readonly),
            );
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_the_same() {
        for words in
            [[0, 1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 1 << 63, u64::MAX - 1, u64::MAX, u64::MAX], [u64::MAX; 8], [0; 8]]
        {
            let line: Line = words.map(AtomicU64::new);
            for bits in words.into_iter().flat_map(|word: u64| [word.wrapping_sub(1), word, word.wrapping_add(1)]) {
                for skipped in [0, 1] {
                    let expected = words[skipped..].iter().filter(|&&word| word <= bits).count();
                    assert_eq!(one_by_one(&line, skipped, bits), expected, "{words:x?} {bits:x}");
                    assert_eq!(at_most(&line, skipped, bits), expected, "{words:x?} {bits:x}");
                }
            }
        }
    }
}
