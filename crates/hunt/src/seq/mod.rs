//! The fault hunt of sequencers: clients by RPC and by datagrams draw numbers, which must rise in real time and never
//! come twice. A seed selects a scenario. The tests of `dunlin-seq` use the same parts.
//!
//! | File | What it holds |
//! |---|---|
//! | `scenarios` | what happens to sequencers and clients |
//! | `harness` | their hosts |
//! | `judge` | whether the numbers are in order |

pub mod harness;
pub mod judge;
pub mod scenarios;

use dunlin_trial::Random;

use crate::story::Story;
use harness::Keeps;

/// Runs a seed.
///
/// # Panics
/// If a promise is broken.
pub fn run(seed: u64) -> Story {
    let seen = match Random::new(seed ^ 0x7365_7100).between(0, 7) {
        0 => scenarios::harmed_packets(seed),
        1 => scenarios::paused_hosts(seed),
        2 => scenarios::restarts(seed),
        3 => scenarios::slow_clock(seed),
        4 | 5 => scenarios::replicated(seed, Keeps::Replicas).seen,
        _ => scenarios::replicated(seed, Keeps::Manager).seen,
    };
    seen.story
}
