//! Log output of libraries, on standard error.

use std::io::{IsTerminal, stderr};

use clap::ArgAction;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The level of detail.
#[derive(Debug, Clone, clap::Args)]
pub struct Log {
    /// Log more to standard error: -v shows events, -vv reasons, -vvv everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Log what this filter allows: a level, or MODULE=LEVEL,... as in warn,dunlin_smr=debug
    #[arg(long, global = true, value_name = "FILTER", conflicts_with = "verbose")]
    log: Option<Targets>,
}

impl Log {
    /// Starts logging, at level `default` unless options ask for more. Call it once.
    pub fn init(self, default: LevelFilter) {
        let level = match self.verbose {
            0 => default,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let filter = self.log.unwrap_or_else(|| Targets::new().with_default(level));
        let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
        tracing_subscriber::registry().with(lines).with(filter).init();
    }
}
