//! `dunlin kv cluster get`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_kv::cluster::ClusterConfig;

use super::place::{Target, ask};
use crate::commands::kv::client::Found;
use crate::output;

/// Print the value of a key
///
/// Exit code 0 if the item exists, 1 if it does not, 2 if no replica could be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster get bird --at file:shop.toml")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The key
    key: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |cluster| {
        let Some(value) = cluster.get(arguments.key.as_bytes()).await? else { return Ok(Found::NotAll) };
        output::value(&value)?;
        Ok(Found::All)
    })
}
