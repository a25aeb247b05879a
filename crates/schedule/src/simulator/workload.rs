//! The workload: number of keys, choice of keys, and service times.

use super::random::{Random, mix};

/// Maximum number of keys in a multiget.
pub const KEYS_MAX: u32 = 100_000;

/// Distribution of the number of keys in a multiget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sizes {
    /// A stand-in for the trace of SoundCloud, which is not public, built from its published statistics (thesis,
    /// section 3.1.2): 60 % have one key; the others follow a power law up to 2000 keys; the mean is 8.6.
    Soundcloud,
    /// A constant number, up to [`KEYS_MAX`]: 50 is the fan-out of Bing (section 3.4.1).
    Constant(u32),
    /// Log-normal, rounded, 1 to [`KEYS_MAX`]: mu 2.5 and sigma 1.25 are the thesis' fit to Facebook's memcached
    /// (section 3.4.1).
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Deviation of the logarithm.
        sigma: f64,
    },
}

/// Share of the stand-in's requests with one key, the exponent of the others, and their maximum: chosen for a mean of
/// 8.6.
const SINGLE: f64 = 0.6;
const EXPONENT: f64 = -1.797;
const SOUNDCLOUD_MAX: u32 = 2000;

/// Number of draws to compute a mean that has no closed form.
const MEAN_DRAWS: u32 = 1_000_000;

impl Sizes {
    /// Whether it is a valid distribution.
    pub(super) fn is_valid(self) -> bool {
        match self {
            Sizes::Soundcloud | Sizes::Constant(_) => true,
            Sizes::LogNormal { mu, sigma } => mu.is_finite() && sigma.is_finite(),
        }
    }
}

/// Draws sizes.
#[derive(Debug)]
pub(super) struct SizeDraws {
    sizes: Sizes,
    /// For the stand-in: the probability of at most this many keys, from 1 on.
    cumulative: Vec<f64>,
}

impl SizeDraws {
    pub fn new(sizes: Sizes) -> Self {
        let cumulative = if sizes == Sizes::Soundcloud { soundcloud() } else { Vec::new() };
        SizeDraws { sizes, cumulative }
    }

    pub fn draw(&self, random: &mut Random) -> u32 {
        match self.sizes {
            Sizes::Soundcloud => {
                let uniform = random.uniform();
                let fewer =
                    if uniform <= SINGLE { 0 } else { self.cumulative.partition_point(|at_most| *at_most < uniform) };
                fewer as u32 + 1
            }
            Sizes::Constant(keys) => keys.clamp(1, KEYS_MAX),
            Sizes::LogNormal { mu, sigma } => {
                (mu + sigma * random.normal()).exp().round().clamp(1.0, f64::from(KEYS_MAX)) as u32
            }
        }
    }

    /// The mean of the distribution.
    pub fn mean(&self) -> f64 {
        match self.sizes {
            Sizes::Constant(_) => f64::from(self.draw(&mut Random::new(0, 0))),
            Sizes::Soundcloud => {
                // The sum of the probabilities of exceeding each number of keys.
                self.cumulative.iter().map(|at_most| 1.0 - at_most).sum::<f64>() + 1.0
            }
            Sizes::LogNormal { .. } => {
                let mut random = Random::new(0, 0);
                (0..MEAN_DRAWS).map(|_| f64::from(self.draw(&mut random))).sum::<f64>() / f64::from(MEAN_DRAWS)
            }
        }
    }
}

fn soundcloud() -> Vec<f64> {
    let weights: Vec<f64> = (2..=SOUNDCLOUD_MAX).map(|keys| f64::from(keys).powf(EXPONENT)).collect();
    let total: f64 = weights.iter().sum();
    let mut cumulative = vec![SINGLE];
    let mut sum = 0.0;
    for weight in weights {
        sum += weight;
        cumulative.push(SINGLE + (1.0 - SINGLE) * sum / total);
    }
    // Rounding must not leave a gap at the end.
    cumulative[SOUNDCLOUD_MAX as usize - 1] = 1.0;
    cumulative
}

/// Distribution of keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keys {
    /// Uniform over this many keys.
    Uniform(u64),
    /// Zipf over this many keys.
    Zipf {
        /// Number of keys.
        keys: u64,
        /// Skew, between 0 and 1, both exclusive.
        skew: f64,
    },
}

impl Keys {
    /// A stand-in for the keys of the trace of SoundCloud: with the default number of requests, most keys are requested
    /// once, and the hottest about 1000 times.
    pub const SOUNDCLOUD: Keys = Keys::Zipf { keys: 10_000_000, skew: 0.55 };
}

/// Draws keys.
#[derive(Debug)]
pub(super) enum KeyDraws {
    Uniform(u64),
    Zipf(Zipf),
}

impl KeyDraws {
    pub fn new(keys: Keys) -> Self {
        match keys {
            Keys::Uniform(keys) => KeyDraws::Uniform(keys),
            Keys::Zipf { keys, skew } => KeyDraws::Zipf(Zipf::new(keys, skew)),
        }
    }

    /// Number of keys.
    pub fn count(&self) -> u64 {
        match self {
            KeyDraws::Uniform(keys) => *keys,
            KeyDraws::Zipf(zipf) => zipf.keys as u64,
        }
    }

    /// A key; lower ones are more popular.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            KeyDraws::Uniform(keys) => random.below(*keys),
            KeyDraws::Zipf(zipf) => zipf.draw(random),
        }
    }
}

/// The partition of a key.
pub(super) fn partition(key: u64, partitions: u32) -> u32 {
    ((u128::from(mix(key.wrapping_add(1))) * u128::from(partitions)) >> 64) as u32
}

/// Ranks with a probability proportional to `1 / (rank + 1)^skew`, drawn in constant time by the method of Gray et al.
/// (SIGMOD 1994): exact for the first two, a continuous approximation for the rest.
#[derive(Debug)]
pub(super) struct Zipf {
    keys: f64,
    zeta: f64,
    second: f64,
    alpha: f64,
    eta: f64,
}

/// Terms of the harmonic number that are summed exactly; an integral approximates the rest.
const EXACT_TERMS: u64 = 10_000;

impl Zipf {
    fn new(keys: u64, skew: f64) -> Self {
        let terms: f64 = (1..=keys.min(EXACT_TERMS)).rev().map(|rank| (rank as f64).powf(-skew)).sum();
        let end = |rank: u64| (rank as f64 + 0.5).powf(1.0 - skew) / (1.0 - skew);
        let zeta = terms + if keys > EXACT_TERMS { end(keys) - end(EXACT_TERMS) } else { 0.0 };
        let second = 1.0 + 0.5f64.powf(skew);
        let keys = keys as f64;
        let eta = (1.0 - (2.0 / keys).powf(1.0 - skew)) / (1.0 - second / zeta);
        Zipf { keys, zeta, second, alpha: 1.0 / (1.0 - skew), eta }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let uniform = random.uniform();
        let of_zeta = uniform * self.zeta;
        if of_zeta < 1.0 {
            0
        } else {
            let rank = self.keys * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
            // With few keys, rounding may exceed the last one.
            (if of_zeta < self.second { 1.0 } else { rank }).min(self.keys - 1.0) as u64
        }
    }
}

/// Distribution of service times, relative to the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Law {
    /// Always the mean.
    Constant,
    /// Exponential.
    Exponential,
    /// Log-normal with this deviation of the logarithm.
    LogNormal {
        /// Deviation of the logarithm.
        sigma: f64,
    },
    /// Half of the mean for every operation, the other half in proportion to the size of the value. Sizes are
    /// generalized Pareto, as Atikoglu et al. (SIGMETRICS 2012) fitted it to Facebook's memcached: scale 214.476, shape
    /// 0.348238.
    ValueSize,
    /// A fast and a slow tier: the share `slow` of operations takes `times` as long as the others on average; both
    /// exponential.
    TwoTiers {
        /// Share of slow operations, 0 to 1.
        slow: f64,
        /// Ratio of their mean to that of the others.
        times: f64,
    },
}

/// Shape of the distribution of value sizes. The scale cancels out: only the size relative to the mean matters.
const VALUE_SHAPE: f64 = 0.348_238;

impl Law {
    /// Whether it is a valid distribution.
    pub(super) fn is_valid(self) -> bool {
        match self {
            Law::Constant | Law::Exponential | Law::ValueSize => true,
            Law::LogNormal { sigma } => sigma.is_finite(),
            Law::TwoTiers { slow, times } => (0.0..=1.0).contains(&slow) && times > 0.0 && times.is_finite(),
        }
    }

    /// A service time, with mean 1.
    pub(super) fn draw(self, random: &mut Random) -> f64 {
        match self {
            Law::Constant => 1.0,
            Law::Exponential => random.exponential(),
            Law::LogNormal { sigma } => (sigma * random.normal() - sigma * sigma / 2.0).exp(),
            Law::ValueSize => {
                let size = (random.uniform().powf(-VALUE_SHAPE) - 1.0) / VALUE_SHAPE;
                0.5 + 0.5 * size * (1.0 - VALUE_SHAPE)
            }
            Law::TwoTiers { slow, times } => {
                let is_slow = random.uniform() <= slow;
                random.exponential() * if is_slow { times } else { 1.0 } / (1.0 - slow + slow * times)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn sizes(sizes: Sizes, draws: usize) -> Vec<u32> {
        let (law, mut random) = (SizeDraws::new(sizes), Random::new(5, 0));
        (0..draws).map(|_| law.draw(&mut random)).collect()
    }

    fn mean(draws: impl Iterator<Item = f64> + Clone) -> f64 {
        draws.clone().sum::<f64>() / draws.count() as f64
    }

    /// The statistics of sizes that the thesis publishes: its experiment R2.
    #[test]
    fn the_stand_in_has_the_published_sizes() {
        let drawn = sizes(Sizes::Soundcloud, 400_000);
        let several = drawn.iter().filter(|keys| **keys > 1).count() as f64 / drawn.len() as f64;
        assert!((several - 0.4).abs() < 0.005, "{several} have more than one key");
        let of_draws = mean(drawn.iter().map(|keys| f64::from(*keys)));
        assert!((of_draws - 8.6).abs() < 0.25, "mean {of_draws}");
        assert!((SizeDraws::new(Sizes::Soundcloud).mean() - 8.6).abs() < 0.01);
        let most = *drawn.iter().max().unwrap();
        assert!((1900..=2000).contains(&most), "{most} keys at most");
        assert!(drawn.iter().all(|keys| *keys >= 1));
    }

    #[test]
    fn other_sizes_have_their_means() {
        assert_eq!(sizes(Sizes::Constant(50), 10), [50; 10]);
        assert_eq!(sizes(Sizes::Constant(0), 1), [1]);
        assert_eq!(SizeDraws::new(Sizes::Constant(50)).mean(), 50.0);
        let facebook = Sizes::LogNormal { mu: 2.5, sigma: 1.25 };
        let expected = (2.5f64 + 1.25 * 1.25 / 2.0).exp();
        let of_law = SizeDraws::new(facebook).mean();
        assert!((of_law / expected - 1.0).abs() < 0.01, "{of_law} of {expected}");
        assert!(sizes(Sizes::LogNormal { mu: 50.0, sigma: 1.0 }, 100).into_iter().all(|keys| keys == KEYS_MAX));
    }

    #[test]
    fn popular_keys_are_as_popular_as_they_should() {
        const DRAWS: u32 = 400_000;
        for (keys, skew) in [(10_000, 0.99), (1_000_000, 0.6), (10_000_000, 0.55)] {
            let (draws, mut random) = (KeyDraws::new(Keys::Zipf { keys, skew }), Random::new(2, 0));
            let mut seen: HashMap<u64, u32> = HashMap::new();
            (0..DRAWS).for_each(|_| *seen.entry(draws.draw(&mut random)).or_default() += 1);
            let zeta: f64 = (1..=keys).map(|rank| (rank as f64).powf(-skew)).sum();
            for rank in 0..2u64 {
                let expected = f64::from(DRAWS) * ((rank + 1) as f64).powf(-skew) / zeta;
                let off = (f64::from(seen[&rank]) - expected).abs();
                assert!(off < 5.0 * expected.sqrt(), "rank {rank} of {keys}: {} of {expected}", seen[&rank]);
            }
            assert!(seen.keys().all(|rank| *rank < keys));
        }
    }

    #[test]
    fn partitions_are_even_for_uniform_keys() {
        let mut seen = [0u32; 128];
        (0..1_280_000).for_each(|key| seen[partition(key, 128) as usize] += 1);
        assert!(seen.iter().all(|keys| (9_500..10_500).contains(keys)), "{seen:?}");
    }

    #[test]
    fn laws_have_mean_one() {
        for law in [
            Law::Constant,
            Law::Exponential,
            Law::LogNormal { sigma: 1.0 },
            Law::ValueSize,
            Law::TwoTiers { slow: 0.33, times: 20.0 },
        ] {
            let mut random = Random::new(3, 0);
            let draws: Vec<f64> = (0..400_000).map(|_| law.draw(&mut random)).collect();
            let mean = mean(draws.iter().copied());
            assert!((mean - 1.0).abs() < 0.01, "{law:?}: {mean}");
            assert!(draws.iter().all(|draw| *draw >= 0.0));
        }
    }
}
