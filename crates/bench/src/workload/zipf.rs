//! The Zipf distribution: a few items are requested most of the time.

use dunlin_net::random::Random;

/// Skew of YCSB, and of the papers that cite it.
pub const YCSB_THETA: f64 = 0.99;
/// Terms of the harmonic number that are summed exactly; an integral approximates the rest, exact to 12 digits from
/// here on.
const EXACT_TERMS: u64 = 10_000;

/// Ranks `0 .. items`, where rank `i` has a probability proportional to `1 / (i + 1)^theta`.
///
/// Drawn in constant time by the method of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD
/// 1994), which YCSB uses too: exact for ranks 0 and 1, a continuous approximation for the rest.
#[derive(Debug, Clone)]
pub struct Zipf {
    items: u64,
    theta: f64,
    /// Generalized harmonic number of `items`.
    zeta: f64,
    /// The same for two items.
    zeta_two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Over `items` items, with a skew between 0 and 1, both exclusive.
    ///
    /// # Panics
    /// If there are no items or the skew is out of range.
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0 && theta > 0.0 && theta < 1.0, "a Zipf distribution of {items} items with skew {theta}");
        let mut zipf = Zipf {
            items,
            theta,
            zeta: harmonic(items, theta),
            zeta_two: harmonic(2, theta),
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
        };
        zipf.eta = zipf.eta();
        zipf
    }

    fn eta(&self) -> f64 {
        (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta)
    }

    /// Number of items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Adds one item, as the least popular rank.
    pub fn grow(&mut self) {
        self.items += 1;
        self.zeta += (self.items as f64).powf(-self.theta);
        self.eta = self.eta();
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        // The upper 53 bits are a uniform value in 0 .. 1.
        let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let of_zeta = uniform * self.zeta;
        if of_zeta < 1.0 {
            return 0;
        }
        // With only one item, rounding may lead here.
        if of_zeta < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// The probability of a rank.
    pub fn probability(&self, rank: u64) -> f64 {
        ((rank + 1) as f64).powf(-self.theta) / self.zeta
    }
}

/// The sum of `1 / i^theta` for `i` from 1 to `items`: the first terms, then the Euler-Maclaurin integral with two
/// corrections.
fn harmonic(items: u64, theta: f64) -> f64 {
    let exact = items.min(EXACT_TERMS);
    // Small terms first, to minimize rounding errors.
    let sum: f64 = (1..=exact).rev().map(|i| (i as f64).powf(-theta)).sum();
    if items == exact {
        return sum;
    }
    let (from, to) = (exact as f64, items as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (to.powf(-theta) - from.powf(-theta)) / 2.0;
    let slopes = theta * (from.powf(-theta - 1.0) - to.powf(-theta - 1.0)) / 12.0;
    sum + integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmonic_number_is_that_of_ycsb() {
        // ZETAN of YCSB's ScrambledZipfianGenerator: ten billion items, 0.99.
        assert!((harmonic(10_000_000_000, 0.99) - 26.46902820178302).abs() < 1e-5);
        let slow: f64 = (1..=200_000u64).rev().map(|i| (i as f64).powf(-0.99)).sum();
        assert!((harmonic(200_000, 0.99) - slow).abs() < 1e-9);
    }

    #[test]
    fn growing_is_the_same_as_starting_larger() {
        let mut grown = Zipf::new(900, YCSB_THETA);
        (0..100).for_each(|_| grown.grow());
        let made = Zipf::new(1000, YCSB_THETA);
        assert!((grown.zeta - made.zeta).abs() < 1e-9 && (grown.eta - made.eta).abs() < 1e-9);
        assert_eq!(grown.items(), made.items());
    }

    #[test]
    fn ranks_are_drawn_as_often_as_they_should() {
        const DRAWS: u64 = 400_000;
        let zipf = Zipf::new(10_000, YCSB_THETA);
        let mut random = Random::new(7);
        let mut seen = vec![0u64; 10_000];
        (0..DRAWS).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
        // The method is exact for the first two ranks; within 12 % of the summed probabilities for the decades below.
        for rank in 0..2 {
            let expected = zipf.probability(rank) * DRAWS as f64;
            let off = (seen[rank as usize] as f64 - expected).abs();
            assert!(off < 5.0 * expected.sqrt(), "rank {rank}: {} of {expected}", seen[rank as usize]);
        }
        for (from, to) in [(2, 10), (10, 100), (100, 1000), (1000, 10_000)] {
            let drawn: u64 = seen[from..to].iter().sum();
            let expected: f64 = (from..to).map(|rank| zipf.probability(rank as u64)).sum::<f64>() * DRAWS as f64;
            assert!((drawn as f64 / expected - 1.0).abs() < 0.12, "{from}..{to}: {drawn} of {expected}");
        }
    }

    #[test]
    fn few_items_are_all_there_is() {
        let mut random = Random::new(1);
        for items in 1..4 {
            let zipf = Zipf::new(items, YCSB_THETA);
            assert!((0..1000).all(|_| zipf.draw(&mut random) < items));
        }
    }
}
