//! `dunlin txn scan-table`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use dunlin_serve::Interrupt;
use dunlin_txn::{Gap, Range};

use super::client::{Outcome, Target, ask, run as transact};
use crate::commands::index::client::Lines;

/// Items that one transaction may read.
const ITEMS_MAX: u64 = 60_000;

/// Print the items of an ordered table in the order of their keys, as of one moment
///
/// Each item is a line with key and value, separated by a tab, in which \t \n \r \\ \xHH stand for bytes. One
/// transaction reads up to 60,000 items and 16 MiB: go on with --past and the last key. Tables are ordered if they were
/// made with --ordered.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn scan-table --at udp://127.0.0.1:7911 birds
  dunlin txn scan-table --at udp://127.0.0.1:7911 birds --prefix d --count 10
  dunlin txn scan-table --at udp://127.0.0.1:7911 birds --prefix d --past dunlin --count 10")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The table
    table: String,
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// The first key of the range
    #[arg(long, value_name = "KEY", conflicts_with = "past")]
    from: Option<String>,
    /// Only keys after this one, such as the last one of a scan before
    #[arg(long, value_name = "KEY")]
    past: Option<String>,
    /// The end of the range: the first key that is not in it
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// End after so many items
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = RangedU64ValueParser::<u64>::new().range(1..=ITEMS_MAX))]
    count: u64,
    /// Print JSON: each item as one line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn range(&self) -> Result<Range<'_>> {
        let (prefix, past) = (self.prefix.as_deref(), self.past.as_deref());
        if let (Some(prefix), Some(past)) = (prefix, past) {
            ensure!(
                past.starts_with(prefix),
                "{past:?} of --past does not begin with {prefix:?} of --prefix: give one of them"
            );
        }
        let (from, to) = (self.from.as_deref().or(prefix).unwrap_or_default(), self.to.as_deref());
        let low = past.map_or(Gap::Before(from.as_bytes()), |past| Gap::After(past.as_bytes()));
        let high = to.map_or(Gap::AfterPrefix(prefix.unwrap_or_default().as_bytes()), |to| Gap::Before(to.as_bytes()));
        Ok(Range { low, high })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let range = arguments.range()?;
    ask(&arguments.target, interrupt, async |_, remote| {
        let found = transact(remote, async |tx| {
            let table = remote.client().table(&arguments.table)?;
            tx.scan(table, range, arguments.count as usize).await
        })
        .await?;
        let mut lines = Lines::new(arguments.json)?;
        found.iter().try_for_each(|(key, value)| lines.item(key, value))?;
        lines.end()?;
        Ok(Outcome::Done)
    })
}
