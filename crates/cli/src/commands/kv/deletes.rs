//! `dunlin kv del`.

use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};

/// Delete items
///
/// Exit code 0 if all were there, 1 if some were not, 2 if the server could not be asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv del shm:kv bird
  dunlin kv del udp://127.0.0.1:7700 bird fish")]
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
        let mut found = Found::All;
        for key in &arguments.keys {
            if !client.delete(key.as_bytes()).await? {
                eprintln!("dunlin: there is no item {key:?}");
                found = Found::NotAll;
            }
        }
        Ok(found)
    })
}
