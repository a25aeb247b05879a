//! `dunlin kv snapshot`.

use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};

/// Make a server save its snapshot, and wait until it is on disk
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv serve --at shm:kv --snapshot kv.snapshot
  dunlin kv snapshot --at shm:kv --timeout 1m")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.server, async |client| {
        client.snapshot().await?;
        Ok(Found::All)
    })
}
