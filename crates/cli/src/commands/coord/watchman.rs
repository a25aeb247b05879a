//! `dunlin coord watchman`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;

use super::serve::Patience;
use crate::arguments::at::At;

/// Watch over the members that an etcd keeps, until ctrl-C
///
/// Without a watchman, no member fails and no lease ends in an etcd. Run two or more, on machines that fail
/// independently: one watches, the others stand by.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin coord watchman --at http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379
  dunlin coord watchman --at http://127.0.0.1:2379 --failure-timeout 2s

Each heartbeat is a write: have the etcd forget what is past, for example with --auto-compaction-mode=revision --auto-compaction-retention=100000.")]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "a build without etcd reads no more of it than its help"))]
pub struct Arguments {
    #[command(flatten)]
    at: At,
    /// What the keys begin with
    #[arg(long, value_name = "PREFIX", default_value = "/dunlin")]
    prefix: String,
    #[command(flatten)]
    patience: Patience,
}

/// Runs the command.
#[cfg(feature = "etcd")]
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    use anyhow::{Context, ensure};
    use dunlin_coord::Coordinator;
    use dunlin_coord::etcd::{Etcd, EtcdConfig, Watchman};
    use dunlin_serve::notify;

    use crate::output;

    /// Interval at which the flag is checked; a signal wakes sooner.
    const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

    let config = arguments.patience.config()?;
    let prefix = arguments.prefix.clone();
    let urls = arguments.at.etcd().context("this watches an etcd: give --at http://HOST:PORT,...")?;
    let etcd = Etcd::new(urls, EtcdConfig { prefix, ..EtcdConfig::default() })?;
    // So that a wrong address is told at once.
    etcd.block_on(etcd.members())?;
    let watchman = Watchman::start(&etcd, config)?;
    output::line(format_args!("serving as a watchman at {}; ctrl-C ends it", urls.join(",")))?;
    notify::ready();
    while !interrupt.is_set() && !watchman.has_ended() {
        interrupt.wait(LOOK);
    }
    notify::stopping();
    ensure!(!watchman.has_ended(), "the watchman has failed, which is a bug: start it again");
    drop(watchman);
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the command.
#[cfg(not(feature = "etcd"))]
pub fn run(_: &Arguments, _: &Interrupt) -> Result<ExitCode> {
    Err(super::asks::without_etcd())
}
