//! Nonces, tags and keys. Seeded once, from the operating system or by a test.

/// SplitMix64 (Steele et al., OOPSLA 2014): small, fast, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A tag: 24 bits, never zero.
    pub fn next_tag(&mut self) -> u32 {
        1 + (self.next_u64() % (crate::wire::MASK_24 as u64)) as u32
    }
}
