//! `dunlin kv cluster open`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_kv::cluster::ClusterConfig;

use super::place::{Target, ask};
use crate::commands::kv::client::Found;
use crate::output;

/// Let a server be read with what it holds: nothing is missing, or it is lost
///
/// For a server that cannot be filled, because no other replica of some partition is left. What those held is lost, and
/// nobody but you can say so.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster open b --at file:shop.toml")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The name of the server
    name: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |cluster| {
        cluster.open(&arguments.name).await?;
        output::line(format_args!("{} is open", arguments.name))?;
        Ok(Found::All)
    })
}
