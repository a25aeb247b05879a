//! The floor of look-ups in bursts: what memory allows, if nothing else took time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dunlin_net::random::Random;
use memmap2::{Advice, MmapMut};

use super::BURSTS_PER_LOOK;
use crate::BenchError;

/// Words of a leaf.
const WORDS: usize = 64;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Reads that overlap.
const BURST: usize = 16;

/// Leaves without a tree, in huge pages if the system has them. The first word of each names one of its other lines.
pub(super) struct Leaves {
    region: MmapMut,
    random: Random,
}

impl Leaves {
    /// Leaves of this many bytes, with all pages touched.
    pub fn new(bytes: f64) -> Result<Leaves, BenchError> {
        let leaves = (bytes as usize / (8 * WORDS)).max(1);
        let mut region =
            MmapMut::map_anon(leaves * 8 * WORDS).map_err(BenchError::io("map memory to read at random"))?;
        // A system without huge pages refuses; then reads are slower.
        let _ = region.advise(Advice::HugePage);
        let mut random = Random::new(1);
        for leaf in region.chunks_exact_mut(8 * WORDS) {
            let line = 1 + random.below((WORDS / LINE_WORDS) as u64 - 1);
            leaf[..8].copy_from_slice(&line.to_le_bytes());
        }
        Ok(Leaves { region, random })
    }

    fn word(&self, at: usize) -> u64 {
        self.region[8 * at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Leaves per second: a burst reads the first lines of some at random, and then the lines that these name.
    pub fn reads_per_second(&mut self, run: Duration) -> f64 {
        let leaves = (self.region.len() / (8 * WORDS)) as u64;
        let (start, mut bursts, mut sum) = (Instant::now(), 0u64, 0u64);
        loop {
            for _ in 0..BURSTS_PER_LOOK {
                let leaves: [usize; BURST] = std::array::from_fn(|_| self.random.below(leaves) as usize * WORDS);
                let lines = leaves.map(|leaf| leaf + LINE_WORDS * (self.word(leaf) as usize % (WORDS / LINE_WORDS)));
                sum = lines.iter().fold(sum, |sum, line| sum.wrapping_add(self.word(*line)));
            }
            bursts += u64::from(BURSTS_PER_LOOK);
            let elapsed = start.elapsed();
            if elapsed >= run {
                black_box(sum);
                return (bursts * BURST as u64) as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_names_another_of_its_lines() {
        let mut leaves = Leaves::new(100.0 * 512.0).unwrap();
        let lines: Vec<u64> = (0..100).map(|leaf| leaves.word(leaf * WORDS)).collect();
        assert!(lines.iter().all(|line| (1..8).contains(line)), "{lines:?}");
        assert!((1..8).all(|line| lines.contains(&line)), "{lines:?}");
        assert!(leaves.reads_per_second(Duration::ZERO) > 0.0);
    }
}
