//! `dunlin kv mget`.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};
use crate::output::OutputError;

/// Print the values of many keys: for each one found, a line with key and value, separated by a tab
///
/// Exit code 0 if all existed, 1 if some did not, 2 if the server could not be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv mget bird fish --at shm:kv
  dunlin kv mget $(cat keys.txt) --at shm:kv > values.tsv")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let values = client.multi_get(&arguments.keys).await?;
        let mut out = std::io::BufWriter::new(stdout().lock());
        let mut found = Found::All;
        for (key, value) in arguments.keys.iter().zip(values) {
            let Some(value) = value else {
                found = Found::NotAll;
                continue;
            };
            for part in [key.as_bytes(), b"\t", &value, b"\n"] {
                out.write_all(part).map_err(OutputError)?;
            }
        }
        out.flush().map_err(OutputError)?;
        Ok(found)
    })
}
