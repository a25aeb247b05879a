//! Compares a number with the words of a cache line, and a byte with its bytes.
//!
//! Every look-up does it twice in each interior node and once in a leaf. Rust has no vector load of atomics to which
//! other threads store, so the comparisons are in assembly, which the compiler treats as relaxed loads of the words in
//! any order. They need not be one access: the version of the node is compared afterwards, as for all loads.
//!
//! A [`Task`] is compiled once for each [`Search`], with the instructions that come with it for counting bits, and
//! chooses one of them at its beginning.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The words of a cache line.
#[repr(align(64))]
pub(crate) struct Line([AtomicU64; 8]);

/// The instructions with which all indexes of this process search nodes, with those for counting bits that come with
/// them.
///
/// Each index uses the best that the processor has. [`Vectors::select`] is for measurements of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// A binary search in interior nodes, without vectors.
    Scalar,
    /// Four comparisons for each cache line. Nearly every x86-64 has them.
    Sse42,
    /// Two comparisons for each cache line.
    Avx2,
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
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt") {
                return if has!("avx512f") { Vectors::Avx512 } else { Vectors::Avx2 };
            }
            if has!("sse4.2") && has!("popcnt") {
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

/// Detects which vectors the processor has, unless some are selected. Until then none are used.
pub(super) fn detect() {
    // If two threads are first, both store the same.
    let _ = USED.compare_exchange(0, 1 + Vectors::best() as u8, Ordering::Relaxed, Ordering::Relaxed);
}

/// A way to search a node.
pub(crate) trait Search {
    /// How many of the words 1 to 7 of a line are below `key`, as signed numbers. They ascend.
    fn below(line: &Line, key: &u64) -> usize;

    /// Which of the 28 bytes from word 1 on equal `byte`, as bits. Higher bits are undefined.
    fn equal_bytes(line: &Line, byte: u8) -> u32;
}

/// Something that searches nodes.
pub(crate) trait Task {
    type Output;

    /// Must be inlined always, with all that it calls for each node.
    fn run<S: Search>(self) -> Self::Output;
}

/// Runs a task with the selected vectors.
#[inline(always)]
pub(crate) fn search<T: Task>(task: T) -> T::Output {
    // SAFETY: only those that were detected are selected.
    unsafe { search_with(USED.load(Ordering::Relaxed), task) }
}

/// Runs a task with vectors by their number in [`USED`].
///
/// # Safety
/// The processor has them.
#[inline(always)]
unsafe fn search_with<T: Task>(used: u8, task: T) -> T::Output {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    match used {
        // SAFETY: as the caller promises.
        vector::AVX512 => return unsafe { vector::with_avx512(task) },
        // SAFETY: as above.
        vector::AVX2 => return unsafe { vector::with_avx2(task) },
        // SAFETY: as above.
        vector::SSE42 => return unsafe { vector::with_sse42(task) },
        _ => {}
    }
    task.run::<Scalar>()
}

/// Byte `at` of a line. It must be below 64.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) fn byte(line: &Line, at: usize) -> u8 {
    debug_assert!(at < 64);
    let byte: u32;
    // SAFETY: reads only one byte of the line, as a relaxed load of its word would. Rust does not mix sizes of atomics.
    unsafe {
        std::arch::asm!(
            "movzx {byte:e}, byte ptr [{line} + {at}]",
            line = in(reg) line.0.as_ptr(),
            at = in(reg) at,
            byte = lateout(reg) byte,
            options(nostack, preserves_flags, readonly),
        );
    }
    byte as u8
}

/// Byte `at` of a line. It must be below 64.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn byte(line: &Line, at: usize) -> u8 {
    line.0[at / 8].load(Ordering::Relaxed).to_le_bytes()[at % 8]
}

/// Without vectors in interior nodes.
pub(crate) struct Scalar;

impl Search for Scalar {
    /// A binary search without data-dependent branches.
    #[inline(always)]
    fn below(line: &Line, key: &u64) -> usize {
        let is_below = |at: usize| usize::from((line.0[at & 7].load(Ordering::Relaxed) as i64) < *key as i64);
        let mut found = 4 * is_below(4);
        found += 2 * is_below(found + 2);
        found + is_below(found + 1)
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn equal_bytes(line: &Line, byte: u8) -> u32 {
        vector::equal_bytes_sse2(line, byte)
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn equal_bytes(line: &Line, byte: u8) -> u32 {
        let bytes = line.0[1..5].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.enumerate().fold(0, |mask, (at, there)| mask | u32::from(there == byte) << at)
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use std::arch::asm;

    use super::{Line, Search, Task, Vectors};

    pub(super) const SSE42: u8 = 1 + Vectors::Sse42 as u8;
    pub(super) const AVX2: u8 = 1 + Vectors::Avx2 as u8;
    pub(super) const AVX512: u8 = 1 + Vectors::Avx512 as u8;

    #[target_feature(enable = "sse4.2,popcnt")]
    pub(super) fn with_sse42<T: Task>(task: T) -> T::Output {
        task.run::<Sse42>()
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn with_avx2<T: Task>(task: T) -> T::Output {
        let _clean = CleanUp;
        task.run::<Avx2>()
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn with_avx512<T: Task>(task: T) -> T::Output {
        let _clean = CleanUp;
        task.run::<Avx512>()
    }

    /// Clears the upper halves of registers, which slow down SSE code on some processors: the compiler does not know
    /// that the assembly uses them.
    struct CleanUp;

    impl Drop for CleanUp {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: the processor has AVX2, and the compiler keeps no value in any of these registers.
            unsafe {
                asm!(
                    "vzeroupper",
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack, nomem, preserves_flags),
                );
            }
        }
    }

    /// The processor must have SSE4.2.
    struct Sse42;

    impl Search for Sse42 {
        #[inline(always)]
        fn below(line: &Line, key: &u64) -> usize {
            let mask: u32;
            // SAFETY: reads only the 64 bytes of the line, which is aligned, as relaxed loads of its words would. The
            // processor has the instructions.
            unsafe {
                asm!(
                    "movq {d}, qword ptr [{key}]",
                    "punpcklqdq {d}, {d}",
                    "movdqa {a}, {d}",
                    "movdqa {b}, {d}",
                    "movdqa {c}, {d}",
                    "pcmpgtq {a}, xmmword ptr [{line}]",
                    "pcmpgtq {b}, xmmword ptr [{line} + 16]",
                    "pcmpgtq {c}, xmmword ptr [{line} + 32]",
                    "pcmpgtq {d}, xmmword ptr [{line} + 48]",
                    // From 64 bits for each word to 16, then to 8 for each half.
                    "packssdw {a}, {b}",
                    "packssdw {c}, {d}",
                    "packsswb {a}, {c}",
                    "pmovmskb {mask:e}, {a}",
                    key = in(reg) key,
                    line = in(reg) line.0.as_ptr(),
                    mask = lateout(reg) mask,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags, readonly),
                );
            }
            // Two bits for each word. That of word 0 does not count.
            ((mask & !0x3).count_ones() / 2) as usize
        }

        #[inline(always)]
        fn equal_bytes(line: &Line, byte: u8) -> u32 {
            equal_bytes_sse2(line, byte)
        }
    }

    /// The processor must have AVX2.
    struct Avx2;

    impl Search for Avx2 {
        #[inline(always)]
        fn below(line: &Line, key: &u64) -> usize {
            let mask: u32;
            // SAFETY: as above.
            unsafe {
                asm!(
                    "vpbroadcastq {b:y}, qword ptr [{key}]",
                    "vpcmpgtq {a:y}, {b:y}, ymmword ptr [{line}]",
                    "vpcmpgtq {b:y}, {b:y}, ymmword ptr [{line} + 32]",
                    "vpackssdw {a:y}, {a:y}, {b:y}",
                    "vpmovmskb {mask:e}, {a:y}",
                    key = in(reg) key,
                    line = in(reg) line.0.as_ptr(),
                    mask = lateout(reg) mask,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    options(nostack, preserves_flags, readonly),
                );
            }
            // Four bits for each word, those of word 0 first, which does not count. The words are not in order.
            ((mask & !0xf).count_ones() / 4) as usize
        }

        #[inline(always)]
        fn equal_bytes(line: &Line, byte: u8) -> u32 {
            equal_bytes_avx2(line, byte)
        }
    }

    /// The processor must have AVX-512 and AVX2.
    struct Avx512;

    impl Search for Avx512 {
        #[inline(always)]
        fn below(line: &Line, key: &u64) -> usize {
            let mask: u32;
            // SAFETY: as above. Using register 16 avoids slowing down SSE code, which only knows registers up to 15.
            unsafe {
                asm!(
                    "vpbroadcastq zmm16, qword ptr [{key}]",
                    "vpcmpgtq k1, zmm16, zmmword ptr [{line}]",
                    "kmovw {mask:e}, k1",
                    key = in(reg) key,
                    line = in(reg) line.0.as_ptr(),
                    mask = lateout(reg) mask,
                    out("xmm16") _,
                    out("k1") _,
                    options(nostack, preserves_flags, readonly),
                );
            }
            (mask & 0xfe).count_ones() as usize
        }

        #[inline(always)]
        fn equal_bytes(line: &Line, byte: u8) -> u32 {
            equal_bytes_avx2(line, byte)
        }
    }

    /// The processor must have AVX2.
    #[inline(always)]
    fn equal_bytes_avx2(line: &Line, byte: u8) -> u32 {
        let mask: u32;
        // SAFETY: reads only 32 bytes of the line, as relaxed loads of its words would. The processor has the
        // instructions.
        unsafe {
            asm!(
                "vmovd {a}, {byte:e}",
                "vpbroadcastb {a:y}, {a}",
                "vpcmpeqb {a:y}, {a:y}, ymmword ptr [{line} + 8]",
                "vpmovmskb {mask:e}, {a:y}",
                byte = in(reg) u32::from(byte),
                line = in(reg) line.0.as_ptr(),
                mask = lateout(reg) mask,
                a = out(xmm_reg) _,
                options(nostack, preserves_flags, readonly),
            );
        }
        mask
    }

    #[inline(always)]
    pub(super) fn equal_bytes_sse2(line: &Line, byte: u8) -> u32 {
        let (low, high): (u32, u32);
        // SAFETY: reads only 32 bytes of the line, as relaxed loads of its words would. SSE2 is part of x86-64.
        unsafe {
            asm!(
                "movq {a}, {bytes}",
                "punpcklqdq {a}, {a}",
                "movdqu {b}, xmmword ptr [{line} + 8]",
                "movdqu {c}, xmmword ptr [{line} + 24]",
                "pcmpeqb {b}, {a}",
                "pcmpeqb {c}, {a}",
                "pmovmskb {low:e}, {b}",
                "pmovmskb {high:e}, {c}",
                bytes = in(reg) u64::from(byte) * 0x0101_0101_0101_0101,
                line = in(reg) line.0.as_ptr(),
                low = out(reg) low,
                high = lateout(reg) high,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                options(nostack, preserves_flags, readonly),
            );
        }
        low | high << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that [`Search::equal_bytes`] compares.
    const BYTES: u32 = 28;

    const MAX: u64 = i64::MAX as u64;

    struct Below<'a>(&'a Line, u64);

    impl Task for Below<'_> {
        type Output = usize;

        #[inline(always)]
        fn run<S: Search>(self) -> usize {
            S::below(self.0, &self.1)
        }
    }

    struct Equal<'a>(&'a Line, u8);

    impl Task for Equal<'_> {
        type Output = u32;

        #[inline(always)]
        fn run<S: Search>(self) -> u32 {
            S::equal_bytes(self.0, self.1) & ((1 << BYTES) - 1)
        }
    }

    /// What the processor has.
    fn all() -> impl Iterator<Item = Vectors> {
        let all = [Vectors::Scalar, Vectors::Sse42, Vectors::Avx2, Vectors::Avx512];
        all.into_iter().filter(|vectors| *vectors <= Vectors::best())
    }

    /// Without selecting them: other tests of this program run at the same time.
    fn search_by<T: Task>(vectors: Vectors, task: T) -> T::Output {
        assert!(vectors <= Vectors::best());
        // SAFETY: the processor has them.
        unsafe { search_with(1 + vectors as u8, task) }
    }

    #[test]
    fn all_ways_count_the_same() {
        for words in
            [[0, 1, 2, 3, 4, 5, 6, 7], [MAX, 1 << 63, u64::MAX, 0, 5, 6, MAX - 1, MAX], [u64::MAX; 8], [MAX; 8], [0; 8]]
        {
            let line = Line(words.map(AtomicU64::new));
            for key in words.into_iter().flat_map(|word: u64| [word.wrapping_sub(1), word, word.wrapping_add(1)]) {
                let expected = words[1..].iter().filter(|&&word| (word as i64) < key as i64).count();
                for vectors in all() {
                    let found = search_by(vectors, Below(&line, key));
                    assert_eq!(found, expected, "{vectors:?} {words:x?} {key:x}");
                }
            }
        }
    }

    #[test]
    fn all_ways_find_the_same_bytes() {
        let byte_at = |at: usize| (3 * at / 4) as u8;
        let word = |word: usize| u64::from_le_bytes(std::array::from_fn(|at| byte_at(8 * word + at)));
        let line = Line(std::array::from_fn(|at| AtomicU64::new(word(at))));
        for wanted in 0..=u8::MAX {
            let is_equal = |at: u32| u32::from(byte_at(8 + at as usize) == wanted) << at;
            let expected = (0..BYTES).fold(0, |mask, at| mask | is_equal(at));
            for vectors in all() {
                assert_eq!(search_by(vectors, Equal(&line, wanted)), expected, "{vectors:?} {wanted}");
            }
        }
        assert!((0..64).all(|at| byte(&line, at) == byte_at(at)));
    }
}
