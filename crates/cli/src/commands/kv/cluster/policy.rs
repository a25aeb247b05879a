//! The option that ranks requests.

use dunlin_schedule::{Levels, Policy, SlackReading};

/// How requests for many keys are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyArgument {
    /// All requests have the same rank
    Fifo,
    /// By the number of keys of the whole request
    Total,
    /// By the number of keys of its largest part
    Bottleneck,
    /// By how long each part may wait for the largest one: for servers with --schedule exact, if all clients do so
    Slack,
    /// Levels by both, as in the paper: for servers with --schedule levels
    Rein,
}

impl PolicyArgument {
    /// Returns the policy.
    pub fn policy(self) -> Policy {
        match self {
            PolicyArgument::Fifo => Policy::Fifo,
            PolicyArgument::Total => Policy::ShortestTotal,
            PolicyArgument::Bottleneck => Policy::ShortestBottleneck,
            PolicyArgument::Slack => Policy::SlackDriven(SlackReading::default()),
            PolicyArgument::Rein => Policy::Rein(Levels::default()),
        }
    }
}
