//! Random numbers that are the same everywhere, so that a seed names one run for ever.

/// SplitMix64 (Steele et al., OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `min` to `max`, both included.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.next() % (max - min + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn index(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(&from[self.index(from.len())]) }
    }

    /// A probability from 0 to `max`, in steps of a thousandth; zero half of the time.
    pub fn probability(&mut self, max: f64) -> f64 {
        if self.chance(50) { 0.0 } else { max * self.between(1, 1000) as f64 / 1000.0 }
    }
}
