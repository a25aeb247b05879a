//! Random numbers of a simulation: SplitMix64 (Steele, Lea, Flood 2014), and distributions made of it. It is written
//! out so that a seed gives the same run with every version of every dependency.

#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

/// The last step of SplitMix64: spreads the bits of a number over all 64.
pub(crate) fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// One of several independent sequences of a seed.
    pub fn new(seed: u64, sequence: u64) -> Self {
        Random(mix(seed ^ mix(sequence.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A value below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Uniform in 0 .. 1, 0 excluded.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponential, mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Normal, mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::new(1, 0);
        let mut moments = |draw: &dyn Fn(&mut Random) -> f64| {
            let draws: Vec<f64> = (0..200_000).map(|_| draw(&mut random)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            (mean, draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64)
        };
        for (name, (mean, variance), (expected_mean, expected_variance)) in [
            ("uniform", moments(&Random::uniform), (0.5, 1.0 / 12.0)),
            ("exponential", moments(&Random::exponential), (1.0, 1.0)),
            ("normal", moments(&Random::normal), (0.0, 1.0)),
        ] {
            assert!((mean - expected_mean).abs() < 0.01, "{name}: mean {mean}");
            assert!((variance - expected_variance).abs() < 0.03, "{name}: variance {variance}");
        }
    }

    #[test]
    fn sequences_of_a_seed_differ() {
        assert_ne!(Random::new(1, 0).next(), Random::new(1, 1).next());
        assert_eq!(Random::new(1, 1).next(), Random::new(1, 1).next());
    }
}
