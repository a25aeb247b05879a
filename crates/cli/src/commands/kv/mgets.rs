//! `dunlin kv mget`.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};
use crate::output::OutputError;

/// Print the values of many keys: a line for each that is there, key and value with a tab between
///
/// Exit code 0 if all were there, 1 if some were not, 2 if the server could not be asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv mget shm:kv bird fish
  dunlin kv mget shm:kv $(cat keys.txt) > values.tsv")]
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
