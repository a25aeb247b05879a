//! Random pauses between packets, so that they reach a sleeping receiver at any time of its sleep.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Pauses uniformly distributed between two lengths, the same in every run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gaps {
    /// The shortest, in nanoseconds.
    shortest: u64,
    /// The longest, in nanoseconds.
    longest: u64,
    random: u64,
}

impl Gaps {
    /// From `shortest` to `longest`.
    pub fn between(shortest: Duration, longest: Duration) -> Self {
        let nanos = |time: Duration| time.as_nanos() as u64;
        Gaps { shortest: nanos(shortest), longest: nanos(longest.max(shortest)), random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The next pause.
    pub fn next_gap(&mut self) -> Duration {
        // A xorshift generator.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_nanos(self.shortest + self.random % (self.longest - self.shortest + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stay_within_their_bounds() {
        let (shortest, longest) = (Duration::from_micros(200), Duration::from_millis(2));
        let mut gaps = Gaps::between(shortest, longest);
        let drawn: Vec<_> = (0..1000).map(|_| gaps.next_gap()).collect();
        assert!(drawn.iter().all(|gap| (shortest..=longest).contains(gap)));
        assert!(drawn.iter().max().unwrap().saturating_sub(*drawn.iter().min().unwrap()) > longest / 2);
        assert_eq!(Gaps::between(longest, shortest).next_gap(), longest);
    }
}
