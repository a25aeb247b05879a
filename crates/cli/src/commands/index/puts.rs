//! `dunlin index put`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_index::VALUE_BYTES_MAX;
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Found, Purpose, Server, ask};
use crate::arguments::value;
use crate::output;

/// Store a value for a key
///
/// Exit code 0 if it was stored, 2 if it was not, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index put bird/dunlin 'Calidris alpina' --at shm:index
  dunlin index put photo - --at udp://127.0.0.1:7730 < photo.jpeg")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The key, up to 64 KiB
    key: String,
    /// The value, up to 1 MiB; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Print JSON: whether the key had a value
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Writes, async |client| {
        let value = value(&arguments.value, VALUE_BYTES_MAX)?;
        let existed = client.put(arguments.key.as_bytes(), &value).await?;
        if arguments.json {
            output::line(json!({ "existed": existed }))?;
        }
        Ok(Found::All)
    })
}
