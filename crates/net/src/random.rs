//! The random numbers behind injected faults and simulated networks.
//!
//! A seed printed by a failing test must name the same run on every machine and with every version of every dependency,
//! so the generator is written out here: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
//! Generators, 2014).

/// A generator of pseudo-random numbers, for simulation only: anyone who sees some of them can compute the rest.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number: any `u64`, all equally likely.
    #[allow(clippy::should_implement_trait, reason = "an endless sequence is no iterator to loop over")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with a probability; draws no number if that is zero.
    pub fn chance(&mut self, probability: f64) -> bool {
        // The upper 53 bits are a uniform value in 0 .. 1, exactly representable.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A value below `limit`, which must not be zero. (Uniform up to a bias of `limit / 2^64`.)
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// A value from `min` to `max`, both included (but for the very last one).
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below((max - min).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first values of the reference implementation for seed 1234567.
        let mut random = Random::new(1234567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
        assert_eq!([random.next(), random.next(), random.next(), random.next()], expected);
    }

    #[test]
    fn ranges_hold() {
        let mut random = Random::new(1);
        assert!(!random.chance(0.0) && random.chance(1.0));
        assert!((0..1000).all(|_| random.below(3) < 3));
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| random.between(5, 7)).collect();
        assert_eq!(drawn, [5, 6, 7].into());
        assert_eq!(random.between(u64::MAX, u64::MAX), u64::MAX);
        random.between(0, u64::MAX);
    }
}
