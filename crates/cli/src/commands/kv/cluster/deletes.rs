//! `dunlin kv cluster del`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_kv::cluster::ClusterConfig;

use super::place::{Target, ask};
use crate::commands::kv::client::Found;

/// Delete items from all replicas
///
/// Exit code 0 if all existed and are deleted everywhere, 1 if some did not exist, 2 if nothing was deleted, 4 if some
/// replicas may still have them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster del bird fish --at file:shop.toml")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |cluster| {
        let mut found = Found::All;
        for key in &arguments.keys {
            if !cluster.delete(key.as_bytes()).await?.everywhere()?.had_item {
                found = Found::NotAll;
            }
        }
        Ok(found)
    })
}
