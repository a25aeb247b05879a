//! The conditions of a report.

use dunlin_sim::CostModel;
use serde::{Deserialize, Serialize};

/// The user's settings. Together with the commit and the machine they allow reproducing the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Length of a measured run, in seconds.
    pub run_seconds: f64,
    /// Runs of each case in real time.
    pub runs: usize,
    /// Limit of items in a case, if there was one.
    pub items_max: Option<u64>,
    /// The core that was kept busy by another process.
    pub busy_core: Option<usize>,
    /// Seed of the first run of each case in virtual time; further runs use the following seeds.
    pub seed: u64,
    /// Runs of each case in virtual time.
    pub seeds: u32,
    /// CPU time of packets in virtual time, if it is not that of the experiment's cluster.
    pub cost: Option<CostModel>,
}

impl Conditions {
    /// A summary in one line: the runs, and everything that is not the default.
    pub(super) fn in_words(&self) -> String {
        let mut words =
            format!("{} runs of {} s, or {} from seed {}", self.runs, self.run_seconds, self.seeds, self.seed);
        if let Some(items) = self.items_max {
            words += &format!(", at most {items} items");
        }
        if let Some(core) = self.busy_core {
            words += &format!(", core {core} kept busy");
        }
        if self.cost.is_some() {
            words += ", CPU times of another machine";
        }
        words
    }
}
