//! `dunlin index delete`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Found, Purpose, Server, ask};
use crate::output;

/// Delete items
///
/// Exit code 0 if all existed, 1 if some did not, 2 if they were not deleted, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index delete bird/dunlin --at shm:index
  dunlin index delete bird/dunlin bird/knot --at udp://127.0.0.1:7730")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    /// Print JSON: for each key a line that says whether it had a value
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Writes, async |client| {
        let mut found = Found::All;
        for key in &arguments.keys {
            let existed = client.delete(key.as_bytes()).await?;
            if arguments.json {
                output::line(json!({ "key": key, "existed": existed }))?;
            } else if !existed {
                eprintln!("dunlin: there is no item {key:?}");
            }
            if !existed {
                found = Found::NotAll;
            }
        }
        Ok(found)
    })
}
