//! The fault hunt of transactions. A seed selects a scenario: participants and clients under random transactions, whose
//! history must be strictly serializable; or the service with its agents, a cluster manager and a bank, which must lose
//! no acknowledged transfer. The tests of `dunlin-txn` use the same parts.
//!
//! | File | What it holds |
//! |---|---|
//! | `scenarios`, `crashes` | what happens to participants and clients |
//! | `harness` | their hosts |
//! | `work` | random transactions on few keys, each with an invariant |
//! | `judge` | whether a history is strictly serializable |
//! | `service` | the service, and what happens to it |

pub mod crashes;
pub mod harness;
pub mod judge;
pub mod scenarios;
pub mod service;
pub mod work;

use dunlin_trial::Random;

use crate::story::Story;

/// Runs a seed.
///
/// # Panics
/// If a promise is broken.
pub fn run(seed: u64) -> Story {
    let found = match Random::new(seed ^ 0x7478_6e00).between(0, 11) {
        0 => scenarios::harmed_packets(seed),
        1 => scenarios::paused_nodes(seed),
        2 | 3 => scenarios::crashed_nodes(seed),
        4 => scenarios::strangers_stopped(seed),
        5 => scenarios::restarted_nodes(seed),
        6 | 7 => scenarios::refilled_copies(seed),
        8 => scenarios::node_cut_off(seed),
        _ => return service::harmed_service(seed),
    };
    found.story
}
