//! Counts how many of the eight words of a line are at most a number: every look-up does it twice per interior node.
//!
//! With AVX-512 it is one comparison of the whole line, with SSE4.2 four of 16 bytes each. Rust has no vector load of
//! atomics to which other threads store, so both are in assembly, which the compiler treats as eight relaxed loads in
//! any order. They need not be one access: the version of the node is compared afterwards, as for all loads. Other
//! processors search the words one by one.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The words of a cache line.
pub(super) type Line = [AtomicU64; 8];

/// The instructions with which all indexes of this process compare keys in interior nodes.
///
/// Each index uses the best that the processor has. [`Vectors::select`] is for measurements of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// A binary search, without vectors.
    Scalar,
    /// Four comparisons for each cache line. Nearly every x86-64 has them.
    Sse42,
    /// One comparison for each cache line.
    Avx512,
}

/// What is used: 0 until it is detected, else one more than the number of a [`Vectors`].
static USED: AtomicU8 = AtomicU8::new(0);

impl Vectors {
    /// The best that this processor has.
    pub fn best() -> Vectors {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Vectors::Avx512;
            }
            if std::arch::is_x86_feature_detected!("sse4.2") {
                return Vectors::Sse42;
            }
        }
        Vectors::Scalar
    }

    /// Makes all indexes of this process use these from now on, or the best that the processor has if it does not have
    /// these. Returns whether it has them.
    pub fn select(self) -> bool {
        let used = self.min(Vectors::best());
        USED.store(1 + used as u8, Ordering::Relaxed);
        used == self
    }
}

/// Detects which method the processor supports, unless one is selected. Until then the words are searched one by one.
pub(super) fn detect() {
    // If two threads are first, both store the same.
    let _ = USED.compare_exchange(0, 1 + Vectors::best() as u8, Ordering::Relaxed, Ordering::Relaxed);
}

/// How many of the words are at most `bits`, as signed numbers. The words ascend, except for the first `skipped` (0 or
/// 1), which are not counted.
#[inline(always)]
pub(super) fn at_most(line: &Line, skipped: usize, bits: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    match USED.load(Ordering::Relaxed) {
        AVX512 => return (vector::at_most_avx512(line, bits) >> skipped).trailing_ones() as usize,
        SSE42 => {
            // Two bits for each word, and one behind the last.
            let above = vector::above_sse42(line, bits) | 1 << 16;
            return (above >> (2 * skipped)).trailing_zeros() as usize / 2;
        }
        _ => {}
    }
    one_by_one(line, skipped, bits)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
const AVX512: u8 = 1 + Vectors::Avx512 as u8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SSE42: u8 = 1 + Vectors::Sse42 as u8;

/// A binary search without data-dependent branches.
#[inline(always)]
fn one_by_one(line: &Line, skipped: usize, bits: u64) -> usize {
    let is_at_most = |at: usize| usize::from(line[at & 7].load(Ordering::Relaxed) as i64 <= bits as i64);
    let mut found = 4 * is_at_most(skipped + 3);
    found += 2 * is_at_most(skipped + found + 1);
    found += is_at_most(skipped + found);
    // Three steps tell seven of the eight words apart.
    if skipped == 0 { found + (found / 7) * is_at_most(7) } else { found }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use super::Line;

    /// Bit `i` says whether word `i` is at most `bits`. The processor must have AVX-512.
    #[inline(always)]
    pub(super) fn at_most_avx512(line: &Line, bits: u64) -> u32 {
        let mask: u32;
        // SAFETY: reads only the 64 bytes of the line, as relaxed loads of its words would; the caller has checked that
        // the processor has the instructions. Using register 16 avoids slowing down SSE code, which only knows
        // registers up to 15.
        unsafe {
            std::arch::asm!(
                "vpbroadcastq zmm16, {bits}",
                "vpcmpq k1, zmm16, zmmword ptr [{line}], 5",
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

    /// Bits `2 i` and `2 i + 1` say whether word `i` is above `bits`. The processor must have SSE4.2.
    #[inline(always)]
    pub(super) fn above_sse42(line: &Line, bits: u64) -> u32 {
        let mask: u32;
        // SAFETY: reads only the 64 bytes of the line, as relaxed loads of its words would. A line of a node
        // is aligned to 64 bytes. The caller has checked that the processor has the instructions.
        unsafe {
            std::arch::asm!(
                "movq {key}, {bits}",
                "punpcklqdq {key}, {key}",
                "movdqa {a}, xmmword ptr [{line}]",
                "movdqa {b}, xmmword ptr [{line} + 16]",
                "movdqa {c}, xmmword ptr [{line} + 32]",
                "movdqa {d}, xmmword ptr [{line} + 48]",
                "pcmpgtq {a}, {key}",
                "pcmpgtq {b}, {key}",
                "pcmpgtq {c}, {key}",
                "pcmpgtq {d}, {key}",
                // From 64 bits for each word to 16, then to 8 for each half.
                "packssdw {a}, {b}",
                "packssdw {c}, {d}",
                "packsswb {a}, {c}",
                "pmovmskb {mask:e}, {a}",
                bits = in(reg) bits,
                line = in(reg) line.as_ptr(),
                mask = lateout(reg) mask,
                key = out(xmm_reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags, readonly),
            );
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as it stands in a node.
    #[repr(align(64))]
    struct Aligned(Line);

    const MAX: u64 = i64::MAX as u64;

    #[test]
    fn all_ways_count_the_same() {
        for words in
            [[0, 1, 2, 3, 4, 5, 6, 7], [1 << 63, u64::MAX, 0, 5, 6, 7, MAX - 1, MAX], [u64::MAX; 8], [MAX; 8], [0; 8]]
        {
            let Aligned(line) = &Aligned(words.map(AtomicU64::new));
            for bits in words.into_iter().flat_map(|word: u64| [word.wrapping_sub(1), word, word.wrapping_add(1)]) {
                for skipped in [0, 1] {
                    let expected = words[skipped..].iter().filter(|&&word| word as i64 <= bits as i64).count();
                    assert_eq!(one_by_one(line, skipped, bits), expected, "{words:x?} {bits:x}");
                    // Tests of this program run at the same time, with whatever is selected: each gives the same.
                    for vectors in [Vectors::Scalar, Vectors::Sse42, Vectors::Avx512] {
                        vectors.select();
                        assert_eq!(at_most(line, skipped, bits), expected, "{vectors:?} {words:x?} {bits:x}");
                    }
                }
            }
        }
        assert!(Vectors::best().select());
    }
}
