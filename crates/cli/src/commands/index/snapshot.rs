//! `dunlin index snapshot`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Found, Purpose, Server, ask};
use crate::arguments::size::human_bytes;
use crate::output;

/// Make a server save its snapshot, and wait until it is on disk
///
/// Exit code 0 if it was saved, 2 if not: the snapshot before is still there then. 4 if the server did not say so in
/// time: it may save it nevertheless.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index serve --at shm:index --snapshot index.snapshot
  dunlin index snapshot --at shm:index --timeout 1m")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// Print JSON: items, and bytes of the file
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Writes, async |client| {
        let saved = client.save().await?;
        if arguments.json {
            output::line(json!({ "items": saved.items, "file_bytes": saved.file_bytes }))?;
        } else {
            output::line(format_args!("snapshot saved: {} items, {}", saved.items, human_bytes(saved.file_bytes)))?;
        }
        Ok(Found::All)
    })
}
