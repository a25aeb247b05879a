//! `dunlin kv del`.

use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};

/// Delete items
///
/// Exit code 0 if all existed, 1 if some did not, 2 if the server could not be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv del bird --at shm:kv
  dunlin kv del bird fish --at udp://127.0.0.1:7700")]
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
