//! `dunlin txn get`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;

use super::client::{Outcome, Target, ask, run as transact};
use crate::commands::index::client::Lines;
use crate::output;

/// Print the values of keys, all read in one transaction
///
/// One value is printed as it is. Several are lines with key and value, separated by a tab, in which \t \n \r \\ \xHH
/// stand for bytes. Exit code 0 if all are there, 1 if one is missing, 2 if it failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn get --at udp://127.0.0.1:7911 accounts alice
  dunlin txn get --at udp://127.0.0.1:7911 accounts alice bob        both as of one moment
  dunlin txn get --at udp://127.0.0.1:7911 accounts alice bob --json")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The table
    table: String,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    /// Print JSON: each item as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let Arguments { target, table, keys, json } = arguments;
    ask(target, interrupt, async |_, remote| {
        let values = transact(remote, async |tx| {
            let table = remote.client().table(table)?;
            let keys: Vec<_> = keys.iter().map(|key| (table, key.as_bytes())).collect();
            tx.execute(&keys, dunlin_txn::Mode::Read).await
        })
        .await?;
        if let ([Some(value)], false) = (&values[..], json) {
            output::value(value)?;
            return Ok(Outcome::Done);
        }
        let mut lines = Lines::new(*json)?;
        for (key, value) in keys.iter().zip(&values) {
            if let Some(value) = value {
                lines.item(key.as_bytes(), value)?;
            }
        }
        lines.end()?;
        Ok(if values.iter().all(Option::is_some) { Outcome::Done } else { Outcome::NotFound })
    })
}
