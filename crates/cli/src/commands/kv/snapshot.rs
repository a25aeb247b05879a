//! `dunlin kv snapshot`.

use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};

/// Have a server save its snapshot, and wait until it is on its disk
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv serve --listen shm:kv --snapshot kv.snapshot
  dunlin kv snapshot shm:kv --deadline 60")]
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
