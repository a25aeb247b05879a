//! The floor of tables in memory: random reads of memory, several in parallel.

use std::hint::black_box;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};

use crate::BenchError;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Parallel chains of reads. Each chain waits for its own last read.
const CHAINS: usize = 8;
/// Reads of each chain between two readings of the clock.
const STEPS_PER_LOOK: usize = 256;
/// Multiplier of Knuth's 64-bit linear congruential generator.
const KNUTH: u64 = 6_364_136_223_846_793_005;

/// A region of cache lines, in huge pages if the system has them.
pub(super) struct Lines {
    region: MmapMut,
    states: [u64; CHAINS],
}

impl Lines {
    /// A region of this many bytes, with all pages touched.
    pub fn new(bytes: u64) -> Result<Self, BenchError> {
        let lines = (bytes as usize / LINE_BYTES).max(CHAINS);
        let mut region =
            MmapMut::map_anon(lines * LINE_BYTES).map_err(BenchError::io("map memory to read at random"))?;
        // A system without huge pages refuses; then reads are slower.
        let _ = region.advise(Advice::HugePage);
        for (number, line) in region.chunks_exact_mut(LINE_BYTES).enumerate() {
            line[..8].copy_from_slice(&(number as u64 | 1).to_le_bytes());
        }
        Ok(Lines { region, states: std::array::from_fn(|chain| (chain as u64).wrapping_mul(KNUTH) + 1) })
    }

    /// Reads per second: eight chains, in each of which a read determines the next address.
    pub fn reads_per_second(&mut self, run: Duration) -> f64 {
        let lines = (self.region.len() / LINE_BYTES) as u128;
        let (start, mut steps) = (Instant::now(), 0u64);
        loop {
            for _ in 0..STEPS_PER_LOOK {
                for state in &mut self.states {
                    let line = ((u128::from(*state) * lines) >> 64) as usize * LINE_BYTES;
                    let read = self.region[line..line + 8].try_into().map_or(0, u64::from_le_bytes);
                    *state = state.wrapping_mul(KNUTH).wrapping_add(read);
                }
            }
            steps += STEPS_PER_LOOK as u64;
            let elapsed = start.elapsed();
            if elapsed >= run {
                black_box(&self.states);
                return (steps * CHAINS as u64) as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_spread_over_the_whole_region() {
        let mut lines = Lines::new(64 * LINE_BYTES as u64).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            assert!(lines.reads_per_second(Duration::ZERO) > 0.0);
            seen.extend(lines.states.map(|state| state >> 58));
        }
        assert!(seen.len() > 50, "{} of 64 lines", seen.len());
    }
}
