//! `dunlin txn delete`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;

use super::client::{Outcome, Target, ask, run as transact};

/// Delete keys, all in one transaction
///
/// Exit code 0 if all were there, 1 if one was not: the others are deleted then. 2 if nothing was deleted, 4 if nobody
/// knows.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn delete --at udp://127.0.0.1:7911 accounts alice
  dunlin txn delete --at udp://127.0.0.1:7911 accounts alice bob")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The table
    table: String,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let Arguments { target, table, keys } = arguments;
    ask(target, interrupt, async |_, remote| {
        let were_there = transact(remote, async |tx| {
            let table = remote.client().table(table)?;
            let names: Vec<_> = keys.iter().map(|key| (table, key.as_bytes())).collect();
            let found = tx.execute(&names, dunlin_txn::Mode::Update).await?;
            names.iter().try_for_each(|(table, key)| tx.delete(*table, key))?;
            Ok(found.iter().all(Option::is_some))
        })
        .await?;
        Ok(if were_there { Outcome::Done } else { Outcome::NotFound })
    })
}
