//! The popularity of items.

use dunlin_net::random::Random;
use serde::{Deserialize, Serialize};

use super::zipf::{YCSB_THETA, Zipf};

/// Number of ranks in YCSB's scrambled Zipf distribution before they are hashed to the existing items.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// Distributions of popularity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Popularity {
    /// All items are equally popular.
    Uniform,
    /// Zipf with skew .99, with the popular items spread over all as in YCSB: drawn from ten billion ranks and hashed
    /// (FNV-1a).
    Zipf,
    /// Zipf with skew .99, the newest items most popular (YCSB D).
    Latest,
}

impl Popularity {
    /// The distributions for loads without inserts.
    pub const CHOSEN: [Popularity; 2] = [Popularity::Uniform, Popularity::Zipf];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Popularity::Uniform => "uniform",
            Popularity::Zipf => "Zipf",
            Popularity::Latest => "latest",
        }
    }
}

/// A sequence of item numbers.
#[derive(Debug, Clone)]
pub struct Numbers {
    items: u64,
    random: Random,
    drawn: Drawn,
}

#[derive(Debug, Clone)]
enum Drawn {
    Uniform,
    Scrambled(Zipf),
    /// Hashes drawn in advance, used cyclically.
    ScrambledAhead(Vec<u64>, usize),
    Latest(Zipf),
}

impl Numbers {
    /// Out of `items` items, from a seed.
    ///
    /// # Panics
    /// If there are no items.
    pub fn new(popularity: Popularity, items: u64, seed: u64) -> Self {
        assert!(items > 0, "numbers of no items");
        let drawn = match popularity {
            Popularity::Uniform => Drawn::Uniform,
            Popularity::Zipf => Drawn::Scrambled(Zipf::new(SCRAMBLED_ITEMS, YCSB_THETA)),
            Popularity::Latest => Drawn::Latest(Zipf::new(items, YCSB_THETA)),
        };
        Numbers { items, random: Random::new(seed), drawn }
    }

    /// Draws `count` numbers in advance, if drawing is slow and independent of later events; they are used cyclically.
    /// Otherwise a load with millions of them a second would measure its own drawing.
    pub fn draw_ahead(&mut self, count: usize) {
        if let Drawn::Scrambled(zipf) = &self.drawn {
            let hashes = (0..count.max(1)).map(|_| fnv1a(zipf.draw(&mut self.random))).collect();
            self.drawn = Drawn::ScrambledAhead(hashes, 0);
        }
    }

    /// Draws a number. Costs a few nanoseconds for uniform numbers and tens for the others: see
    /// [`Numbers::draw_ahead`].
    #[inline]
    pub fn draw(&mut self) -> u64 {
        match &mut self.drawn {
            Drawn::Uniform => self.random.below(self.items),
            Drawn::Scrambled(zipf) => fnv1a(zipf.draw(&mut self.random)) % self.items,
            Drawn::ScrambledAhead(hashes, at) => {
                let hash = hashes[*at];
                *at = if *at + 1 == hashes.len() { 0 } else { *at + 1 };
                hash % self.items
            }
            Drawn::Latest(zipf) => self.items - 1 - zipf.draw(&mut self.random),
        }
    }

    /// Number of items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Adds an item, and returns its number.
    pub fn insert(&mut self) -> u64 {
        self.items += 1;
        if let Drawn::Latest(zipf) = &mut self.drawn {
            zipf.grow();
        }
        self.items - 1
    }
}

/// YCSB's scrambling hash: 64-bit FNV-1a over the eight bytes, then the absolute value.
fn fnv1a(number: u64) -> u64 {
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(popularity: Popularity, items: u64, draws: u64) -> Vec<f64> {
        let mut numbers = Numbers::new(popularity, items, 3);
        let mut seen = vec![0u64; items as usize];
        (0..draws).for_each(|_| seen[numbers.draw() as usize] += 1);
        seen.iter().map(|seen| *seen as f64 / draws as f64).collect()
    }

    #[test]
    fn uniform_is_even() {
        let shares = shares(Popularity::Uniform, 100, 200_000);
        assert!(shares.iter().all(|share| (share - 0.01).abs() < 0.002), "{shares:?}");
    }

    #[test]
    fn scrambled_has_its_favourites_anywhere() {
        let shares = shares(Popularity::Zipf, 1000, 100_000);
        let favourite = (fnv1a(0) % 1000) as usize;
        // 1 of 26.5, plus its even share of the long tail.
        assert!((shares[favourite] - 1.0 / 26.469).abs() < 0.01, "{}", shares[favourite]);
        assert!(shares.iter().enumerate().all(|(number, share)| number == favourite || *share < shares[favourite]));
    }

    #[test]
    fn latest_prefers_what_was_just_inserted() {
        let mut numbers = Numbers::new(Popularity::Latest, 100, 9);
        for expected in 100..200 {
            assert_eq!(numbers.insert(), expected);
        }
        let drawn: Vec<u64> = (0..20_000).map(|_| numbers.draw()).collect();
        assert!(drawn.iter().all(|number| *number < 200));
        let share = |number| drawn.iter().filter(|drawn| **drawn == number).count();
        assert!(share(199) > share(198) && share(198) > share(150) && share(150) > 0);
    }

    #[test]
    fn numbers_drawn_ahead_are_those_drawn_one_by_one() {
        for popularity in [Popularity::Uniform, Popularity::Zipf, Popularity::Latest] {
            let (mut ahead, mut now) = (Numbers::new(popularity, 1000, 4), Numbers::new(popularity, 1000, 4));
            ahead.draw_ahead(50);
            let first: Vec<u64> = (0..50).map(|_| ahead.draw()).collect();
            assert_eq!(first, (0..50).map(|_| now.draw()).collect::<Vec<_>>());
            let comes_round = (0..50).map(|_| ahead.draw()).eq(first.iter().copied());
            assert_eq!(comes_round, popularity == Popularity::Zipf, "{popularity:?}");
        }
    }

    #[test]
    fn a_seed_names_the_numbers() {
        for popularity in [Popularity::Uniform, Popularity::Zipf, Popularity::Latest] {
            let draw = |seed| {
                let mut numbers = Numbers::new(popularity, 1000, seed);
                (0..20).map(|_| numbers.draw()).collect::<Vec<_>>()
            };
            assert_eq!(draw(5), draw(5));
            assert_ne!(draw(5), draw(6));
        }
    }
}
