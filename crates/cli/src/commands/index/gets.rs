//! `dunlin index get`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;

use super::client::{Found, Lines, Purpose, Server, ask};
use crate::output;

/// Print the value of a key, or the keys and values of several
///
/// Of one key the bytes of its value are printed as they are. Of several, each that has a value gets a line with key
/// and value, separated by a tab, in which \t \n \r \\ \xHH stand for bytes. Exit code 0 if all have values, 1 if some
/// have none, 2 if the server did not answer.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index get bird/dunlin --at shm:index
  export DUNLIN_AT=shm:index
  dunlin index get photo > photo.jpeg
  dunlin index get bird/dunlin bird/knot --json")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    /// Print JSON: each item as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Reads, async |client| {
        let values = client.get_many(&arguments.keys).await?;
        if let ([Some(value)], false) = (&values[..], arguments.json) {
            output::value(value)?;
            return Ok(Found::All);
        }
        let mut lines = Lines::new(arguments.json)?;
        let mut found = Found::All;
        for (key, value) in arguments.keys.iter().zip(&values) {
            match value {
                Some(value) => lines.item(key.as_bytes(), value)?,
                None => found = Found::NotAll,
            }
        }
        lines.end()?;
        Ok(found)
    })
}
