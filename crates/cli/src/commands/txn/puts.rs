//! `dunlin txn put`.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use dunlin_serve::Interrupt;

use super::client::{Outcome, Target, ask, run as transact};

/// Write keys, all in one transaction
///
/// When it has ended, all copies have the values, and every later transaction sees them. Exit code 2 if nothing was
/// written, 4 if nobody knows.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn put --at udp://127.0.0.1:7911 accounts alice 100
  dunlin txn put --at udp://127.0.0.1:7911 accounts alice 70 bob 30       both or none
  dunlin txn put --at udp://127.0.0.1:7911 pictures dunlin - < dunlin.jpg")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The table
    table: String,
    /// Keys and values in turn; `-` as a value reads standard input
    #[arg(required = true, num_args = 2.., value_name = "KEY VALUE")]
    items: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let Arguments { target, table, items } = arguments;
    ensure!(items.len().is_multiple_of(2), "{:?} has no value: give keys and values in turn", items[items.len() - 1]);
    let mut pairs = Vec::new();
    let mut has_read = false;
    for pair in items.chunks(2) {
        let [key, value] = pair else { continue };
        let value = match value.as_str() {
            "-" => {
                ensure!(!has_read, "standard input can be the value of one key only");
                has_read = true;
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
                bytes
            }
            value => value.as_bytes().to_vec(),
        };
        pairs.push((key, value));
    }
    ask(target, interrupt, async |_, remote| {
        transact(remote, async |tx| {
            let table = remote.client().table(table)?;
            pairs.iter().try_for_each(|(key, value)| tx.put(table, key.as_bytes(), value.clone()))
        })
        .await?;
        Ok(Outcome::Done)
    })
}
