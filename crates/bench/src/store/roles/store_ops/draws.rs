//! Random item numbers, supplied faster than the table can use them.

use dunlin_net::random::Random;

use crate::workload::{Numbers, Popularity};

/// Numbers of a skewed distribution that are drawn in advance, since drawing one costs as much as an operation: 16 MiB,
/// read in order.
const DRAWN: usize = 1 << 22;

/// Item numbers, and which of the operations are writes.
pub(super) struct Draws {
    popularity: Popularity,
    items: u64,
    random: Random,
    /// Empty for a uniform distribution, which is cheap to draw.
    drawn: Vec<u32>,
    next: usize,
}

impl Draws {
    pub fn new(popularity: Popularity, items: u64) -> Self {
        let count = if popularity == Popularity::Uniform { 0 } else { DRAWN.min(16 * items as usize) };
        let mut numbers = Numbers::new(popularity, items, 11);
        // Items number tens of millions.
        let drawn = (0..count).map(|_| numbers.draw() as u32).collect();
        Draws { popularity, items, random: Random::new(12), drawn, next: 0 }
    }

    pub fn popularity(&self) -> Popularity {
        self.popularity
    }

    /// Draws numbers.
    #[inline]
    pub fn fill(&mut self, numbers: &mut [u64]) {
        if self.drawn.is_empty() {
            numbers.iter_mut().for_each(|number| *number = self.random.below(self.items));
            return;
        }
        if self.next + numbers.len() > self.drawn.len() {
            self.next = 0;
        }
        let drawn = &self.drawn[self.next..][..numbers.len()];
        numbers.iter_mut().zip(drawn).for_each(|(number, drawn)| *number = u64::from(*drawn));
        self.next += numbers.len();
    }

    /// Which operations of a burst are writes, a bit for each.
    #[inline]
    pub fn puts(&mut self, gets: f64, burst: usize) -> u32 {
        if gets >= 1.0 {
            return 0;
        }
        let share = ((1.0 - gets) * 65536.0) as u64;
        let mut puts = 0;
        // Four draws of 16 bits from each random number.
        for at in (0..burst).step_by(4) {
            let mut bits = self.random.next();
            for place in at..burst.min(at + 4) {
                puts |= u32::from(bits & 0xffff < share) << place;
                bits >>= 16;
            }
        }
        puts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_as_many_as_asked_for() {
        let mut draws = Draws::new(Popularity::Uniform, 10);
        assert_eq!(draws.puts(1.0, 32), 0);
        let writes: u32 = (0..10_000).map(|_| draws.puts(0.95, 32).count_ones()).sum();
        assert!((f64::from(writes) / 320_000.0 - 0.05).abs() < 0.005, "{writes}");
        assert_eq!(draws.puts(0.0, 5), 0b1_1111);
    }

    #[test]
    fn numbers_are_items() {
        for popularity in Popularity::CHOSEN {
            let mut draws = Draws::new(popularity, 7);
            let mut numbers = [0; 32];
            for _ in 0..100 {
                draws.fill(&mut numbers);
                assert!(numbers.iter().all(|number| *number < 7));
            }
        }
    }
}
