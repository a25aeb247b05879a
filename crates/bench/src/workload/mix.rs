//! The operations on the items.

use dunlin_net::random::Random;
use serde::{Deserialize, Serialize};

use super::popularity::{Numbers, Popularity};

/// One operation on one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reads it.
    Get(u64),
    /// Overwrites it.
    Update(u64),
    /// Writes it for the first time.
    Insert(u64),
    /// Reads it, then writes it.
    ReadModifyWrite(u64),
}

/// Shares of operations and the popularity of items.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Share of reads, from 0 to 1. The remaining share are updates.
    pub gets: f64,
    /// Share of inserts.
    pub inserts: f64,
    /// Share of reads followed by a write.
    pub read_modify_writes: f64,
    /// Distribution of items.
    pub popularity: Popularity,
}

impl Mix {
    /// Reads and updates.
    pub const fn gets(gets: f64, popularity: Popularity) -> Self {
        Mix { gets, inserts: 0.0, read_modify_writes: 0.0, popularity }
    }

    /// The core workloads of YCSB (Cooper et al., SoCC 2010) without scans, by letter.
    pub const YCSB: [(&'static str, Mix); 5] = [
        ("A, 50 % updates", Mix::gets(0.5, Popularity::Zipf)),
        ("B, 5 % updates", Mix::gets(0.95, Popularity::Zipf)),
        ("C, reads only", Mix::gets(1.0, Popularity::Zipf)),
        ("D, 5 % inserts, latest read", Mix { inserts: 0.05, ..Mix::gets(0.95, Popularity::Latest) }),
        ("F, 50 % read-modify-writes", Mix { read_modify_writes: 0.5, ..Mix::gets(0.5, Popularity::Zipf) }),
    ];
}

/// An endless sequence of operations.
#[derive(Debug, Clone)]
pub struct Operations {
    numbers: Numbers,
    random: Random,
    mix: Mix,
}

impl Operations {
    /// On `items` existing items, from a seed.
    ///
    /// # Panics
    /// If there are no items.
    pub fn new(mix: Mix, items: u64, seed: u64) -> Self {
        Operations { numbers: Numbers::new(mix.popularity, items, seed), random: Random::new(!seed), mix }
    }

    /// As [`Numbers::draw_ahead`].
    pub fn draw_ahead(&mut self, count: usize) {
        self.numbers.draw_ahead(count);
    }

    /// Number of items, including inserted ones.
    pub fn items(&self) -> u64 {
        self.numbers.items()
    }

    /// The next operation.
    #[inline]
    pub fn draw(&mut self) -> Operation {
        let share = (self.random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let Mix { gets, inserts, read_modify_writes, .. } = self.mix;
        if share < gets {
            Operation::Get(self.numbers.draw())
        } else if share < gets + inserts {
            Operation::Insert(self.numbers.insert())
        } else if share < gets + inserts + read_modify_writes {
            Operation::ReadModifyWrite(self.numbers.draw())
        } else {
            Operation::Update(self.numbers.draw())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_mix() {
        for (name, mix) in Mix::YCSB {
            let mut operations = Operations::new(mix, 1000, 1);
            let (mut counts, mut items) = ([0u32; 4], 1000);
            for _ in 0..20_000 {
                let (kind, number) = match operations.draw() {
                    Operation::Get(number) => (0, number),
                    Operation::Insert(number) => {
                        assert_eq!(number, items, "{name}: inserts come in order");
                        items += 1;
                        (1, number)
                    }
                    Operation::ReadModifyWrite(number) => (2, number),
                    Operation::Update(number) => (3, number),
                };
                assert!(number < items, "{name}: an item that is not there");
                counts[kind] += 1;
            }
            let expected =
                [mix.gets, mix.inserts, mix.read_modify_writes, 1.0 - mix.gets - mix.inserts - mix.read_modify_writes];
            for (count, expected) in counts.iter().zip(expected) {
                assert!((f64::from(*count) / 20_000.0 - expected).abs() < 0.015, "{name}: {counts:?}");
            }
        }
    }
}
